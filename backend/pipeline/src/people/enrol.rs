//! Enrols a face: stores an image that a caller sends and assigns one of its faces to a subject.
//! `people::import` enrols many files with the same transaction. Crawled images are stored in
//! `images::ingest`.

use crate::erasures::suppression::ImageToCheck;
use crate::images::face_store::{EncodedImage, FaceStore, IngestError, StoredBlobs, new_face};
use crate::images::ingest::new_image;
use crate::{Analysis, AnalyzeOptions, AnalyzedFace, Analyzer};
use bytes::Bytes;
use domain::Reason;
use inference::Priority;
use store::blobs::parts::NewFaceParts;
use store::faces::NewFace;
use store::images::NewImage;
use store::people::NewSubject;
use store::people::names::EnrolledFace as StoredFace;
use store::{Store, StoreError, Tx, retried};
use uuid::Uuid;
use vision::{PerceptualHashes, Profile, QualityReport, Rect};

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
    pub person: EnrolPerson,
    /// Index of the face; the best detection score is first.
    pub face_index: usize,
    /// Whether an image with more than one face is rejected.
    pub requires_single_face: bool,
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

/// The person to enrol.
#[derive(Clone, Debug)]
pub enum EnrolPerson {
    /// An existing subject.
    Subject(Uuid),
    /// The subject with this name. It is created if there is none.
    Named(String),
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
    #[error("the image has {0} faces; it must show only one")]
    SeveralFaces(usize),
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
        if self.requires_single_face && found > 1 {
            return Err(EnrolError::SeveralFaces(found));
        }
        let index = self.face_index;
        let face = analysis.faces.get(index).ok_or(EnrolError::NoFace { index, found })?;
        if face.embedding.is_none() {
            return Err(EnrolError::NoEmbedding);
        }
        let reasons = unmet_requirements(face.quality.as_ref(), self.required_profile, *is_aligned);
        if !reasons.is_empty() && !self.force {
            return Err(EnrolError::Quality(reasons));
        }
        let target = Target {
            collection: self.collection,
            person: match &self.person {
                EnrolPerson::Subject(subject) => Person::Subject(*subject),
                EnrolPerson::Named(name) => Person::Named(name),
            },
            url: self.url.as_deref(),
            final_url: self.final_url.as_deref(),
            face_index: index,
            allow_move: self.allow_move,
        };
        match AnalyzedFile::new(faces, analysis).await?.enrol(faces, &target).await? {
            Stored::Enrolled { face, image, .. } => Ok(EnrolledFace { face, image, reasons }),
            Stored::Suppressed(_) => Err(conflict(
                "the image, its address or a person in it was erased and must not be stored again; send an image that shows only this person",
            )),
            Stored::AmbiguousName => Err(conflict(
                "several people of this collection have this name; enrol the face by the id of the subject",
            )),
            Stored::OtherPerson(_) => {
                Err(conflict("a face of this file belongs to another person; send another image"))
            }
        }
    }
}

fn conflict(reason: &str) -> EnrolError {
    IngestError::from(StoreError::Conflict(reason.into())).into()
}

/// The person to whom a face is assigned.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Person<'a> {
    /// An existing subject.
    Subject(Uuid),
    /// The subject with this name. It is created if there is none.
    Named(&'a str),
}

/// Where a face of an analysed file is enrolled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) collection: Uuid,
    pub(crate) person: Person<'a>,
    /// The address from which the file was fetched, in any spelling.
    pub(crate) url: Option<&'a str>,
    /// The final address after redirects.
    pub(crate) final_url: Option<&'a str>,
    /// Index of the face in the analysis.
    pub(crate) face_index: usize,
    /// Whether to move the face if it belongs to another subject.
    pub(crate) allow_move: bool,
}

/// The result of the transaction that enrols a face.
#[derive(Debug)]
pub(crate) enum Stored {
    Enrolled {
        face: Uuid,
        image: Uuid,
        subject: Uuid,
        /// Whether the transaction created the subject.
        is_new_subject: bool,
    },
    /// A suppression excludes the image. Nothing was changed.
    Suppressed(Reason),
    /// Several subjects have the name. Nothing was changed.
    AmbiguousName,
    /// A face of the file belongs to another enrolled person than the named one. Nothing was
    /// changed.
    OtherPerson(StoredFace),
}

/// An analysed file without its pixels: its rows, and the encoded files. It holds no memory of the
/// budget of decoded images, so it may wait for its turn to be stored.
pub(crate) struct AnalyzedFile {
    image: NewImage,
    hashes: PerceptualHashes,
    /// Width and height in pixels.
    size: (u32, u32),
    /// The faces, best score first, without chips.
    pub(crate) faces: Vec<AnalyzedFace>,
    encoded: EncodedImage,
}

impl AnalyzedFile {
    /// Encodes the files of an analysis with chips, and releases its pixels.
    ///
    /// # Errors
    /// Fails with `IngestError::Analyze`.
    pub(crate) async fn new(faces: &FaceStore, analysis: Analysis) -> Result<Self, IngestError> {
        let encoded = faces.encode_blobs(&analysis).await?;
        Ok(Self { encoded, ..Self::without_files(&analysis) })
    }

    /// Returns a file that can be checked, but not stored.
    pub(crate) fn without_files(analysis: &Analysis) -> Self {
        let mut faces = analysis.faces.clone();
        faces.iter_mut().for_each(|face| face.chip = None);
        Self {
            image: new_image(analysis, None),
            hashes: analysis.hashes,
            size: (analysis.frame.width(), analysis.frame.height()),
            faces,
            encoded: EncodedImage::default(),
        }
    }

    pub(crate) fn sha256(&self) -> &[u8; 32] {
        &self.image.sha256
    }

