//! Settles images that the collection already contains. New images are stored in `record`.

use super::dedupe::Nearness;
use super::dedupe::{self, NearImage, Relation};
use super::record::result;
use super::{Incoming, Ingest, IngestError, Ingested, Inner, address_of, seen};
use crate::images::ingest::dedupe::Versions;
use crate::images::ingest::dedupe::{Comparison, ShownFaces};
use crate::{Analysis, AnalyzeOptions, Dedupe};
use domain::{ImageState, Reason};
use inference::{Embedding, Priority};
use queue::Claim;
use store::crawls::pages::ImageUrlResult;
use store::images::Image;
use store::{StoreError, StoredFace, Tx};
use uuid::Uuid;
use vision::PerceptualHashes;

/// Maximum number of stored faces that are compared at a time. An image alone can have more.
const FACES_AT_A_TIME: i32 = 1_000;

impl Ingest {
    /// Settles the row of a file whose bytes are already stored. The file becomes an additional
    /// source of the stored image. Returns `None` if the stored image was deleted.
    pub(super) async fn settle_known(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        known: &Image,
    ) -> Result<Option<Ingested>, IngestError> {
        if incoming.dedupe == Dedupe::Off {
            let done = Ingested::Stored { image: known.id, faces: known.face_count.unsigned_abs() as usize };
            return self.settle(incoming, claim, result(ImageState::Processed, None, known.id), done).await;
        }
        self.settle_duplicate(incoming, claim, known.id, Reason::ExactDuplicate).await
    }

    /// Settles the row of an unchanged file, which becomes an additional source of its stored
    /// image. The file is neither downloaded nor analysed. `incoming` needs no bytes. Returns
    /// `None` if the stored image was deleted.
    pub(crate) async fn settle_unchanged(
        &self,
        incoming: &Incoming,
        claim: Claim,
        image: Uuid,
    ) -> Result<Option<Ingested>, IngestError> {
        if incoming.dedupe != Dedupe::Off {
            return self.settle_duplicate(incoming, Some(claim), image, Reason::NotModified).await;
        }
        let done = Ingested::Duplicate { image, reason: Reason::NotModified };
        let result = result(ImageState::Processed, Some(Reason::NotModified), image);
        self.settle(incoming, Some(claim), result, done).await
    }

    /// Settles the row of another file of a stored image. The file becomes an additional source of
    /// the image. Returns `None` if the image must be examined again: something of it was erased in
    /// the meantime, or its relation to the stored images changed.
    pub(super) async fn settle_near(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        analysis: &Analysis,
        shown: &ShownFaces,
    ) -> Result<Option<Ingested>, IngestError> {
        let (collection, address) = (incoming.collection, Some(address_of(incoming)));
        let mut settlement = self.begin_settlement(incoming, claim).await?;
        let tx = &mut settlement.tx;
        self.inner.store.suppressions().lock(tx.conn(), collection, false).await?;
        if !self.inner.suppressor.parts(tx, collection, address, &seen(analysis)).await?.is_clear() {
            return Ok(None);
        }
        let nearness = self.find_relation_locked(tx, collection, analysis, shown).await?;
        let Nearness::Related { relation: Relation::Duplicate(image), .. } = nearness else {
            return Ok(None);
        };
        let reason = Reason::NearDuplicate;
        let settled = result(ImageState::Duplicate, Some(reason.clone()), image);
        self.commit_settlement(settlement, settled).await?;
        Ok(Some(Ingested::Duplicate { image, reason }))
    }

    async fn settle_duplicate(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        image: Uuid,
        reason: Reason,
    ) -> Result<Option<Ingested>, IngestError> {
        let done = Ingested::Duplicate { image, reason: reason.clone() };
        self.settle(incoming, claim, result(ImageState::Duplicate, Some(reason), image), done).await
    }

