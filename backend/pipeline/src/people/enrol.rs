//! Enrols a face: stores an image that a caller sends and assigns one of its faces to a subject.
//! Crawled images are stored in `images::ingest`.

use crate::images::face_store::{FaceStore, IngestError, StoredBlobs, new_face};
use crate::images::ingest::{image_to_check, new_image};
use crate::{Analysis, AnalyzeOptions, AnalyzedFace, Analyzer};
use bytes::Bytes;
use inference::Priority;
use store::blobs::parts::NewFaceParts;
use store::faces::NewFace;
use store::{StoreError, retried};
use uuid::Uuid;
use vision::{Profile, QualityReport, Rect};

/// Minimum intersection over union of two boxes of one file that are the same face. The boxes can
/// differ if the detector had different settings when the face was stored.
const SAME_FACE_IOU: f32 = 0.5;
/// Quality reasons that do not apply to an image that is an aligned face crop.
const UNKNOWN_OF_ALIGNED: &[&str] = &["too_small", "turned_away"];

#[derive(Clone, Debug)]
pub struct Enrolment {
    /// The file.
    pub bytes: Bytes,
    /// The address from which the file was fetched, in any spelling.
    pub url: Option<String>,
    /// The final address after redirects.
    pub final_url: Option<String>,
    pub collection: Uuid,
    pub subject: Uuid,
    /// Index of the face; the best detection score is first.
    pub face_index: usize,
    /// Whether the image is an aligned crop of 112x112 pixels.
    pub is_aligned: bool,
    /// Options of the analysis. Their profile is used to assess the stored face.
    pub options: AnalyzeOptions,
    /// The profile that the face must meet to be enrolled.
    pub required_profile: Profile,
    /// Whether to enrol the face even if it does not meet the profile.
    pub force: bool,
    /// Whether to move the face if it belongs to another subject.
    pub allow_move: bool,
}

#[derive(Clone, Debug)]
pub struct EnrolledFace {
    pub face: Uuid,
    pub image: Uuid,
    /// Requirements that the face does not meet. Empty unless `force` was set.
    pub reasons: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The image cannot be analysed, or the store failed or rejected the change.
    #[error(transparent)]
    Ingest(#[from] IngestError),
    #[error("there is no face with index {index}; the image has {found} faces")]
    NoFace {
        index: usize,
        /// Number of faces found.
        found: usize,
    },
    /// The face has no embedding, so it cannot be compared with other faces.
    #[error("no embedding could be computed for this face")]
    NoEmbedding,
    #[error("the face does not meet the profile: {}", .0.join(", "))]
    Quality(Vec<String>),
}

/// Returns the requirements that a face does not meet. For a face without a quality report, this is
/// `not_judged`.
pub fn unmet_requirements(
    quality: Option<&QualityReport>,
    required: Profile,
    is_aligned: bool,
) -> Vec<String> {
    if required == Profile::Off {
        return Vec::new();
    }
    let Some(quality) = quality else { return vec!["not_judged".into()] };
    let mut reasons = quality.unmet_limits(required);
    reasons.retain(|reason| !is_aligned || !UNKNOWN_OF_ALIGNED.contains(&reason.as_str()));
    reasons
}

impl Enrolment {
    /// Analyses the image, stores it with all its faces if the collection does not contain the
    /// file, and assigns the face to the subject. Everything is one transaction. `analyzer` has the
    /// deadline of this caller.
    ///
    /// # Errors
    /// Fails with [`EnrolError`]. The store fails with `NotFound` if the subject does not exist,
    /// and with `Conflict` if the face belongs to another subject.
    pub async fn enrol(&self, faces: &FaceStore, analyzer: &Analyzer) -> Result<EnrolledFace, EnrolError> {
        let Self { bytes, options, is_aligned, .. } = self;
        let options = AnalyzeOptions { chips: true, ..options.clone() };
        let analysis = if *is_aligned {
            analyzer.analyze_aligned(bytes.clone(), &options, Priority::Interactive).await
        } else {
            analyzer.analyze(bytes.clone(), &options, Priority::Interactive).await
        }
        .map_err(IngestError::from)?;
        let found = analysis.faces.len();
        let index = self.face_index;
        let face = analysis.faces.get(index).ok_or(EnrolError::NoFace { index, found })?;
        if face.embedding.is_none() {
            return Err(EnrolError::NoEmbedding);
        }
        let reasons = unmet_requirements(face.quality.as_ref(), self.required_profile, *is_aligned);
        if !reasons.is_empty() && !self.force {
            return Err(EnrolError::Quality(reasons));
        }
        let blobs = faces.write_blobs(&analysis).await?;
        let stored = retried("enrol", || self.store(faces, &analysis, face, &blobs)).await?;
        let Some((face, image)) = stored else {
            faces.discard_blobs(&blobs).await;
            let reason = "the image, its address or a person in it was erased and must not be stored again; send an image that shows only this person";
            return Err(IngestError::from(StoreError::Conflict(reason.into())).into());
        };
        Ok(EnrolledFace { face, image, reasons })
    }

