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
pub(super) struct Analyzed<'a> {
    pub(super) analysis: &'a Analysis,
    pub(super) shown: &'a ShownFaces,
    /// `None` if the image seems to be a duplicate, which is not stored.
    pub(super) blobs: Option<&'a StoredBlobs>,
    /// Whether some of its faces are omitted.
    pub(super) partly: bool,
}

/// The transaction that settles an image's row and completes its job.
pub(super) struct Settlement {
    tx: Tx,
    claim: Option<Claim>,
    image_url: Uuid,
    moved_to: Option<String>,
    /// The collection and the visit to remember.
    visit: Option<(Uuid, FetchedFrom)>,
}

impl Ingest {
    /// Begins the transaction. Fails if the claim is lost, before anything is written.
    pub(super) async fn begin_settlement(
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
    pub(super) async fn commit_settlement(
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

    /// Stores the image, or settles it as a duplicate of a stored one. Returns `None` without a
    /// change if the image must be examined again: it, its address or a person in it was erased in
    /// the meantime, or its relation to the stored images changed.
    pub(super) async fn record(
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
                    let (result, done) = duplicate(image, Reason::NearDuplicate);
                    self.commit_settlement(settlement, result).await?;
                    return Ok(Some(done));
                }
                Nearness::Related { versions: found, .. } => versions = found,
            }
        }
        let Some(blobs) = blobs else { return Ok(None) };
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
        let (result, mut done) = match dedupe {
            Dedupe::Off => (result(ImageState::Processed, None, image), Ingested::Stored { image, faces: 0 }),
            _ => duplicate(image, Reason::ExactDuplicate),
        };
        self.commit_settlement(settlement, result).await?;
        if let Ingested::Stored { faces, .. } = &mut done {
            *faces = self.faces.store.images().get(image).await?.face_count.unsigned_abs() as usize;
        }
        Ok(done)
    }

    /// Settles the row of a file whose bytes are already stored. The file becomes an additional
    /// source of the stored image. Returns `None` if the stored image was deleted.
    pub(super) async fn settle_known(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        known: &Image,
    ) -> Result<Option<Ingested>, IngestError> {
        let (image, faces) = (known.id, known.face_count.unsigned_abs() as usize);
        let outcome = match incoming.dedupe {
            Dedupe::Off => (result(ImageState::Processed, None, image), Ingested::Stored { image, faces }),
            _ => duplicate(image, Reason::ExactDuplicate),
        };
        self.settle(incoming, claim, image, outcome).await
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
        let (mut settled, done) = duplicate(image, Reason::NotModified);
        if incoming.dedupe == Dedupe::Off {
            settled.state = ImageState::Processed;
        }
        self.settle(incoming, Some(claim), image, (settled, done)).await
    }

    async fn settle(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        image: Uuid,
        (result, done): (ImageUrlResult<'_>, Ingested),
    ) -> Result<Option<Ingested>, IngestError> {
        let Incoming { collection, image_url, moved_to, .. } = incoming;
        let mut settlement = self.begin_settlement(incoming, claim).await?;
        let (store, conn) = (&self.faces.store, settlement.tx.conn());
        let suppressions = store.suppressions();
        suppressions.lock(conn, *collection, false).await?;
        if suppressions.suppresses_url(&mut *conn, *collection, *image_url, moved_to.as_deref()).await?
            || !store.images().lock(conn, image).await?
        {
            return Ok(None);
        }
        self.commit_settlement(settlement, result).await?;
        Ok(Some(done))
    }
}

/// Returns the result of the URL of a duplicate of a stored image.
fn duplicate(image: Uuid, reason: Reason) -> (ImageUrlResult<'static>, Ingested) {
    (result(ImageState::Duplicate, Some(reason.clone()), image), Ingested::Duplicate { image, reason })
}

/// Returns the result of an image URL whose image is stored.
fn result(state: ImageState, reason: Option<Reason>, image: Uuid) -> ImageUrlResult<'static> {
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