    async fn settle(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        result: ImageUrlResult<'_>,
        done: Ingested,
    ) -> Result<Option<Ingested>, IngestError> {
        let mut settlement = self.begin_settlement(incoming, claim).await?;
        let (store, conn) = (&self.inner.store, settlement.tx.conn());
        store.suppressions().lock(conn, incoming.collection, false).await?;
        let moved_to = incoming.moved_to.as_deref();
        if store
            .suppressions()
            .suppresses_url(&mut *conn, incoming.collection, incoming.image_url, moved_to)
            .await?
        {
            return Ok(None);
        }
        if let Some(image) = result.image
            && !self.inner.store.images().lock(settlement.tx.conn(), image).await?
        {
            return Ok(None);
        }
        self.commit_settlement(settlement, result).await?;
        Ok(Some(done))
    }

    /// Returns the faces of an analysed image for comparisons with stored images, and whether the
    /// image is a duplicate. Acquires no locks.
    ///
    /// Near hashes only nominate a stored image. If there is one, faces that have no embedding
    /// because they do not meet the quality profile get one for the comparison.
    pub(super) async fn find_duplicate(
        &self,
        collection: Uuid,
        analysis: &Analysis,
        options: &AnalyzeOptions,
    ) -> Result<(ShownFaces, Option<Uuid>), IngestError> {
        let store = &self.inner.store;
        let (p, d) = signed(&analysis.hashes);
        let candidates = store.images().near_candidates(store.pool(), collection, p, d).await?;
        let near = dedupe::near(&analysis.hashes, &candidates);
        let lacks = options.passed_only && analysis.faces.iter().any(|face| face.embedding.is_none());
        if near.is_empty() {
            let mut shown = ShownFaces::of(analysis, &[]);
            shown.lacks_embeddings = lacks;
            return Ok((shown, None));
        }
        let extra = if lacks { self.missing_embeddings(analysis).await? } else { Vec::new() };
        let shown = ShownFaces::of(analysis, &extra);
        let mut tx = store.begin().await?;
        let (relation, _) = self.relation_to(&mut tx, analysis, &shown, &near).await?;
        let duplicate = match relation {
            Relation::Duplicate(image) => Some(image),
            Relation::New | Relation::Supersedes(_) => None,
        };
        Ok((shown, duplicate))
    }

    /// Returns embeddings of the faces without one, in the order of the faces.
    async fn missing_embeddings(&self, analysis: &Analysis) -> Result<Vec<Option<Embedding>>, IngestError> {
        let lacking = analysis.faces.iter().enumerate().filter(|(_, face)| face.embedding.is_none());
        let (places, chips): (Vec<usize>, Vec<_>) =
            lacking.filter_map(|(at, face)| Some((at, face.chip.clone()?))).unzip();
        let found = self.inner.analyzer.embed_chips(chips, Priority::Background).await?;
        let mut all = vec![None; analysis.faces.len()];
        for (at, embedding) in places.into_iter().zip(found) {
            all[at] = embedding;
        }
        Ok(all)
    }

    /// Returns how an image relates to the stored images, after waiting for all transactions that
    /// are about to store a near image. Without this wait, two versions of one image that are
    /// processed at the same time would both be stored.
    ///
    /// The images in the result are locked until the end of the transaction.
    pub(super) async fn find_relation_locked(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        analysis: &Analysis,
        shown: &ShownFaces,
    ) -> Result<Nearness, StoreError> {
        let store = &self.inner.store;
        let hashes = &analysis.hashes;
        let (p, d) = signed(hashes);
        store.images().lock_near_keys(tx.conn(), &near_lock_keys(collection, hashes)).await?;
        for _ in 0..super::MAX_ATTEMPTS {
            let candidates = store.images().near_candidates(tx.conn(), collection, p, d).await?;
            let near = dedupe::near(hashes, &candidates);
            if shown.lacks_embeddings && !near.is_empty() {
                return Ok(Nearness::Unknown);
            }
            let (relation, versions) = self.relation_to(tx, analysis, shown, &near).await?;
            let locked = match &relation {
                Relation::New => return Ok(Nearness::Related { relation, versions }),
                Relation::Duplicate(image) => store.images().lock(tx.conn(), *image).await?,
                Relation::Supersedes(images) => store.images().lock_to_replace(tx.conn(), images).await?,
            };
            // Faces can be deleted or get other embeddings until their image is locked.
            if locked && self.relation_to(tx, analysis, shown, &near).await?.0 == relation {
                return Ok(Nearness::Related { relation, versions });
            }
        }
        Err(StoreError::Conflict("near duplicates of the image are replaced repeatedly; try again".into()))
    }

