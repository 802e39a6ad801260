//! Suppresses erased images, addresses, faces and people. This module does not erase them. Images
//! are checked before they are decoded, before their faces are detected, and again in the
//! transaction that stores them. That transaction holds a lock that excludes erasures.
//!
//! The suppression of an image with faces is bound to these faces: a file other than the erased one
//! is suppressed only if it resembles the erased image and shows an erased face at its place. Each
//! face has a sketch for this comparison. Without a sketch, or with one that cannot be compared,
//! the place of the face decides.

use super::sketch::{Sketcher, differing_bits};
use super::{Incoming, Ingest, IngestError, Ingested};
use crate::Analysis;
use crate::domain::ChangeError;
use crate::domain::forget_jobs;
use domain::{ImageState, Reason};
use inference::Embedding;
use queue::{Claim, Queue};
use std::collections::HashSet;
use std::sync::Arc;
use store::crawls::pages::ImageUrlResult;
use store::erasures::suppressions::{Sketch, SuppressedPicture, Suppression};
use store::erasures::{EmbeddedFace, Plan};
use store::{Store, StoreError, Tx};
use uuid::Uuid;
use vision::{PerceptualHashes, Rect, crop};

/// Maximum number of embeddings in memory at a time.
const FACES_AT_A_TIME: usize = 1_000;
/// Width of the painted margin around a suppressed face, as a fraction of the larger box side.
const PAINT_MARGIN: f32 = 0.3;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SuppressedParts {
    /// The reason, if the whole image is suppressed.
    pub(crate) whole: Option<Reason>,
    /// Indices of the suppressed faces in the analysis.
    pub(crate) faces: Vec<usize>,
}

/// The addresses of an image: that of its ledger row, and the one after redirects.
#[derive(Clone, Copy)]
pub(crate) struct ImageAddress<'a> {
    /// The row of the image ledger.
    row: Uuid,
    /// The final address of the fetch, if it differs from the row's address.
    moved_to: Option<&'a str>,
}

impl<'a> ImageAddress<'a> {
    pub(crate) fn of(incoming: &'a Incoming) -> Self {
        Self { row: incoming.image_url, moved_to: incoming.moved_to.as_deref() }
    }
}

impl SuppressedParts {
    pub(crate) fn is_clear(&self) -> bool {
        *self == Self::default()
    }
}

impl Ingest {
    /// Returns `true` if the address of a ledger row is suppressed. The crawl does not fetch such
    /// an address.
    pub async fn refuses_address(&self, collection: Uuid, image_url: Uuid) -> Result<bool, StoreError> {
        let store = &self.inner.store;
        store.suppresses_url(store.pool(), collection, image_url, None).await
    }

    pub(crate) async fn suppresses(&self, collection: Uuid) -> Result<bool, StoreError> {
        self.inner.store.suppresses(self.inner.store.pool(), collection).await
    }

    /// Returns the reason if the whole image is suppressed. Checks its address, its bytes, and
    /// its hashes if they are known.
    pub(crate) async fn suppression_reason(
        &self,
        incoming: &Incoming,
        sha256: &[u8; 32],
        hashes: Option<&PerceptualHashes>,
    ) -> Result<Option<Reason>, StoreError> {
        let store = &self.inner.store;
        let mut tx = store.begin().await?;
        let address = ImageAddress::of(incoming);
        if store.suppresses_url(tx.conn(), incoming.collection, address.row, address.moved_to).await? {
            return Ok(Some(Reason::SuppressedUrl));
        }
        let pictures = self.suppressed(&mut tx, incoming.collection, sha256, hashes).await?;
        Ok(pictures.iter().any(suppresses_unseen).then_some(Reason::SuppressedImage))
    }

