use serde::Serialize;
use store::erasures::{ErasureRecord, Plan};
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// An erasure. It contains counts only, nothing that identifies a person.
#[derive(Serialize, ToSchema)]
pub(super) struct ErasureView {
    /// Its id.
    id: Uuid,
    /// The collection.
    #[schema(example = "default")]
    collection: String,
    /// Kind of target: `likeness`, `face`, `image`, `video`, `subject` or `url`.
    #[schema(example = "likeness")]
    kind: String,
    /// Whether the images, videos and the address are suppressed.
    #[schema(example = true)]
    suppress: bool,
    /// Whether the person is suppressed.
    #[schema(example = false)]
    suppress_person: bool,
    /// Threshold of an erasure by likeness; otherwise null.
    #[schema(example = 0.5)]
    threshold: Option<f32>,
    /// Number of erased faces.
    #[schema(example = 3)]
    faces: i64,
    /// Number of images that were erased as a whole.
    #[schema(example = 2)]
    images: i64,
    /// Number of videos that were erased as a whole.
    #[schema(example = 0)]
    videos: i64,
    /// Number of suppressions: images, videos, faces, addresses and people.
    #[schema(example = 2)]
    suppressions: i64,
    /// Time of the erasure.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// Time at which the suppressions were lifted; null while they are in force.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(example = json!(null))]
    lifted_at: Option<OffsetDateTime>,
}

impl ErasureView {
    pub(super) fn new(record: ErasureRecord, collection: &str) -> Self {
        Self {
            id: record.id,
            collection: collection.to_owned(),
            kind: record.kind,
            suppress: record.suppress,
            suppress_person: record.suppress_person,
            threshold: record.threshold,
            faces: record.faces,
            images: record.images,
            videos: record.videos.unwrap_or(0),
            suppressions: record.suppressions,
            created_at: record.created_at,
            lifted_at: record.lifted_at,
        }
    }
}

/// A face that would be erased.
#[derive(Serialize, ToSchema)]
struct AffectedFace {
    /// Its id.
    face_id: Uuid,
    /// Its image.
    image_id: Uuid,
    /// Cosine with the likeness that was sent, -1 to 1.
    similarity: Option<f32>,
}

/// The data that was erased or, with `dry_run`, would be erased.
#[derive(Serialize, ToSchema)]
pub(super) struct ErasureAnswer {
    /// Whether this was a dry run.
    #[schema(example = false)]
    dry_run: bool,
    /// The erasure; null after a dry run.
    erasure: Option<ErasureView>,
    /// Number of faces, including those of whole images.
    #[schema(example = 3)]
    faces: usize,
    /// Number of images that are erased completely: the given image, and images without remaining
    /// faces.
    #[schema(example = 2)]
    images: usize,
    /// Number of videos that are erased completely: the given one, those at the given address, and
    /// others of the same files.
    #[schema(example = 0)]
    videos: usize,
    /// Number of enrolled people and clusters that are erased with name, external id and metadata:
    /// the given one, and those without remaining faces.
    #[schema(example = 1)]
    subjects: usize,
    /// Number of faces of other embedding models. They cannot be compared with a likeness and are
    /// kept.
    #[schema(example = 0)]
    not_compared: i64,
    /// Confirmation token for the same call, sent as `confirm`; only after a dry run. It is valid
    /// for 15 minutes.
    #[schema(example = json!(null))]
    confirm: Option<String>,
    /// The faces by descending similarity, at most 1000; only after a dry run.
    #[schema(example = json!(null))]
    affected: Option<Vec<AffectedFace>>,
    /// The people and clusters that would be erased, at most 1000; only after a dry run.
    #[schema(example = json!(null))]
    affected_subjects: Option<Vec<Uuid>>,
}

/// Maximum number of faces, and of people, that a dry run lists.
const MAX_AFFECTED: usize = 1000;

impl ErasureAnswer {
    pub(super) fn done(plan: &Plan, erasure: ErasureView) -> Self {
        Self {
            dry_run: false,
            erasure: Some(erasure),
            faces: plan.faces.len(),
            images: plan.images.len(),
            videos: plan.videos.len(),
            subjects: plan.subjects.len(),
            not_compared: plan.not_compared,
            confirm: None,
            affected: None,
            affected_subjects: None,
        }
    }

    pub(super) fn dry_run(mut plan: Plan, confirm: String) -> Self {
        plan.faces.sort_by(|a, b| {
            b.similarity.unwrap_or(-1.0).total_cmp(&a.similarity.unwrap_or(-1.0)).then(a.id.cmp(&b.id))
        });
        let affected = plan.faces.iter().take(MAX_AFFECTED).map(|face| AffectedFace {
            face_id: face.id,
            image_id: face.image_id,
            similarity: face.similarity,
        });
        Self {
            dry_run: true,
            erasure: None,
            faces: plan.faces.len(),
            images: plan.images.len(),
            videos: plan.videos.len(),
            subjects: plan.subjects.len(),
            not_compared: plan.not_compared,
            confirm: Some(confirm),
            affected: Some(affected.collect()),
            affected_subjects: Some(plan.subjects.into_iter().take(MAX_AFFECTED).collect()),
        }
    }
}
