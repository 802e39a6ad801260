//! Checks whether incoming content is suppressed, and inserts the suppressions of an erasure. The
//! statements are in the store.
//!
//! An image is checked before it is decoded, before its faces are detected, and again in the
//! transaction that stores it. That transaction holds a lock that excludes erasures.
//!
//! The suppression of an image with faces is bound to these faces: a file other than the erased one
//! is suppressed only if it resembles the erased image and shows an erased face at its place. Each
//! face has a sketch for this comparison. Without a sketch, or with one that cannot be compared,
//! the place of the face decides.
use super::sketch::{Sketcher, differing_bits, max_differing_bits};
use crate::domain::{ChangeError, forget_jobs};
use domain::Reason;
use inference::{EmbedderInfo, Embedding};
use queue::{Claim, Queue};
use std::collections::HashSet;
use store::erasures::suppressions::{Sketch, SuppressedImage, Suppression};
use store::erasures::{EmbeddedFace, Plan};
use store::{Store, StoreError, Tx};
use uuid::Uuid;
use vision::{PerceptualHashes, Rect};

/// Maximum number of embeddings in memory at a time.
const FACES_AT_A_TIME: usize = 1_000;

/// An image whose faces were detected.
pub(crate) struct ImageToCheck<'a> {
    pub(crate) sha256: &'a [u8; 32],
    pub(crate) hashes: &'a PerceptualHashes,
    /// Width and height in pixels.
    pub(crate) size: (u32, u32),
    /// The box of each face in pixels, and its embedding, if it has one.
    pub(crate) faces: Vec<(Rect, Option<&'a Embedding>)>,
}

/// The addresses of an image: that of its ledger row, and the one after redirects.
#[derive(Clone, Copy)]
pub(crate) struct ImageAddress<'a> {
    /// The row of the image ledger.
    pub(crate) row: Uuid,
    /// The final address of the fetch, if it differs from the row's address.
    pub(crate) moved_to: Option<&'a str>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SuppressedParts {
    /// The reason, if the whole image is suppressed.
    pub(crate) whole: Option<Reason>,
    /// Indices of the suppressed faces in the analysis.
    pub(crate) faces: Vec<usize>,
}

impl SuppressedParts {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Checks content for suppressions. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct Suppressor {
    store: Store,
    /// The registered embedding model.
    model_id: i32,
    /// See [`max_differing_bits`].
    max_bits: u32,
    sketcher: Option<Sketcher>,
}

impl Suppressor {
    pub(crate) fn new(store: Store, model_id: i32, embedder: &EmbedderInfo) -> Self {
        Self { store, model_id, max_bits: max_differing_bits(embedder), sketcher: None }
    }

    /// Returns a suppressor that also recognises people, by sketches.
    pub(crate) fn with_sketcher(&self, sketcher: Sketcher) -> Self {
        Self { sketcher: Some(sketcher), ..self.clone() }
    }

    /// Returns `true` if the collection has a suppression.
    pub(crate) async fn has_suppressions(&self, collection: Uuid) -> Result<bool, StoreError> {
        self.store.suppressions().suppresses(self.store.pool(), collection).await
    }

    /// Returns the reason if the whole image is suppressed. Checks its address, its bytes, and
    /// its hashes if they are known.
    pub(crate) async fn suppression_reason(
        &self,
        collection: Uuid,
        address: ImageAddress<'_>,
        sha256: &[u8; 32],
        hashes: Option<&PerceptualHashes>,
    ) -> Result<Option<Reason>, StoreError> {
        let mut tx = self.store.begin().await?;
        let (reason, _) = self.match_image(&mut tx, collection, Some(address), sha256, hashes).await?;
        Ok(reason)
    }

