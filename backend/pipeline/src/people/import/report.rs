//! The result of each file of an import, and the counts of all files.
use crate::AnalyzeError;
use domain::{EnrolmentOutcome, Reason};
use serde::Serialize;
use std::collections::BTreeMap;
use store::people::names::EnrolledFace;
use uuid::Uuid;
use vision::DecodeError;

/// The reason why a file is not enrolled.
#[derive(Clone, Debug)]
pub struct Rejection {
    pub outcome: EnrolmentOutcome,
    pub reason: Option<Reason>,
    /// A sentence for people.
    pub detail: String,
}

impl Rejection {
    pub fn new(outcome: EnrolmentOutcome, detail: impl Into<String>) -> Self {
        Self { outcome, reason: None, detail: detail.into() }
    }

    /// Returns the rejection of a file that cannot be read.
    pub fn unreadable(detail: impl Into<String>) -> Self {
        let outcome = EnrolmentOutcome::Unreadable;
        Self { outcome, reason: Some(Reason::Unreadable), detail: detail.into() }
    }

    /// Returns the rejection of a file with too many bytes.
    pub fn too_large(detail: impl Into<String>) -> Self {
        let outcome = EnrolmentOutcome::TooLarge;
        Self { outcome, reason: Some(Reason::TooManyBytes), detail: detail.into() }
    }
}

/// The result of one file.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    pub file: String,
    /// The name of the person, in its normal form if it is allowed.
    pub name: Option<String>,
    pub outcome: EnrolmentOutcome,
    /// Code of the reason, for a file that cannot be used or was erased.
    pub reason: Option<Reason>,
    /// The reason as a sentence.
    pub detail: Option<String>,
    /// Requirements of the quality profile that the face fails.
    pub unmet: Vec<String>,
    /// The other person whom the face resembles.
    pub similar: Option<SimilarPerson>,
    /// The subject of the person; `None` if it does not exist, or was not looked up.
    pub subject_id: Option<Uuid>,
    pub image_id: Option<Uuid>,
    pub face_id: Option<Uuid>,
}

/// An enrolled person whom a face resembles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimilarPerson {
    /// `None` for a person whom a dry run would enrol.
    pub subject_id: Option<Uuid>,
    pub name: Option<String>,
    /// Cosine similarity of the most similar face, -1 to 1.
    pub similarity: f32,
}

impl FileReport {
    pub(super) fn new(file: String, name: Option<String>, outcome: EnrolmentOutcome) -> Self {
        Self {
            file,
            name,
            outcome,
            reason: None,
            detail: None,
            unmet: Vec::new(),
            similar: None,
            subject_id: None,
            image_id: None,
            face_id: None,
        }
    }

    pub(super) fn rejected(file: String, name: Option<String>, rejection: Rejection) -> Self {
        let Rejection { outcome, reason, detail } = rejection;
        Self { reason, detail: Some(detail), ..Self::new(file, name, outcome) }
    }
}

/// The counts of an import.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ImportSummary {
    /// Number of files.
    pub files: u64,
    /// Number of files by result.
    pub outcomes: BTreeMap<EnrolmentOutcome, u64>,
    /// Number of subjects that were created, or would be in a dry run.
    pub subjects_created: u64,
    pub dry_run: bool,
}

impl ImportSummary {
    /// Returns the number of files whose face is enrolled after the import.
    pub fn succeeded(&self) -> u64 {
        self.outcomes.iter().filter(|(outcome, _)| outcome.is_success()).map(|(_, count)| count).sum()
    }
}

pub(super) fn rejection_of(error: &AnalyzeError) -> Rejection {
    let outcome = match error {
        AnalyzeError::Decode(DecodeError::TooManyBytes { .. } | DecodeError::TooLarge { .. }) => {
            EnrolmentOutcome::TooLarge
        }
        AnalyzeError::Decode(_) | AnalyzeError::Decoder(_) | AnalyzeError::Panicked => {
            EnrolmentOutcome::Unreadable
        }
        _ => EnrolmentOutcome::Failed,
    };
    Rejection { outcome, reason: Some(error.reason()), detail: error.to_string() }
}

pub(super) fn no_embedding() -> Rejection {
    Rejection::new(EnrolmentOutcome::LowQuality, "no embedding could be computed for this face")
}

pub(super) fn several_subjects() -> Rejection {
    let detail = "several subjects of the collection have this name; rename or merge them";
    Rejection::new(EnrolmentOutcome::AmbiguousName, detail)
}

pub(super) fn suppressed(reason: Reason) -> Rejection {
    let detail = reason.explanation().into();
    Rejection { outcome: EnrolmentOutcome::Suppressed, reason: Some(reason), detail }
}

/// Returns the report of a file whose face belongs to another enrolled person. A face belongs to at
/// most one person, so it is not enrolled again, whatever the options are.
pub(super) fn of_other_person(file: String, name: Option<String>, other: EnrolledFace) -> FileReport {
    let person = other.name.as_deref().unwrap_or("a person without a name");
    let detail = format!("the same file is enrolled for {person}; a face belongs to one person only");
    let similar =
        SimilarPerson { subject_id: Some(other.subject_id), name: other.name.clone(), similarity: 1.0 };
    let (image_id, face_id) = (Some(other.image_id), Some(other.face_id));
    let rejection = Rejection::new(EnrolmentOutcome::LooksLike, detail);
    FileReport { similar: Some(similar), image_id, face_id, ..FileReport::rejected(file, name, rejection) }
}
