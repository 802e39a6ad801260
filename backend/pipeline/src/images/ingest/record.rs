//! Settles the row of an image in one transaction that also completes its job: stores a new image
//! with its faces, or records the file as a source of a stored image.
use super::dedupe::{Nearness, Relation, ShownFaces, Versions};
use super::{FetchedFrom, Incoming, Ingest, IngestError, Ingested, address_of, seen};
use crate::domain::{check_live, count_outcome};
use crate::erasures::suppression;
use crate::images::face_store::{FaceStore, StoredBlobs, new_face};
use crate::{Analysis, Dedupe};
use domain::{ImageState, Reason};
use queue::Claim;
use store::Tx;
use store::crawls::pages::ImageUrlResult;
use store::faces::NewFace;
use store::images::{Image, NewImage};
use uuid::Uuid;

/// An analysed image that is about to be stored.
pub(crate) struct Analyzed<'a> {
    pub(crate) analysis: &'a Analysis,
    pub(crate) shown: &'a ShownFaces,
    pub(crate) blobs: &'a StoredBlobs,
    /// Whether some of its faces are omitted.
    pub(crate) partly: bool,
}

/// The transaction that settles an image's row and completes its job.
pub(crate) struct Settlement {
    pub(crate) tx: Tx,
    claim: Option<Claim>,
    image_url: Uuid,
    moved_to: Option<String>,
    /// The collection and the visit to remember.
    visit: Option<(Uuid, FetchedFrom)>,
}

impl Ingest {
    /// Begins the transaction. Fails if the claim is lost, before anything is written.
    pub(crate) async fn begin_settlement(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
    ) -> Result<Settlement, IngestError> {
        let mut tx = self.faces.store.begin().await?;
        if let Some(claim) = claim {
            self.faces.queue.complete(tx.conn(), claim).await?;
            check_live(&self.faces.store, &mut tx, incoming.crawl, claim).await?;
        }
        let visit = incoming.fetched.clone().map(|fetched| (incoming.collection, fetched));
        let moved_to = incoming.moved_to.clone();
        Ok(Settlement { tx, claim, image_url: incoming.image_url, moved_to, visit })
    }

    /// Settles the row with the result and commits.
    pub(crate) async fn commit_settlement(
        &self,
        settlement: Settlement,
        result: ImageUrlResult<'_>,
    ) -> Result<(), IngestError> {
        let Settlement { mut tx, claim, image_url, moved_to, visit } = settlement;
        let store = &self.faces.store;
        let (state, reason, image) = (result.state, result.reason.clone(), result.image);
        store.ledger().settle_image_url(tx.conn(), image_url, result).await?;
        if let (Some(answered), Some(_)) = (moved_to, image) {
            store.ledger().record_moved_image(tx.conn(), image_url, &answered).await?;
        }
        if state == ImageState::Suppressed {
            suppression::forget(store, &self.faces.queue, &mut tx, (image_url, claim)).await?;
        }
        if let (Some((collection, FetchedFrom { url, visit })), Some(image)) = (visit, image) {
            store.hosts().cache_image(tx.conn(), collection, &url, image, visit.as_ref()).await?;
        }
        tx.commit().await?;
        count_outcome("image", state.as_str(), reason.as_ref());
        Ok(())
    }