    /// Returns which faces of an analysed image are suppressed, or whether the whole image is.
    /// Checks the address too if `address` is given.
    pub(crate) async fn suppressed_parts(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        address: Option<ImageAddress<'_>>,
        analysis: &Analysis,
    ) -> Result<SuppressedParts, StoreError> {
        let store = &self.inner.store;
        let mut suppressed = SuppressedParts::default();
        if !store.suppresses(tx.conn(), collection).await? {
            return Ok(suppressed);
        }
        if let Some(ImageAddress { row, moved_to }) = address
            && store.suppresses_url(tx.conn(), collection, row, moved_to).await?
        {
            suppressed.whole = Some(Reason::SuppressedUrl);
            return Ok(suppressed);
        }
        let pictures = self.suppressed(tx, collection, &analysis.sha256, Some(&analysis.hashes)).await?;
        if pictures.iter().any(suppresses_unseen) {
            suppressed.whole = Some(Reason::SuppressedImage);
            return Ok(suppressed);
        }
        let embeddings: Vec<_> = analysis.faces.iter().map(|face| face.embedding.as_ref()).collect();
        let known = self.suppressed_people(tx, collection, &embeddings).await?;
        let is_bound = pictures.iter().any(|picture| picture.sketch.is_some());
        let sketches = if is_bound { self.sketches(&embeddings) } else { vec![None; embeddings.len()] };
        let mut person = false;
        for (at, face) in analysis.faces.iter().enumerate() {
            let is_erased = |picture: &SuppressedPicture| {
                is_region_of(picture, analysis, &face.detection.bbox)
                    && self.may_show(picture, sketches[at].as_ref())
            };
            if known[at] || pictures.iter().any(is_erased) {
                person |= known[at];
                suppressed.faces.push(at);
            }
        }
        // The image resembles one that was erased as a whole. It is stored only for a face that is
        // known to be another one.
        let is_left = |at: usize| embeddings[at].is_some() && !suppressed.faces.contains(&at);
        if pictures.iter().any(SuppressedPicture::is_whole) && !(0..embeddings.len()).any(is_left) {
            suppressed.whole = Some(Reason::SuppressedImage);
        } else if !suppressed.faces.is_empty() && suppressed.faces.len() == analysis.faces.len() {
            suppressed.whole = Some(if person { Reason::SuppressedPerson } else { Reason::SuppressedFace });
        }
        Ok(suppressed)
    }

    /// Returns `false` if a face at the place of the suppressed one is known to be another person.
    /// `sketch` is that of the face, if it has one.
    fn may_show(&self, picture: &SuppressedPicture, sketch: Option<&Sketch>) -> bool {
        let (Some(bits), Some(region), Some(sha256)) = (&picture.sketch, &picture.region, &picture.sha256)
        else {
            return true;
        };
        let (Some(sketch), Some(sketcher)) = (sketch, &self.inner.sketcher) else { return true };
        let is_comparable =
            picture.sketch_key.as_ref() == Some(&sketch.key) && picture.model_id == Some(sketch.model_id);
        let &[x, y, width, height] = region.as_slice() else { return true };
        if picture.same_file || !is_comparable {
            return true;
        }
        let masked = sketcher.masked(sketch, sha256, [x, y, width, height]);
        let max_bits = super::max_differing_bits(self.inner.analyzer.engine().embedder());
        differing_bits(&masked.bits, bits) <= max_bits as usize
    }

