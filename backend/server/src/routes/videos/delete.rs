use crate::auth::Caller;
use crate::extract::Id;
use crate::routes::images::drop_blobs;
use crate::{ApiError, AppState, Scope, Spec};
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::json;
use store::audit::Action;
use store::retried;

pub(super) const SPEC: Spec = Spec::needs(Scope::Erase);

/// Delete a video with its tracks, frames, faces, crops and chips. A video that is being read is
/// cancelled.
#[utoipa::path(
    delete, path = "/videos/{id}", operation_id = "delete_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video")),
    responses((status = 204, description = "The video was deleted")),
)]
pub(super) async fn delete_video(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<StatusCode, ApiError> {
    let store = caller.store();
    let video = store.video(id).await?;
    let blobs = retried("delete_video", || async {
        let mut tx = store.begin().await?;
        let blobs = state.services.videos.delete(&mut tx, store, id).await?;
        caller.audit(&mut tx, Action::DeleteVideo, video.collection_id, json!({"video_id": id})).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(blobs)
    })
    .await?;
    drop_blobs(&state, blobs).await;
    Ok(StatusCode::NO_CONTENT)
}
