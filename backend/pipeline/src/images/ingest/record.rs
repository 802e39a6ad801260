//! Writes an image: its blobs, and then the image, its faces, its ledger row and the completion of
//! its job in one transaction.
use super::dedupe::Relation;
use super::{FetchedFrom, Incoming, Ingest, IngestError, Ingested, Inner, address_of, seen};
use crate::erasures::suppression;
use crate::images::ingest;
use crate::images::ingest::dedupe::Nearness;
use crate::images::ingest::dedupe::{ShownFaces, Versions};
use crate::{Analysis, AnalyzedFace, Dedupe, Thumbnails};
use bytes::Bytes;
use domain::{ImageState, Reason};
use futures::{StreamExt, TryStreamExt};
use queue::Claim;
use std::sync::Arc;
use store::crawls::pages::ImageUrlResult;
use store::faces::{CROP_MARGIN, NewFace};
use store::images::NewImage;
use store::{StoreError, Tx};
use uuid::Uuid;
use vision::{Frame, crop, encode};

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
            crate::domain::check_live(&self.inner.store, &mut tx, incoming.crawl, claim).await?;
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
        store.ledger().settle_image_url(tx.conn(), image_url, result).await?;
        if let (Some(answered), Some(_)) = (moved_to, image) {
            store.ledger().record_moved_image(tx.conn(), image_url, &answered).await?;
        }
        if state == ImageState::Suppressed {
            suppression::forget(store, &self.inner.queue, &mut tx, (image_url, claim)).await?;
        }
        if let (Some((collection, FetchedFrom { url, visit })), Some(image)) = (visit, image) {
            store.hosts().cache_image(tx.conn(), collection, &url, image, visit.as_ref()).await?;
        }
        tx.commit().await?;
        ingest::count_outcome("image", state.as_str(), reason.as_ref());
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
        let Inner { store, model_id, suppressor, .. } = &*self.inner;
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
        self.keep_blobs(&mut settlement.tx, blobs).await?;
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
            let faces = self.inner.store.images().get(image).await?.face_count.unsigned_abs() as usize;
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

/// Longer side of a thumbnail in pixels.
const THUMBNAIL_SIDE: u32 = 320;
const THUMBNAIL_QUALITY: u8 = 80;
const CROP_QUALITY: u8 = 90;
/// Number of blobs of one image that are written concurrently.
const WRITES_IN_FLIGHT: usize = 8;

pub(crate) struct StoredBlobs {
    /// `None` if the configuration wants no thumbnail of this image.
    pub(crate) thumbnail: Option<String>,
    /// Crop and chip of each face, in the order of the analysis. `None` for a face without an
    /// embedding, because it is not stored.
    pub(crate) faces: Vec<Option<(String, String)>>,
    /// All blobs with their keys, kept until the rows are written.
    written: Vec<(String, Encoded)>,
}

impl StoredBlobs {
    pub(crate) fn keys(&self) -> Vec<String> {
        self.written.iter().map(|(key, _)| key.clone()).collect()
    }
}

#[derive(Clone)]
struct Encoded {
    kind: &'static str,
    extension: &'static str,
    bytes: Bytes,
}

impl Encoded {
    fn crop(crop: &Frame) -> Self {
        Self { kind: "crops", extension: "jpg", bytes: encode::jpeg(crop, CROP_QUALITY).into() }
    }

    fn chip(chip: &Frame) -> Self {
        Self { kind: "chips", extension: "png", bytes: encode::png(chip).into() }
    }
}