    /// Inserts the suppressions of the images, videos and faces of a plan, and `others`. Returns
    /// their number. Call it before the plan is carried out, because it reads the embeddings of the
    /// faces. Without a secret for sketches, the suppressions of images are not bound to the faces.
    pub async fn suppress_planned(
        &self,
        tx: &mut Tx,
        (collection, erasure): (Uuid, Uuid),
        plan: &Plan,
        mut others: Vec<Suppression>,
    ) -> Result<u64, StoreError> {
        let store = &self.inner.store;
        let (mut count, mut bound) = (0, HashSet::new());
        if let Some(sketcher) = &self.inner.sketcher {
            let whole: HashSet<Uuid> = plan.images.iter().copied().collect();
            for planned in plan.faces.chunks(FACES_AT_A_TIME) {
                let ids: Vec<Uuid> = planned.iter().map(|face| face.id).collect();
                let mut faces = store.planned_embeddings(tx.conn(), &ids).await?;
                faces.retain(|face| face.hashes.is_some());
                bound.extend(faces.iter().map(|face| face.sha256.clone()));
                let whole: Vec<bool> = faces.iter().map(|face| whole.contains(&face.image_id)).collect();
                let sketcher = sketcher.clone();
                let sketched = tokio::task::spawn_blocking(move || {
                    let faces = faces.into_iter().zip(whole);
                    faces.filter_map(|(face, whole)| picture_face(&sketcher, face, whole)).collect::<Vec<_>>()
                });
                let suppressions = sketched.await.expect("sketching does not panic");
                count += store.suppress(tx.conn(), collection, erasure, &suppressions).await?;
            }
        }
        let is_bound = |known: &&Suppression| match known {
            Suppression::Picture { sha256, .. } => bound.contains(sha256),
            _ => false,
        };
        others.extend(plan.pictures.iter().filter(|known| !is_bound(known)).cloned());
        Ok(count + store.suppress(tx.conn(), collection, erasure, &others).await?)
    }

    pub(crate) async fn settle_suppressed(
        &self,
        incoming: &Incoming,
        claim: Option<Claim>,
        reason: Reason,
    ) -> Result<Ingested, IngestError> {
        let detail = (reason == Reason::SuppressedUrl).then_some("the image at this address was erased");
        let result = ImageUrlResult {
            state: ImageState::Suppressed,
            reason: Some(reason.clone()),
            detail,
            image: None,
        };
        let settlement = self.begin_settlement(incoming, claim).await?;
        self.commit_settlement(settlement, result).await?;
        Ok(Ingested::Suppressed { reason })
    }

    /// Removes faces from the analysis and paints over their regions. Thumbnail and crops are cut
    /// from the painted frame. The chips of the other faces have already been cut and are painted
    /// separately.
    pub(crate) async fn without_faces(
        &self,
        mut analysis: Analysis,
        faces: &[usize],
    ) -> Result<Analysis, IngestError> {
        if faces.is_empty() {
            return Ok(analysis);
        }
        let boxes: Vec<Rect> = faces.iter().map(|at| analysis.faces[*at].detection.bbox).collect();
        let mut at = 0;
        analysis.faces.retain(|_| {
            at += 1;
            !faces.contains(&(at - 1))
        });
        // This is the only reference to the frame, so that no copy is made.
        let mut frame = Arc::unwrap_or_clone(analysis.frame);
        let mut left = std::mem::take(&mut analysis.faces);
        let painted = self.inner.analyzer.cpu().run(move || {
            boxes.iter().for_each(|bbox| crop::paint_over(&mut frame, bbox, PAINT_MARGIN));
            for face in &mut left {
                let (detection, chip) = (&face.detection, face.chip.take());
                face.chip = chip.map(|chip| {
                    let mut chip = Arc::unwrap_or_clone(chip);
                    let (landmarks, own) = (&detection.landmarks, &detection.bbox);
                    vision::cover_in_chip(&mut chip, landmarks, own, &boxes, PAINT_MARGIN);
                    Arc::new(chip)
                });
            }
            (frame, left)
        });
        let (frame, left) = painted.await?.output;
        (analysis.frame, analysis.faces) = (Arc::new(frame), left);
        metrics::counter!("facecrawl_faces_suppressed_total").increment(faces.len() as u64);
        Ok(analysis)
    }

    /// Returns the sketch of a face, or `None` if this service has no secret for sketches.
    pub fn sketch(&self, model_id: i32, embedding: &[f32]) -> Option<Sketch> {
        Some(self.inner.sketcher.as_ref()?.sketch(model_id, embedding))
    }

