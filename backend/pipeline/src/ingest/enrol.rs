//! A picture that somebody sends in to say whom it shows. It is stored like any other; what is added is the word about one of its faces.

use super::record::{new_face, new_image};
use super::{Ingest, IngestError, Inner};
use crate::{Analysis, AnalyzeOptions, AnalyzedFace, Analyzer};
use bytes::Bytes;
use inference::Priority;
use store::StoreError;
use store::faces::NewFace;
use uuid::Uuid;
use vision::{Profile, QualityReport, Rect};

/// Boxes of one file that overlap this much are one face, should the detector have been set otherwise when it was stored.
const SAME_FACE_IOU: f32 = 0.5;
/// What cannot be told of a face that was aligned elsewhere.
const UNKNOWN_OF_ALIGNED: &[&str] = &["too_small", "turned_away"];

/// What is to be enrolled.
#[derive(Clone, Debug)]
pub struct Enrolment {
    /// The file.
    pub bytes: Bytes,
    /// Where it was fetched from, in any spelling.
    pub url: Option<String>,
    /// The address that answered.
    pub answered: Option<String>,
    /// Whose it will be.
    pub collection: Uuid,
    /// Whom it shows.
    pub subject: Uuid,
    /// Which face, best score first.
    pub face_index: usize,
    /// The picture is an aligned 112x112 crop.
    pub aligned: bool,
    /// How it is analysed; the profile is the one that the stored face is judged by.
    pub options: AnalyzeOptions,
    /// What the face must meet to be enrolled.
    pub demands: Profile,
    /// Enrol it whatever it meets.
    pub force: bool,
    /// Take the face over from another subject.
    pub moved: bool,
}

/// What was enrolled.
#[derive(Clone, Debug)]
pub struct Enrolled {
    /// The stored face.
    pub face: Uuid,
    /// Its image.
    pub image: Uuid,
    /// Demands that it does not meet; empty unless it was forced.
    pub reasons: Vec<String>,
}

/// Why nothing was enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The picture cannot be analysed, or the store failed or refused.
    #[error(transparent)]
    Ingest(#[from] IngestError),
    /// There is no such face in the picture; it has so many.
    #[error("there is no face {index}: the picture has {found}")]
    NoFace {
        /// As asked for.
        index: usize,
        /// Faces found.
        found: usize,
    },
    /// The face has no embedding: nothing could be compared with it.
    #[error("the embedding model has nothing to say about this face")]
    NoEmbedding,
    /// The face does not meet the demands.
    #[error("the face does not meet the profile: {}", .0.join(", "))]
    Quality(Vec<String>),
}

/// What a face lacks that is to be enrolled; an unjudged face lacks a judgement.
pub fn lacks(quality: Option<&QualityReport>, demands: Profile, aligned: bool) -> Vec<String> {
    if demands == Profile::Off {
        return Vec::new();
    }
    let Some(quality) = quality else { return vec!["not_judged".into()] };
    let mut reasons = quality.unmet(demands);
    reasons.retain(|reason| !aligned || !UNKNOWN_OF_ALIGNED.contains(&reason.as_str()));
    reasons
}

impl Ingest {
    /// Analyses the picture, stores it with all its faces where the collection does not have the file already, and gives the face to the subject. All in
    /// one transaction, or nothing.
    ///
    /// `analyzer` is the path for this caller, with the caller's deadline.
    ///
    /// # Errors
    /// [`EnrolError`]; of the store's, `NotFound` where the subject is gone and `Conflict` where the face shows another.
    pub async fn enrol(&self, analyzer: &Analyzer, enrolment: Enrolment) -> Result<Enrolled, EnrolError> {
        let Enrolment { bytes, options, aligned, .. } = &enrolment;
        let options = AnalyzeOptions { chips: true, ..options.clone() };
        let analysis = if *aligned {
            analyzer.analyze_aligned(bytes.clone(), &options, Priority::Interactive).await
        } else {
            analyzer.analyze(bytes.clone(), &options, Priority::Interactive).await
        }
        .map_err(IngestError::from)?;
        let found = analysis.faces.len();
        let index = enrolment.face_index;
        let face = analysis.faces.get(index).ok_or(EnrolError::NoFace { index, found })?;
        if face.embedding.is_none() {
            return Err(EnrolError::NoEmbedding);
        }
        let reasons = lacks(face.quality.as_ref(), enrolment.demands, *aligned);
        if !reasons.is_empty() && !enrolment.force {
            return Err(EnrolError::Quality(reasons));
        }
        let (face, image) = self.store_enrolled(&enrolment, &analysis, face).await?;
        Ok(Enrolled { face, image, reasons })
    }