    /// Returns the suppressed faces of an image, and the reason if the whole image is suppressed.
    /// Checks the address too if `address` is given.
    pub(crate) async fn suppressed_parts(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        address: Option<ImageAddress<'_>>,
        image: &ImageToCheck<'_>,
    ) -> Result<SuppressedParts, StoreError> {
        let store = &self.store;
        let mut suppressed = SuppressedParts::default();
        if !store.suppressions().suppresses(tx.conn(), collection).await? {
            return Ok(suppressed);
        }
        let erased;
        (suppressed.whole, erased) =
            self.match_image(tx, collection, address, image.sha256, Some(image.hashes)).await?;
        if suppressed.whole.is_some() {
            return Ok(suppressed);
        }
        let embeddings: Vec<_> = image.faces.iter().map(|(_, embedding)| *embedding).collect();
        let is_person_suppressed = self.suppressed_people(tx, collection, &embeddings).await?;
        let is_bound = erased.iter().any(|erased| erased.sketch.is_some());
        let sketches = if is_bound { self.sketches(&embeddings) } else { vec![None; embeddings.len()] };
        let mut has_suppressed_person = false;
        for (at, (bbox, _)) in image.faces.iter().enumerate() {
            let is_erased = |erased: &SuppressedImage| {
                let is_inside = |region: &[f32]| is_centre_inside(bbox, region, image.size);
                erased.region.as_deref().is_some_and(is_inside)
                    && self.may_be_erased_face(erased, sketches[at].as_ref())
            };
            if is_person_suppressed[at] || erased.iter().any(is_erased) {
                has_suppressed_person |= is_person_suppressed[at];
                suppressed.faces.push(at);
            }
        }
        // If the image resembles a completely erased one, it is stored only if it has a face that
        // is certainly another one.
        let is_other = |at: usize| embeddings[at].is_some() && !suppressed.faces.contains(&at);
        if erased.iter().any(SuppressedImage::is_whole) && !(0..embeddings.len()).any(is_other) {
            suppressed.whole = Some(Reason::SuppressedImage);
        } else if !suppressed.faces.is_empty() && suppressed.faces.len() == image.faces.len() {
            suppressed.whole =
                Some(if has_suppressed_person { Reason::SuppressedPerson } else { Reason::SuppressedFace });
        }
        Ok(suppressed)
    }

    /// Returns, for each face, whether it shows a suppressed person.
    pub(crate) async fn suppressed_people(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        faces: &[Option<&Embedding>],
    ) -> Result<Vec<bool>, StoreError> {
        let mut are_suppressed = vec![false; faces.len()];
        let sketches = self.sketches(faces).into_iter().enumerate();
        let (indices, sketches): (Vec<usize>, Vec<Sketch>) =
            sketches.filter_map(|(at, sketch)| Some((at, sketch?))).unzip();
        let results = self
            .store
            .suppressions()
            .suppressed_sketches(tx.conn(), collection, &sketches, self.max_bits)
            .await?;
        for (at, is_suppressed) in indices.into_iter().zip(results) {
            are_suppressed[at] = is_suppressed;
        }
        Ok(are_suppressed)
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
        let store = &self.store;
        let (mut count, mut bound_files) = (0, HashSet::new());
        if let Some(sketcher) = &self.sketcher {
            let whole: HashSet<Uuid> = plan.images.iter().copied().collect();
            for planned in plan.faces.chunks(FACES_AT_A_TIME) {
                let ids: Vec<Uuid> = planned.iter().map(|face| face.id).collect();
                let mut faces = store.erasures().planned_embeddings(tx.conn(), &ids).await?;
                faces.retain(|face| face.hashes.is_some());
                bound_files.extend(faces.iter().map(|face| face.sha256.clone()));
                let whole: Vec<bool> = faces.iter().map(|face| whole.contains(&face.image_id)).collect();
                let sketcher = sketcher.clone();
                let sketching = tokio::task::spawn_blocking(move || {
                    let faces = faces.into_iter().zip(whole);
                    faces
                        .filter_map(|(face, whole)| face_suppression(&sketcher, face, whole))
                        .collect::<Vec<_>>()
                });
                let suppressions = sketching.await.expect("sketching does not panic");
                count += store.suppressions().suppress(tx.conn(), collection, erasure, &suppressions).await?;
            }
        }
        let is_bound = |suppression: &&Suppression| match suppression {
            Suppression::Image { sha256, .. } => bound_files.contains(sha256),
            _ => false,
        };
        others.extend(plan.suppressions.iter().filter(|suppression| !is_bound(suppression)).cloned());
        Ok(count + store.suppressions().suppress(tx.conn(), collection, erasure, &others).await?)
    }

    /// Returns the sketch of a face, or `None` if this service has no secret for sketches.
    pub fn sketch(&self, model_id: i32, embedding: &[f32]) -> Option<Sketch> {
        Some(self.sketcher.as_ref()?.sketch(model_id, embedding))
    }

    /// Returns the sketch of each face. It is `None` for a face without an embedding, and for all
    /// faces if this service has no secret for sketches.
    fn sketches(&self, faces: &[Option<&Embedding>]) -> Vec<Option<Sketch>> {
        let sketch = |face: &Option<&Embedding>| self.sketch(self.model_id, face.as_ref()?.as_slice());
        faces.iter().map(sketch).collect()
    }