    /// Returns how an image relates to the stored images in `near`, whose hashes are near.
    async fn relation_to(
        &self,
        tx: &mut Tx,
        analysis: &Analysis,
        shown: &ShownFaces,
        near: &[&Image],
    ) -> Result<(Relation, Versions), StoreError> {
        let candidates = self.compare_people(tx, shown, near).await?;
        let same = candidates.iter().filter(|one| one.people.is_same());
        let ids: Vec<Uuid> = same.map(|one| one.image.id).collect();
        let enrolled = self.inner.store.images().enrolled(tx.conn(), &ids).await?;
        let relation = dedupe::relation(&analysis.frame, &candidates, &enrolled);
        let mut versions = Versions::default();
        if let Relation::Supersedes(images) = &relation {
            versions.add_replaced(images.clone(), &candidates);
        }
        versions.add_kept(&analysis.frame, &candidates);
        Ok((relation, versions))
    }

    /// Compares the faces of an image with those of each image in `near`.
    async fn compare_people<'a>(
        &self,
        tx: &mut Tx,
        shown: &ShownFaces,
        near: &[&'a Image],
    ) -> Result<Vec<NearImage<'a>>, StoreError> {
        let Inner { store, model_id, analyzer, .. } = &*self.inner;
        let threshold = analyzer.engine().embedder().match_threshold;
        let mut candidates = Vec::with_capacity(near.len());
        let mut left = near;
        while !left.is_empty() {
            let mut faces_so_far = 0;
            let fits = |image: &&&Image| {
                let is_first = faces_so_far == 0;
                faces_so_far += image.face_count;
                is_first || faces_so_far <= FACES_AT_A_TIME
            };
            let (group, rest) = left.split_at(left.iter().take_while(fits).count().max(1));
            let ids: Vec<Uuid> =
                group.iter().filter(|image| image.face_count > 0).map(|image| image.id).collect();
            let faces = match ids.is_empty() {
                true => Vec::new(),
                false => store.images().faces_of_images(tx.conn(), &ids).await?,
            };
            for image in group {
                let own = faces.iter().filter(|face: &&StoredFace| face.image_id == image.id);
                let people: Comparison = shown.compare(own, *model_id, threshold);
                candidates.push(NearImage { image, people });
            }
            left = rest;
        }
        Ok(candidates)
    }
}

/// Returns the DCT and gradient hashes as Postgres stores them.
fn signed(hashes: &PerceptualHashes) -> (i64, i64) {
    (hashes.p.cast_signed(), hashes.d.cast_signed())
}

/// Returns lock keys such that two near images share at least one: the eight bytes of the DCT hash,
/// each with its position. Hashes that differ in fewer than eight bits have an equal byte.
/// Unrelated images sometimes share a lock, which causes only a short wait.
fn near_lock_keys(collection: Uuid, hashes: &PerceptualHashes) -> Vec<i64> {
    let (high, low) = collection.as_u64_pair();
    let base = (high ^ low.rotate_left(32)) & !0xFFFF;
    let byte = |index: u64| (hashes.p >> (index * 8)) & 0xFF;
    (0..8_u64).map(|index| (base | (index << 8) | byte(index)).cast_signed()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn near_hashes_share_lock_key_within_collection() {
        let hashes = |p| PerceptualHashes { p, d: 0, a: 0 };
        let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
        let a: HashSet<i64> = near_lock_keys(one, &hashes(0x0123_4567_89AB_CDEF)).into_iter().collect();
        // Seven bytes have one flipped bit each.
        let near: HashSet<i64> =
            near_lock_keys(one, &hashes(0x0123_4567_89AB_CDEF ^ 0x0001_0101_0101_0101)).into_iter().collect();
        assert_eq!(a.intersection(&near).count(), 1);
        let elsewhere: HashSet<i64> =
            near_lock_keys(other, &hashes(0x0123_4567_89AB_CDEF)).into_iter().collect();
        assert_eq!(a.intersection(&elsewhere).count(), 0);
    }
}