    async fn store_enrolled(
        &self,
        enrolment: &Enrolment,
        analysis: &Analysis,
        chosen: &AnalyzedFace,
    ) -> Result<(Uuid, Uuid), IngestError> {
        let Inner { store, model_id, .. } = &*self.inner;
        let blobs = self.write_blobs(analysis).await?;
        let (collection, subject) = (enrolment.collection, enrolment.subject);
        let mut tx = store.begin().await?;
        store.lock_suppressions(tx.conn(), collection, false).await?;
        // As an erasure spells them.
        let [asked, answered] = [&enrolment.url, &enrolment.answered].map(|url| {
            url.as_deref()
                .map(|url| crawler::urls::address(url).map_or_else(|_| url.to_owned(), String::from))
        });
        let answered = answered.filter(|answered| asked.as_ref() != Some(answered));
        let mut erased = false;
        for address in asked.iter().chain(&answered) {
            erased |= store.suppresses_address(tx.conn(), collection, address).await?;
        }
        if erased || !self.judge(&mut tx, collection, None, analysis).await?.is_clear() {
            let sentence = "the picture, its address, or somebody in it was erased and must not be stored again; send one that shows this person alone";
            return Err(StoreError::Conflict(sentence.into()).into());
        }
        // Subjects before images: so does everybody who deletes an enrolled image with its last face.
        store.hold_subjects(tx.conn(), collection, &[subject]).await?;
        let image = new_image(analysis, blobs.thumbnail.clone());
        let (image, is_new, known) = match store.insert_image(tx.conn(), collection, &image).await? {
            Ok(()) => (image.id, true, Vec::new()),
            Err(existing) => (existing, false, store.boxes_of_image(tx.conn(), existing).await?),
        };
        let bbox = chosen.detection.bbox;
        let face = match nearest(&known, &bbox) {
            Some(face) => face,
            None => {
                let mut faces: Vec<NewFace> = Vec::new();
                let mut id = Uuid::nil();
                // A stored image lacks this one face only: the others are there, or were deleted.
                let wanted = |face| is_new || std::ptr::eq(face, chosen);
                for (face, blobs) in analysis.faces.iter().zip(&blobs.faces).filter(|(face, _)| wanted(*face))
                {
                    let Some(new) = blobs.clone().and_then(|blobs| new_face(face, *model_id, blobs)) else {
                        continue;
                    };
                    if std::ptr::eq(face, chosen) {
                        id = new.id;
                    }
                    faces.push(new);
                }
                store.insert_faces(tx.conn(), collection, image, &faces).await?;
                id
            }
        };
        self.keep_blobs(&mut tx, &blobs).await?;
        store.enrol_faces(tx.conn(), collection, subject, &[face], enrolment.moved).await?;
        store.add_enrolment_source(tx.conn(), image, subject, asked.as_deref(), answered.as_deref()).await?;
        tx.commit().await?;
        Ok((face, image))
    }
}

/// The stored face that overlaps most, if it is the same one.
fn nearest(known: &[(Uuid, Vec<f32>)], bbox: &Rect) -> Option<Uuid> {
    let overlap = |stored: &[f32]| match *stored {
        [x, y, width, height] => bbox.iou(&Rect { x, y, width, height }),
        _ => 0.0,
    };
    let best = known.iter().map(|(id, stored)| (overlap(stored), *id)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= SAME_FACE_IOU).then_some(best.1)
}