    /// Returns the facts that suppressions are compared with.
    pub(crate) fn to_check(&self) -> ImageToCheck<'_> {
        ImageToCheck {
            sha256: &self.image.sha256,
            hashes: &self.hashes,
            size: self.size,
            faces: self.faces.iter().map(|face| (face.detection.bbox, face.embedding.as_ref())).collect(),
        }
    }

    /// Stores the file with all its faces if the collection does not contain it, and assigns the
    /// chosen face. Everything is one transaction.
    ///
    /// # Errors
    /// Fails with [`IngestError`]. The store fails with `NotFound` if the subject does not exist,
    /// and with `Conflict` if the face belongs to another subject.
    pub(crate) async fn enrol(
        mut self,
        faces: &FaceStore,
        target: &Target<'_>,
    ) -> Result<Stored, IngestError> {
        let blobs = faces.put_blobs(std::mem::take(&mut self.encoded)).await?;
        self.image.parts = blobs.image.clone();
        let stored = retried("enrol", || self.store(faces, &blobs, target)).await?;
        if !matches!(stored, Stored::Enrolled { .. }) {
            faces.discard_blobs(&blobs).await;
        }
        Ok(stored)
    }

    async fn store(
        &self,
        face_store: &FaceStore,
        blobs: &StoredBlobs,
        target: &Target<'_>,
    ) -> Result<Stored, IngestError> {
        let FaceStore { store, model_id, suppressor, .. } = face_store;
        let collection = target.collection;
        let mut tx = store.begin().await?;
        store.suppressions().lock(tx.conn(), collection, false).await?;
        // An erasure normalises addresses in the same way.
        let [request_url, final_url] = [target.url, target.final_url].map(|url| {
            url.map(|url| crawler::urls::parse_address(url).map_or_else(|_| url.to_owned(), String::from))
        });
        let final_url = final_url.filter(|final_url| request_url.as_ref() != Some(final_url));
        for address in request_url.iter().chain(&final_url) {
            if store.suppressions().suppresses_address(tx.conn(), collection, address).await? {
                return Ok(Stored::Suppressed(Reason::SuppressedUrl));
            }
        }
        let suppressed = suppressor.suppressed_parts(&mut tx, collection, None, &self.to_check()).await?;
        if !suppressed.is_empty() {
            return Ok(Stored::Suppressed(suppressed.whole.unwrap_or(Reason::SuppressedFace)));
        }
        let Some((subject, is_new_subject)) = lock_person(store, &mut tx, target).await? else {
            return Ok(Stored::AmbiguousName);
        };
        // Another attempt of this transaction may have used the same id.
        let image = NewImage { id: Uuid::now_v7(), ..self.image.clone() };
        let (image, is_new, boxes) = match store.images().insert(tx.conn(), collection, &image).await? {
            Ok(()) => (image.id, true, Vec::new()),
            Err(existing) => (existing, false, store.people().boxes_of_image(tx.conn(), existing).await?),
        };
        if let (Person::Named(_), false) = (target.person, is_new) {
            let sha256 = self.sha256();
            // Otherwise, two transactions could enrol the file for different people, and the second
            // would move the face.
            store.people().lock_file(tx.conn(), collection, sha256).await?;
            let known = store.people().enrolled_faces_of_file(&mut *tx.conn(), collection, sha256).await?;
            if let Some(other) = known.into_iter().find(|face| face.subject_id != subject) {
                return Ok(Stored::OtherPerson(other));
            }
        }
        let bbox = self.faces[target.face_index].detection.bbox;
        let face = match find_same_face(&boxes, &bbox) {
            Some(face) => face,
            None => {
                let mut faces: Vec<NewFace> = Vec::new();
                let mut id = Uuid::nil();
                // If the image is already stored, only this face is missing. The others are stored,
                // or were deleted.
                let own_key = blobs.image.as_ref().map(|parts| parts.key.clone());
                for (index, (face, parts)) in self.faces.iter().zip(&blobs.faces).enumerate() {
                    let is_chosen = index == target.face_index;
                    let (true, Some(parts)) = (is_new || is_chosen, parts.clone()) else { continue };
                    let own_key = own_key.clone().filter(|_| !is_new);
                    let parts = NewFaceParts { own_key, ..parts };
                    let Some(new) = new_face(face, *model_id, parts) else { continue };
                    if is_chosen {
                        id = new.id;
                    }
                    faces.push(new);
                }
                store.faces().insert(tx.conn(), collection, image, &faces).await?;
                id
            }
        };
        store.people().enrol(tx.conn(), collection, subject, &[face], target.allow_move).await?;
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
        Ok(Stored::Enrolled { face, image, subject, is_new_subject })
    }
}

/// Locks the subject of the person, and creates it if necessary. Returns its id and whether it is
/// new, or `None` if several subjects have the name.
async fn lock_person(
    store: &Store,
    tx: &mut Tx,
    target: &Target<'_>,
) -> Result<Option<(Uuid, bool)>, StoreError> {
    let collection = target.collection;
    let name = match target.person {
        Person::Subject(subject) => {
            store.people().lock(tx.conn(), collection, &[subject]).await?;
            return Ok(Some((subject, false)));
        }
        Person::Named(name) => name,
    };
    store.people().lock_name(tx.conn(), collection, name).await?;
    match store.people().with_name(&mut *tx.conn(), collection, name).await?[..] {
        [] => {
            let metadata = serde_json::Map::new().into();
            let subject = NewSubject { name: Some(name.to_owned()), external_id: None, metadata };
            Ok(Some((store.people().insert(tx.conn(), collection, &subject).await?, true)))
        }
        [subject] => {
            store.people().lock(tx.conn(), collection, &[subject]).await?;
            Ok(Some((subject, false)))
        }
        _ => Ok(None),
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