    /// Returns the sketch of each face. It is `None` for a face without an embedding, and for all
    /// faces if this service has no secret for sketches.
    fn sketches(&self, faces: &[Option<&Embedding>]) -> Vec<Option<Sketch>> {
        let sketch = |face: &Option<&Embedding>| self.sketch(self.inner.model_id, face.as_ref()?.as_slice());
        faces.iter().map(sketch).collect()
    }

    /// Returns the suppressions of whole images or single faces that match this image.
    async fn suppressed(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        sha256: &[u8; 32],
        hashes: Option<&PerceptualHashes>,
    ) -> Result<Vec<SuppressedPicture>, StoreError> {
        let known = hashes.map(|hashes| (hashes.p.cast_signed(), hashes.d.cast_signed()));
        let mut pictures = self.inner.store.suppressed_pictures(tx.conn(), collection, sha256, known).await?;
        pictures.retain(|picture| {
            picture.same_file
                || hashes.is_some_and(|hashes| {
                    hashes.is_near(&PerceptualHashes {
                        p: picture.phash.cast_unsigned(),
                        d: picture.dhash.cast_unsigned(),
                        a: picture.ahash.cast_unsigned(),
                    })
                })
        });
        Ok(pictures)
    }

    /// Returns, for each face, whether it shows a suppressed person.
    pub(crate) async fn suppressed_people(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        faces: &[Option<&Embedding>],
    ) -> Result<Vec<bool>, StoreError> {
        let mut known = vec![false; faces.len()];
        let sketches = self.sketches(faces).into_iter().enumerate();
        let (indices, sketches): (Vec<usize>, Vec<Sketch>) =
            sketches.filter_map(|(at, sketch)| Some((at, sketch?))).unzip();
        let max_bits = super::max_differing_bits(self.inner.analyzer.engine().embedder());
        let found = self.inner.store.suppressed_sketches(tx.conn(), collection, &sketches, max_bits).await?;
        for (at, is_known) in indices.into_iter().zip(found) {
            known[at] = is_known;
        }
        Ok(known)
    }
}

/// Removes the records of an image whose row was settled as [`STATE`]: its address, its traces on
/// pages that contain it, and the records of its jobs. These are its own job and the jobs of pages
/// that turned out to be the image.
pub(crate) async fn forget(
    store: &Store,
    queue: &Queue,
    tx: &mut Tx,
    (row, claim): (Uuid, Option<Claim>),
) -> Result<(), ChangeError> {
    let jobs = store.erase_suppressed_image(tx.conn(), row).await?;
    forget_jobs(queue, tx, &jobs).await?;
    if let Some(claim) = claim {
        queue.redact(tx.conn(), &[claim.id]).await?;
    }
    Ok(())
}

/// Returns `true` if the face is the one that was erased from this image, that is, if its centre
/// lies in the erased box.
fn is_region_of(picture: &SuppressedPicture, analysis: &Analysis, face: &Rect) -> bool {
    let Some(&[x, y, width, height]) = picture.region.as_deref() else { return false };
    let across = (face.x + face.width / 2.0) / analysis.frame.width() as f32;
    let down = (face.y + face.height / 2.0) / analysis.frame.height() as f32;
    (x..=x + width).contains(&across) && (y..=y + height).contains(&down)
}

/// Returns `true` if the suppression applies to the whole image, whomever it shows: if this is the
/// erased file, or resembles an erased image whose faces are unknown.
fn suppresses_unseen(picture: &SuppressedPicture) -> bool {
    picture.is_whole() && (picture.same_file || picture.sketch.is_none())
}

/// Returns the suppression of a face; `None` for a face in the frame of a video.
fn picture_face(sketcher: &Sketcher, face: EmbeddedFace, whole_image: bool) -> Option<Suppression> {
    let EmbeddedFace { model_id, embedding, region, sha256, hashes, .. } = face;
    let [phash, dhash, ahash] = hashes?;
    let sketch = sketcher.masked(&sketcher.sketch(model_id, &embedding), &sha256, region);
    Some(Suppression::PictureFace { sha256, phash, dhash, ahash, region, sketch, whole_image })
}
