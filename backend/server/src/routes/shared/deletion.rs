//! Common steps of deletions: the dry run, its confirmation token, the entry in the audit log, and
//! the deletion of blobs afterwards.
use crate::auth::Caller;
use crate::{ApiError, AppState, Result};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;
use store::erasures::retention::DeletionCounts;
use store::keys::audit::Action;
use store::{Tx, retried};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Options of a deletion: a dry run, or the confirmation of one.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeletionParams {
    /// Report what would be deleted without deleting anything.
    #[param(default = false)]
    pub(crate) dry_run: Option<bool>,
    /// `confirm` of a dry run of the same call, at most 15 minutes old. It is required if the call
    /// deletes more than `CONFIRM_ABOVE` rows.
    pub(crate) confirm: Option<String>,
}

/// The rows that the call would delete.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "dry_run": true, "images": 1840, "faces": 5130, "videos": 3, "subjects": 12, "suppressions": 0,
    "confirm": "1769861700.6982.cGxhaW4gdGV4dCBvZiAzMiBieXRlcywgc2lnbmVk"
}))]
pub(crate) struct DeletionPreview {
    /// Always true, because nothing was changed.
    dry_run: bool,
    /// Number of stored images. Counting stops at one million.
    images: i64,
    /// Number of stored faces. Counting stops at one million.
    faces: i64,
    /// Number of videos.
    videos: i64,
    /// Number of subjects, including clusters.
    subjects: i64,
    /// Number of suppressions of erased images and people. Once a suppression is deleted, its image
    /// or person may be stored again.
    suppressions: i64,
    /// Confirmation token for the same call, sent as `confirm`. It is valid for 15 minutes.
    confirm: String,
}

/// Returns the response of a dry run, or `None` if the deletion may be carried out: it is small, or
/// it was confirmed. `target` identifies the operation and the rows to delete.
///
/// # Errors
/// Fails with 428 `confirmation_needed` if the deletion needs a token and `confirm` is not one.
pub(crate) async fn preview(
    state: &AppState,
    target: &str,
    counts: DeletionCounts,
    params: &DeletionParams,
) -> Result<Option<DeletionPreview>> {
    let (count, confirmations) = (counts.rows(), state.confirmations().await?);
    if params.dry_run.unwrap_or(false) {
        let DeletionCounts { images, faces, videos, subjects, suppressions } = counts;
        let confirm = confirmations.token(target, count);
        let preview =
            DeletionPreview { dry_run: true, images, faces, videos, subjects, suppressions, confirm };
        return Ok(Some(preview));
    }
    confirmations.check(target, count, params.confirm.as_deref())?;
    Ok(None)
}

/// A deletion that a caller requests.
pub(crate) struct RequestedDeletion {
    /// Name of the operation.
    pub(crate) operation: &'static str,
    /// Identifies the target of the operation.
    pub(crate) target: String,
    pub(crate) counts: DeletionCounts,
    pub(crate) params: DeletionParams,
    /// Action, collection and details for the audit log.
    pub(crate) audit: (Action, Uuid, Value),
}

/// Responds to a dry run, or carries out a deletion and responds with `status`. `delete`
/// deletes the rows and returns the keys of their blobs and its transaction, which then records the
/// audit entry. The blobs are deleted after the commit.
///
/// # Errors
/// Fails with the errors of [`preview`] and of `delete`.
pub(crate) async fn carry_out<F>(
    state: &AppState,
    caller: &Caller,
    deletion: RequestedDeletion,
    status: StatusCode,
    delete: impl Fn(Tx) -> F,
) -> Result<Response>
where
    F: Future<Output = Result<(Vec<String>, Tx)>>,
{
    let RequestedDeletion { operation, target, counts, params, audit } = deletion;
    if let Some(preview) = preview(state, &format!("{operation}.{target}"), counts, &params).await? {
        return Ok(Json(preview).into_response());
    }
    let (action, collection, detail) = audit;
    let blobs = retried(operation, || async {
        let (blobs, mut tx) = delete(caller.store().begin().await?).await?;
        caller.audit(&mut tx, action, collection, detail.clone()).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(blobs)
    })
    .await?;
    delete_blobs(state, blobs).await;
    Ok(status.into_response())
}

/// Maximum time for which the response waits for the deletion of blobs. Longer deletions continue
/// after the response.
const MAX_DELETION_WAIT: Duration = Duration::from_secs(10);

/// Deletes blobs whose rows were deleted, after the commit. A failed deletion is logged, and the
/// sweep repeats it.
pub(crate) async fn delete_blobs(state: &AppState, keys: Vec<String>) {
    if keys.is_empty() {
        return;
    }
    let (store, blobs) = (state.services.store.clone(), state.services.blobs.clone());
    let deletion = tokio::spawn(async move {
        if let Err(error) = store.blobs().delete(&blobs, &keys).await {
            tracing::warn!(%error, blobs = keys.len(), "failed to delete blobs; the sweep retries");
        }
    });
    if tokio::time::timeout(MAX_DELETION_WAIT, deletion).await.is_err() {
        tracing::info!("blob deletion continues after the response");
    }
}