    /// Returns `false` if a face at the place of the erased one is certainly another person.
    /// `sketch` is the sketch of the face at this place, if it has one.
    fn may_be_erased_face(&self, image: &SuppressedImage, sketch: Option<&Sketch>) -> bool {
        let (Some(bits), Some(region), Some(sha256)) = (&image.sketch, &image.region, &image.sha256) else {
            return true;
        };
        let (Some(sketch), Some(sketcher)) = (sketch, &self.sketcher) else { return true };
        let is_comparable =
            image.sketch_key.as_ref() == Some(&sketch.key) && image.model_id == Some(sketch.model_id);
        let &[x, y, width, height] = region.as_slice() else { return true };
        if image.is_same_file || !is_comparable {
            return true;
        }
        let masked = sketcher.masked(sketch, sha256, [x, y, width, height]);
        differing_bits(&masked.bits, bits) <= self.max_bits as usize
    }

    /// Returns the reason if the image is suppressed regardless of its faces, and the suppressions
    /// of whole images or single faces that match it.
    async fn match_image(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        address: Option<ImageAddress<'_>>,
        sha256: &[u8; 32],
        hashes: Option<&PerceptualHashes>,
    ) -> Result<(Option<Reason>, Vec<SuppressedImage>), StoreError> {
        let suppressions = self.store.suppressions();
        if let Some(ImageAddress { row, moved_to }) = address
            && suppressions.suppresses_url(tx.conn(), collection, row, moved_to).await?
        {
            return Ok((Some(Reason::SuppressedUrl), Vec::new()));
        }
        let phash_and_dhash = hashes.map(|hashes| (hashes.p.cast_signed(), hashes.d.cast_signed()));
        let mut images =
            suppressions.suppressed_images(tx.conn(), collection, sha256, phash_and_dhash).await?;
        images.retain(|image| {
            image.is_same_file
                || hashes.is_some_and(|hashes| {
                    hashes.is_near(&PerceptualHashes {
                        p: image.phash.cast_unsigned(),
                        d: image.dhash.cast_unsigned(),
                        a: image.ahash.cast_unsigned(),
                    })
                })
        });
        let reason = images.iter().any(applies_to_any_faces).then_some(Reason::SuppressedImage);
        Ok((reason, images))
    }
}

/// Removes the records of an image whose row was settled as suppressed: its address, its traces on
/// pages that contain it, and the records of its jobs. These are its own job and the jobs of pages
/// that turned out to be the image.
pub(crate) async fn erase_suppressed_image(
    store: &Store,
    queue: &Queue,
    tx: &mut Tx,
    (row, claim): (Uuid, Option<Claim>),
) -> Result<(), ChangeError> {
    let jobs = store.erasures().erase_suppressed_image(tx.conn(), row).await?;
    forget_jobs(queue, tx, &jobs).await?;
    if let Some(claim) = claim {
        queue.jobs().redact(tx.conn(), &[claim.id]).await?;
    }
    Ok(())
}

/// Returns `true` if the centre of the box is in the region: x, y, width and height as fractions of
/// an image of `size` (width, height).
pub(crate) fn is_centre_inside(bbox: &Rect, region: &[f32], size: (u32, u32)) -> bool {
    let &[x, y, width, height] = region else { return false };
    let centre_x = (bbox.x + bbox.width / 2.0) / size.0.max(1) as f32;
    let centre_y = (bbox.y + bbox.height / 2.0) / size.1.max(1) as f32;
    (x..=x + width).contains(&centre_x) && (y..=y + height).contains(&centre_y)
}

/// Returns `true` if the suppression applies to the whole image, regardless of its faces. This is
/// the erased file, or it resembles an erased image whose faces are unknown.
fn applies_to_any_faces(image: &SuppressedImage) -> bool {
    image.is_whole() && (image.is_same_file || image.sketch.is_none())
}

/// Returns the suppression of a face, or `None` for a face in the frame of a video.
fn face_suppression(sketcher: &Sketcher, face: EmbeddedFace, whole_image: bool) -> Option<Suppression> {
    let EmbeddedFace { model_id, embedding, region, sha256, hashes, .. } = face;
    let [phash, dhash, ahash] = hashes?;
    let sketch = sketcher.masked(&sketcher.sketch(model_id, &embedding), &sha256, region);
    Some(Suppression::ImageFace { sha256, phash, dhash, ahash, region, sketch, whole_image })
}