    /// Stores the image and assigns the chosen face to the subject. Returns the ids of the face and
    /// of the image, or `None` without a change if a suppression excludes the image.
    async fn store(
        &self,
        face_store: &FaceStore,
        analysis: &Analysis,
        chosen: &AnalyzedFace,
        blobs: &StoredBlobs,
    ) -> Result<Option<(Uuid, Uuid)>, IngestError> {
        let FaceStore { store, model_id, suppressor, .. } = face_store;
        let (collection, subject) = (self.collection, self.subject);
        let mut tx = store.begin().await?;
        store.suppressions().lock(tx.conn(), collection, false).await?;
        // An erasure normalises addresses in the same way.
        let [request_url, final_url] = [&self.url, &self.final_url].map(|url| {
            url.as_deref()
                .map(|url| crawler::urls::parse_address(url).map_or_else(|_| url.to_owned(), String::from))
        });
        let final_url = final_url.filter(|final_url| request_url.as_ref() != Some(final_url));
        let mut erased = false;
        for address in request_url.iter().chain(&final_url) {
            erased |= store.suppressions().suppresses_address(tx.conn(), collection, address).await?;
        }
        if erased
            || !suppressor
                .suppressed_parts(&mut tx, collection, None, &image_to_check(analysis))
                .await?
                .is_empty()
        {
            return Ok(None);
        }
        store.people().lock(tx.conn(), collection, &[subject]).await?;
        let image = new_image(analysis, blobs.image.clone());
        let (image, is_new, boxes) = match store.images().insert(tx.conn(), collection, &image).await? {
            Ok(()) => (image.id, true, Vec::new()),
            Err(existing) => (existing, false, store.people().boxes_of_image(tx.conn(), existing).await?),
        };
        let bbox = chosen.detection.bbox;
        let face = match find_same_face(&boxes, &bbox) {
            Some(face) => face,
            None => {
                let mut faces: Vec<NewFace> = Vec::new();
                let mut id = Uuid::nil();
                // If the image is already stored, only this face is missing. The others are stored,
                // or were deleted.
                let keep = |face| is_new || std::ptr::eq(face, chosen);
                let own_key = blobs.image.as_ref().map(|parts| parts.key.clone());
                for (face, blobs) in analysis.faces.iter().zip(&blobs.faces).filter(|(face, _)| keep(*face)) {
                    let Some(parts) = blobs.clone() else { continue };
                    let own_key = own_key.clone().filter(|_| !is_new);
                    let parts = NewFaceParts { own_key, ..parts };
                    let Some(new) = new_face(face, *model_id, parts) else { continue };
                    if std::ptr::eq(face, chosen) {
                        id = new.id;
                    }
                    faces.push(new);
                }
                store.faces().insert(tx.conn(), collection, image, &faces).await?;
                id
            }
        };
        store.people().enrol(tx.conn(), collection, subject, &[face], self.allow_move).await?;
        store
            .people()
            .add_enrolment_source(tx.conn(), image, subject, request_url.as_deref(), final_url.as_deref())
            .await?;
        face_store.keep_blobs(&mut tx, &[blobs]).await?;
        // Of the blob just written, a stored image uses only the crop and chip of the new face, or
        // nothing. The deletion after the commit removes the other files.
        let partly_unused = if is_new { Vec::new() } else { blobs.keys() };
        store.blobs().record_deletions(tx.conn(), partly_unused.clone()).await?;
        tx.commit().await?;
        face_store.delete_blobs(&partly_unused).await;
        Ok(Some((face, image)))
    }
}

/// Returns the stored face with the largest overlap, if it is the same face.
fn find_same_face(boxes: &[(Uuid, Vec<f32>)], bbox: &Rect) -> Option<Uuid> {
    let overlap = |stored: &[f32]| match *stored {
        [x, y, width, height] => bbox.iou(&Rect { x, y, width, height }),
        _ => 0.0,
    };
    let best = boxes.iter().map(|(id, stored)| (overlap(stored), *id)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= SAME_FACE_IOU).then_some(best.1)
}
