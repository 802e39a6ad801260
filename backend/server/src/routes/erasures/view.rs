//! Lists erasures and lifts their suppressions. Erasures are described by counts only.
use crate::auth::Caller;
use crate::extract::{Bounded, Id, List, Query};
use crate::routes::shared::deletion::{DeletionParams, DeletionPreview, preview};
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::erasures::{ErasureRecord, Plan};
use store::keys::audit::Action;
use store::retried;
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
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
    fn counts(plan: &Plan) -> Self {
        Self {
            dry_run: false,
            erasure: None,
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

    pub(super) fn erased(plan: &Plan, erasure: ErasureView) -> Self {
        Self { erasure: Some(erasure), ..Self::counts(plan) }
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
            confirm: Some(confirm),
            affected: Some(affected.collect()),
            affected_subjects: Some(plan.subjects.iter().copied().take(MAX_AFFECTED).collect()),
            ..Self::counts(&plan)
        }
    }
}

/// Selects the erasures to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Maximum number of erasures in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of erasures, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct ErasureList {
    erasures: Vec<ErasureView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

pub(super) const LIST: Spec = Spec::needs(Scope::Erase);

/// List the erasures of a collection. They contain counts only, nothing that identifies a person.
#[utoipa::path(
    get, path = "/erasures", operation_id = "list_erasures", tag = "erasures",
    params(ListParams),
    responses((status = 200, description = "A page of erasures, newest first", body = ErasureList)),
)]
pub(super) async fn list_erasures(
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<ErasureList>> {
    let collection = caller.collection(params.collection.as_deref()).await?;
    let list = List::new("erasures", collection.id);
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut rows = caller.store().erasures().list(collection.id, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |record| record.id);
    let erasures = rows.into_iter().map(|record| ErasureView::new(record, &collection.name)).collect();
    Ok(Json(ErasureList { erasures, next_cursor }))
}

/// The result of lifting suppressions.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "erasure": {
        "id": "0198f1c2-7d10-7000-8000-4a6f1f6e2b01", "collection": "default", "kind": "likeness", "suppress": true, "suppress_person": false,
        "threshold": 0.5, "faces": 3, "images": 2, "videos": 0, "suppressions": 2, "lifted_at": "2026-02-01T09:30:00Z", "created_at": "2026-01-31T12:00:00Z"
    },
    "lifted": 2
}))]
pub(super) struct LiftAnswer {
    /// The erasure, with the time of lifting in `lifted_at`.
    erasure: ErasureView,
    /// Number of suppressions that were lifted: images, faces, addresses and people.
    lifted: u64,
}

/// The response: that of a dry run, or the result.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum LiftOutcome {
    Preview(DeletionPreview),
    Lifted(LiftAnswer),
}

pub(super) const LIFT: Spec = Spec::needs(Scope::Admin).problems(&[&[Code::ConfirmationNeeded]]);

/// Lift the suppressions of an erasure.
///
/// Use this after a mistake, or when a person agrees to be stored again. Erased data is not
/// restored, but the next crawl or scan that finds it stores it again. Data that another erasure
/// also suppresses remains suppressed. A repeated call changes nothing. Above `CONFIRM_ABOVE`
/// suppressions, the call must be confirmed.
#[utoipa::path(
    delete, path = "/erasures/{id}/suppressions", operation_id = "lift_suppressions", tag = "erasures",
    params(("id" = Uuid, Path, description = "Id of the erasure"), DeletionParams),
    responses(
        (status = 200, description = "The suppressions of the erasure are lifted; or, with `dry_run`, how many would be lifted", body = LiftOutcome),
    ),
)]
pub(super) async fn lift_suppressions(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<DeletionParams>,
) -> Result<Json<LiftOutcome>> {
    let store = caller.store();
    let counts = store.deletion_counts().of_suppressions(id).await?;
    if let Some(preview) = preview(&state, &format!("lift_suppressions.{id}"), counts, &params).await? {
        return Ok(Json(LiftOutcome::Preview(preview)));
    }
    let (record, lifted, collection) = retried("lift_suppressions", || async {
        let mut tx = store.begin().await?;
        let (record, lifted) = store.erasures().lift(tx.conn(), id).await?;
        let collection = store.collections().by_id(record.collection_id).await?;
        let detail = json!({"erasure_id": id, "kind": record.kind, "suppressions": lifted});
        caller.audit(&mut tx, Action::Lift, collection.id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>((record, lifted, collection))
    })
    .await?;
    let erasure = ErasureView::new(record, &collection.name);
    Ok(Json(LiftOutcome::Lifted(LiftAnswer { erasure, lifted })))
}