    /// Stores the image, or settles it as a duplicate if another transaction stored it first.
    /// Returns `None` without a change if the image must be examined again: it, its address or a
    /// person in it was erased in the meantime, or a near image was stored, whose faces must be
    /// compared first.
    pub(crate) async fn record(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        analyzed: &Analyzed<'_>,
    ) -> Result<Option<Ingested>, IngestError> {
        let FaceStore { store, model_id, suppressor, .. } = &self.faces;
        let Analyzed { analysis, shown, blobs, partly } = *analyzed;
        let mut settlement = self.begin_settlement(incoming, claim).await?;
        store.suppressions().lock(settlement.tx.conn(), incoming.collection, false).await?;
        let address = Some(address_of(incoming));
        let suppressed =
            suppressor.parts(&mut settlement.tx, incoming.collection, address, &seen(analysis)).await?;
        if !suppressed.is_clear() {
            return Ok(None);
        }
        let mut versions = Versions::default();
        if incoming.dedupe == Dedupe::Near {
            let collection = incoming.collection;
            match self.find_relation_locked(&mut settlement.tx, collection, analysis, shown).await? {
                Nearness::Unknown => return Ok(None),
                // A smaller complete version may show faces that are missing here.
                Nearness::Related { relation: Relation::Supersedes(_), .. } if incoming.incomplete => {}
                Nearness::Related { relation: Relation::Duplicate(image), .. } => {
                    let reason = Reason::NearDuplicate;
                    self.commit_settlement(
                        settlement,
                        result(ImageState::Duplicate, Some(reason.clone()), image),
                    )
                    .await?;
                    return Ok(Some(Ingested::Duplicate { image, reason }));
                }
                Nearness::Related { versions: found, .. } => versions = found,
            }
        }
        let image = new_image(analysis, blobs.thumbnail.clone());
        let inserted = store.images().insert(settlement.tx.conn(), incoming.collection, &image).await?;
        if let Err(image) = inserted {
            return self.lost_race(settlement, incoming.dedupe, image).await.map(Some);
        }
        let faces: Vec<NewFace> = (analysis.faces.iter().zip(&blobs.faces))
            .filter_map(|(face, blobs)| new_face(face, *model_id, blobs.clone()?))
            .collect();
        store.faces().insert(settlement.tx.conn(), incoming.collection, image.id, &faces).await?;
        self.faces.keep_blobs(&mut settlement.tx, blobs).await?;
        let smaller = &versions.replaced;
        let mut unused = Vec::new();
        if !smaller.is_empty() {
            let conn = settlement.tx.conn();
            unused = store.images().replace(conn, smaller, image.id, incoming.image_url).await?;
        }
        self.audit_versions(&mut settlement.tx, incoming.collection, image.id, &versions).await?;
        let reason = match partly {
            true => Some(Reason::FacesSuppressed),
            false => incoming.incomplete.then_some(Reason::IncompleteTransfer),
        };
        self.commit_settlement(settlement, result(ImageState::Processed, reason, image.id)).await?;
        metrics::counter!("facecrawl_faces_stored_total").increment(faces.len() as u64);
        if !smaller.is_empty() {
            metrics::counter!("facecrawl_images_superseded_total").increment(smaller.len() as u64);
            self.faces.drop_blobs(&unused).await;
        }
        Ok(Some(Ingested::Stored { image: image.id, faces: faces.len() }))
    }

    /// Settles an image whose bytes another transaction stored after the first check.
    async fn lost_race(
        &self,
        settlement: Settlement,
        dedupe: Dedupe,
        image: Uuid,
    ) -> Result<Ingested, IngestError> {
        if dedupe == Dedupe::Off {
            self.commit_settlement(settlement, result(ImageState::Processed, None, image)).await?;
            let faces = self.faces.store.images().get(image).await?.face_count.unsigned_abs() as usize;
            return Ok(Ingested::Stored { image, faces });
        }
        let reason = Reason::ExactDuplicate;
        self.commit_settlement(settlement, result(ImageState::Duplicate, Some(reason.clone()), image))
            .await?;
        Ok(Ingested::Duplicate { image, reason })
    }
}

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
        self.faces.store.suppressions().lock(tx.conn(), collection, false).await?;
        if !self.faces.suppressor.parts(tx, collection, address, &seen(analysis)).await?.is_clear() {
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
        let (store, conn) = (&self.faces.store, settlement.tx.conn());
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
            && !self.faces.store.images().lock(settlement.tx.conn(), image).await?
        {
            return Ok(None);
        }
        self.commit_settlement(settlement, result).await?;
        Ok(Some(done))
    }
}

/// Returns the result of an image URL whose image is stored.
pub(crate) fn result(state: ImageState, reason: Option<Reason>, image: Uuid) -> ImageUrlResult<'static> {
    ImageUrlResult { state, reason, detail: None, image: Some(image) }
}

pub(crate) fn new_image(analysis: &Analysis, thumbnail: Option<String>) -> NewImage {
    let signed = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    NewImage {
        id: Uuid::now_v7(),
        sha256: analysis.sha256,
        phash: analysis.hashes.p.cast_signed(),
        dhash: analysis.hashes.d.cast_signed(),
        ahash: analysis.hashes.a.cast_signed(),
        width: signed(analysis.frame.width()),
        height: signed(analysis.frame.height()),
        format: analysis.format.name().into(),
        bytes: i64::try_from(analysis.bytes).unwrap_or(i64::MAX),
        rotation: signed(analysis.rotation),
        thumbnail_key: thumbnail,
    }
}
