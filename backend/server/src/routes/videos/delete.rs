use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::routes::deletion::{DeletionParams, DeletionPreview, preview};
use crate::routes::images::drop_blobs;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use store::keys::audit::Action;
use store::retried;

pub(super) const SPEC: Spec = Spec::needs(Scope::Erase).problems(&[&[Code::ConfirmationNeeded]]);

/// Delete a video with its tracks, frames, faces, crops and chips. A video that is being read is
/// cancelled.
#[utoipa::path(
    delete, path = "/videos/{id}", operation_id = "delete_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video"), DeletionParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 204, description = "The video was deleted"),
    ),
)]
pub(super) async fn delete_video(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<DeletionParams>,
) -> Result<Response, ApiError> {
    let store = caller.store();
    let video = store.video(id).await?;
    let (target, extent) = (format!("delete_video.{id}"), store.extent_of_video(id).await?);
    if let Some(response) = preview(&state, target, extent, params.dry_run, params.confirm.as_deref()).await?
    {
        return Ok(response);
    }
    let blobs = retried("delete_video", || async {
        let mut tx = store.begin().await?;
        let blobs = state.services.videos.delete(&mut tx, store, id).await?;
        caller.audit(&mut tx, Action::DeleteVideo, video.collection_id, json!({"video_id": id})).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(blobs)
    })
    .await?;
    drop_blobs(&state, blobs).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}
