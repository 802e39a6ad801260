//! Writes an image, its faces and its ledger row, and completes its job, in one transaction. Blobs
//! are written before that, in the module `blobs`.

use super::blobs::StoredBlobs;
use super::dedupe::Relation;
use super::known::Nearness;
use super::same_people::ShownFaces;
use super::suppress::ImageAddress;
use super::versions::Versions;
use super::{FetchedFrom, Incoming, Ingest, IngestError, Ingested, Inner, outcome, suppress};
use crate::crawls::closing;
use crate::{Analysis, AnalyzedFace, Dedupe};
use domain::{ImageState, Reason};
use queue::Claim;
use store::Tx;
use store::crawls::pages::ImageUrlResult;
use store::faces::NewFace;
use store::images::NewImage;
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
        let mut tx = self.inner.store.begin().await?;
        if let Some(claim) = claim {
            self.inner.queue.complete(tx.conn(), claim).await?;
            closing::check_live(&self.inner.store, &mut tx, incoming.crawl, claim).await?;
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
        let store = &self.inner.store;
        let (state, reason, image) = (result.state, result.reason.clone(), result.image);
        store.settle_image_url(tx.conn(), image_url, result).await?;
        if let (Some(answered), Some(_)) = (moved_to, image) {
            store.record_moved_image(tx.conn(), image_url, &answered).await?;
        }
        if state == ImageState::Suppressed {
            suppress::forget(store, &self.inner.queue, &mut tx, (image_url, claim)).await?;
        }
        if let (Some((collection, FetchedFrom { url, visit })), Some(image)) = (visit, image) {
            store.cache_image(tx.conn(), collection, &url, image, visit.as_ref()).await?;
        }
        tx.commit().await?;
        outcome::count_outcome("image", state.as_str(), reason.as_ref());
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
        let Inner { store, model_id, .. } = &*self.inner;
        let Analyzed { analysis, shown, blobs, partly } = *analyzed;
        let mut settlement = self.begin_settlement(incoming, claim).await?;
        store.lock_suppressions(settlement.tx.conn(), incoming.collection, false).await?;
        if !self
            .suppressed_parts(
                &mut settlement.tx,
                incoming.collection,
                Some(ImageAddress::of(incoming)),
                analysis,
            )
            .await?
            .is_clear()
        {
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
        let inserted = store.insert_image(settlement.tx.conn(), incoming.collection, &image).await?;
        if let Err(image) = inserted {
            return self.lost_race(settlement, incoming.dedupe, image).await.map(Some);
        }
        let faces: Vec<NewFace> = (analysis.faces.iter().zip(&blobs.faces))
            .filter_map(|(face, blobs)| new_face(face, *model_id, blobs.clone()?))
            .collect();
        store.insert_faces(settlement.tx.conn(), incoming.collection, image.id, &faces).await?;
        self.keep_blobs(&mut settlement.tx, blobs).await?;
        let smaller = &versions.replaced;
        let mut unused = Vec::new();
        if !smaller.is_empty() {
            let conn = settlement.tx.conn();
            unused = store.replace_images(conn, smaller, image.id, incoming.image_url).await?;
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
            self.drop_blobs(&unused).await;
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
            let faces = self.inner.store.image(image).await?.face_count.unsigned_abs() as usize;
            return Ok(Ingested::Stored { image, faces });
        }
        let reason = Reason::ExactDuplicate;
        self.commit_settlement(settlement, result(ImageState::Duplicate, Some(reason.clone()), image))
            .await?;
        Ok(Ingested::Duplicate { image, reason })
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

/// Returns `None` for a face without an embedding, because no search could find it.
pub(crate) fn new_face(
    face: &AnalyzedFace,
    model_id: i32,
    (crop, chip): (String, String),
) -> Option<NewFace> {
    let embedding = face.embedding.as_ref()?.as_slice().to_vec();
    let bbox = face.detection.bbox;
    let points = &face.detection.landmarks;
    Some(NewFace {
        id: Uuid::now_v7(),
        bbox: [bbox.x, bbox.y, bbox.width, bbox.height],
        det_score: face.detection.det_score,
        landmarks: std::array::from_fn(|i| if i % 2 == 0 { points[i / 2].x } else { points[i / 2].y }),
        quality: face.quality.as_ref().map(|q| serde_json::to_value(q).expect("a report is plain data")),
        quality_overall: face.quality.as_ref().map(|q| q.overall),
        quality_passed: face.quality.as_ref().map(|q| q.passed),
        embedding,
        model_id,
        chip_key: Some(chip),
        crop_key: Some(crop),
    })
}
