//! Settles images that the collection already contains. New images are in the module `record`.

use super::dedupe::{self, Relation};
use super::record::result;
use super::{Incoming, Ingest, IngestError, Ingested};
use crate::Dedupe;
use domain::{ImageState, Reason};
use queue::Claim;
use store::images::Image;
use store::pages::ImageUrlResult;
use store::{StoreError, Tx};
use uuid::Uuid;
use vision::{Frame, PerceptualHashes};

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
    /// the image. Returns `None` if the stored image was deleted.
    pub(super) async fn settle_near(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        image: Uuid,
    ) -> Result<Option<Ingested>, IngestError> {
        self.settle_duplicate(incoming, claim, image, Reason::NearDuplicate).await
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
        if let Some(image) = result.image
            && !self.inner.store.lock_image(settlement.tx.conn(), image).await?
        {
            return Ok(None);
        }
        self.commit_settlement(settlement, result).await?;
        Ok(Some(done))
    }

    /// Returns how an image relates to the stored images. Acquires no locks.
    pub(super) async fn find_relation(
        &self,
        collection: Uuid,
        hashes: &PerceptualHashes,
        frame: &Frame,
    ) -> Result<Relation, StoreError> {
        let store = &self.inner.store;
        let (p, d) = signed(hashes);
        let candidates = store.near_candidates(store.pool(), collection, p, d).await?;
        let near = dedupe::near(hashes, &candidates);
        let enrolled = store.enrolled_images(store.pool(), &ids(&near)).await?;
        Ok(dedupe::relation(frame, &near, &enrolled))
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
        hashes: &PerceptualHashes,
        frame: &Frame,
    ) -> Result<Relation, StoreError> {
        let store = &self.inner.store;
        let (p, d) = signed(hashes);
        store.lock_keys(tx.conn(), &near_lock_keys(collection, hashes)).await?;
        for _ in 0..super::MAX_ATTEMPTS {
            let candidates = store.near_candidates(tx.conn(), collection, p, d).await?;
            let near = dedupe::near(hashes, &candidates);
            let enrolled = store.enrolled_images(tx.conn(), &ids(&near)).await?;
            let relation = dedupe::relation(frame, &near, &enrolled);
            let locked = match &relation {
                Relation::New => true,
                Relation::Duplicate(image) => store.lock_image(tx.conn(), *image).await?,
                Relation::Supersedes(images) => store.lock_to_replace(tx.conn(), images).await?,
            };
            if locked {
                return Ok(relation);
            }
        }
        Err(StoreError::Conflict("near duplicates of the image are replaced repeatedly; try again".into()))
    }
}

/// Returns the DCT and gradient hashes as Postgres stores them.
fn signed(hashes: &PerceptualHashes) -> (i64, i64) {
    (hashes.p.cast_signed(), hashes.d.cast_signed())
}

fn ids(images: &[&Image]) -> Vec<Uuid> {
    images.iter().map(|image| image.id).collect()
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
    fn near_hashes_meet_and_collections_do_not() {
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