impl Ingest {
    /// Encodes and writes the blobs of an analysis with [`chips`](crate::AnalyzeOptions::chips).
    /// The thumbnail has the orientation that a browser shows; crops and chips are upright.
    /// [`Thumbnails`](crate::Thumbnails) selects the images that have one.
    pub(crate) async fn write_blobs(&self, analysis: &Analysis) -> Result<StoredBlobs, IngestError> {
        let frame = analysis.frame.clone();
        let rotation = analysis.rotation;
        let chip = |face: &AnalyzedFace| face.chip.clone().expect("stored images are analysed with chips");
        let stored = |face: &&AnalyzedFace| face.embedding.is_some();
        let faces = analysis.faces.iter().filter(stored).map(|face| (face.detection.bbox, chip(face)));
        let faces: Vec<_> = faces.collect();
        let wants_thumbnail = match self.inner.analyzer.config().thumbnails {
            Thumbnails::All => true,
            Thumbnails::Faces => !faces.is_empty(),
            Thumbnails::None => false,
        };
        if !wants_thumbnail && faces.is_empty() {
            let faces = vec![None; analysis.faces.len()];
            return Ok(StoredBlobs { thumbnail: None, faces, written: Vec::new() });
        }
        let encoded = self
            .inner
            .analyzer
            .cpu()
            .run(move || {
                let mut all = Vec::new();
                if wants_thumbnail {
                    let bytes = encode::jpeg(&crop::thumbnail(&frame, THUMBNAIL_SIDE), THUMBNAIL_QUALITY);
                    all.push(Encoded { kind: "thumbnails", extension: "jpg", bytes: bytes.into() });
                }
                for (bbox, chip) in faces {
                    let mut face = crop::face_crop(&frame, &bbox, CROP_MARGIN);
                    if rotation != 0 {
                        face = crop::rotate(&face, rotation);
                    }
                    all.extend([Encoded::crop(&face), Encoded::chip(&chip)]);
                }
                all
            })
            .await?
            .output;
        let written = self.write_encoded(encoded).await?;
        let mut keys = written.iter().map(|(key, _)| key.clone());
        let thumbnail = if wants_thumbnail { keys.next() } else { None };
        let next = |face| Some(face).filter(stored).and_then(|_| keys.next().zip(keys.next()));
        let faces = analysis.faces.iter().map(next).collect();
        Ok(StoredBlobs { thumbnail, faces, written })
    }

    /// Encodes and writes pairs of crop and chip. Returns the keys in [`StoredBlobs::faces`].
    pub(crate) async fn write_faces(
        &self,
        faces: Vec<(Arc<Frame>, Arc<Frame>)>,
    ) -> Result<StoredBlobs, IngestError> {
        let encoding = self.inner.analyzer.cpu().run(move || {
            faces.iter().flat_map(|(crop, chip)| [Encoded::crop(crop), Encoded::chip(chip)]).collect()
        });
        let encoded: Vec<Encoded> = encoding.await?.output;
        let written = self.write_encoded(encoded).await?;
        let pairs = written.as_chunks::<2>().0.iter();
        let faces = pairs.map(|[(crop, _), (chip, _)]| Some((crop.clone(), chip.clone()))).collect();
        Ok(StoredBlobs { thumbnail: None, faces, written })
    }

    /// Writes the blobs, and returns them with their keys in the same order.
    async fn write_encoded(&self, encoded: Vec<Encoded>) -> Result<Vec<(String, Encoded)>, IngestError> {
        let keys = futures::stream::iter(encoded.clone())
            .map(|blob| self.inner.blobs.put(blob.kind, blob.extension, blob.bytes))
            .buffered(WRITES_IN_FLIGHT)
            .try_collect::<Vec<String>>()
            .await?;
        Ok(keys.into_iter().zip(encoded).collect())
    }

    /// Protects the blobs from deletion, in the transaction that writes their rows. Rewrites blobs
    /// that an erasure deleted in the meantime.
    pub(crate) async fn keep_blobs(&self, tx: &mut Tx, stored: &StoredBlobs) -> Result<(), IngestError> {
        let keys = stored.keys();
        let lost = self.inner.store.blobs().keep(tx.conn(), &keys).await?;
        for (key, blob) in &stored.written {
            if lost.contains(key) {
                self.inner.blobs.put(blob.kind, blob.extension, blob.bytes.clone()).await?;
            }
        }
        Ok(())
    }

    /// Deletes blobs that were written for rows that are not stored after all, unless another row
    /// refers to them. If this fails, a sweep deletes them later.
    pub(crate) async fn discard_blobs(&self, keys: Vec<String>) {
        let recorded: Result<(), StoreError> = async {
            let mut tx = self.inner.store.begin().await?;
            self.inner.store.blobs().record_deletions(tx.conn(), keys.clone()).await?;
            tx.commit().await
        }
        .await;
        match recorded {
            Ok(()) => self.drop_blobs(&keys).await,
            Err(error) => tracing::warn!(%error, blobs = keys.len(), "failed to record unused blobs"),
        }
    }

    /// Deletes blobs that a committed transaction recorded for deletion, unless a row refers to
    /// them again. If this fails, a sweep deletes them later.
    pub(crate) async fn drop_blobs(&self, keys: &[String]) {
        if let Err(error) = self.inner.store.blobs().delete(&self.inner.blobs, keys).await {
            tracing::warn!(%error, blobs = keys.len(), "failed to delete unused blobs");
        }
    }
}
