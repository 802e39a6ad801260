use super::view::ErasureView;
use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::routes::deletion::{DeletionParams, DeletionPreview};
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::json;
use store::keys::audit::Action;
use store::retried;
use utoipa::ToSchema;

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

pub(super) const SPEC: Spec = Spec::needs(Scope::Admin).problems(&[&[Code::ConfirmationNeeded]]);

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
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<DeletionParams>,
) -> Result<Json<LiftOutcome>, ApiError> {
    let store = caller.store();
    let extent = store.extent_of_suppressions(id).await?;
    let target = format!("lift_suppressions.{id}");
    let (dry_run, confirm) = (params.dry_run, params.confirm.as_deref());
    if let Some(preview) = DeletionPreview::of(&state, target, extent, dry_run, confirm).await? {
        return Ok(Json(LiftOutcome::Preview(preview)));
    }
    let (record, lifted, collection) = retried("lift_suppressions", || async {
        let mut tx = store.begin().await?;
        let (record, lifted) = store.lift_suppressions(tx.conn(), id).await?;
        let collection = store.collection_by_id(record.collection_id).await?;
        let detail = json!({"erasure_id": id, "kind": record.kind, "suppressions": lifted});
        caller.audit(&mut tx, Action::Lift, collection.id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>((record, lifted, collection))
    })
    .await?;
    let erasure = ErasureView::new(record, &collection.name);
    Ok(Json(LiftOutcome::Lifted(LiftAnswer { erasure, lifted })))
}
