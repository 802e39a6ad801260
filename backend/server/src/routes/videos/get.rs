use super::view::VideoView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::{ApiError, Scope, Spec};
use axum::Json;

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Get a video and its progress.
#[utoipa::path(
    get, path = "/videos/{id}", operation_id = "get_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video")),
    responses((status = 200, description = "The video", body = VideoView)),
)]
pub(super) async fn get_video(caller: Caller, Id(id): Id) -> Result<Json<VideoView>, ApiError> {
    Ok(Json(caller.store().video(id).await?.into()))
}
