use super::create::too_many;
use super::view::VideoView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;

pub(super) const SPEC: Spec = Spec::needs(Scope::Crawl).problems(&[&[Code::Conflict]]);
/// A retry needs the same scope as the upload.
pub(super) const RETRY: Spec =
    Spec::needs(Scope::Write).problems(&[&[Code::Conflict, Code::VideoUnavailable]]);

/// Pause a video. It stops within a second and continues later after its last stored part, so at
/// most a minute of it is read twice.
#[utoipa::path(
    post, path = "/videos/{id}/pause", operation_id = "pause_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video")),
    responses((status = 200, description = "The video in its new state", body = VideoView)),
)]
pub(super) async fn pause_video(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<VideoView>, ApiError> {
    Ok(Json(state.services.videos.pause(caller.store(), id).await?.into()))
}

/// Resume a paused video.
#[utoipa::path(
    post, path = "/videos/{id}/resume", operation_id = "resume_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video")),
    responses((status = 200, description = "The video in its new state", body = VideoView)),
)]
pub(super) async fn resume_video(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<VideoView>, ApiError> {
    Ok(Json(state.services.videos.resume(caller.store(), id).await?.into()))
}

/// Retry a failed video. It continues after its last stored part.
///
/// The stored file of a video is kept for 7 days if the reason of the failure may be temporary. The
/// file at a URL is fetched again if it is not stored.
#[utoipa::path(
    post, path = "/videos/{id}/retry", operation_id = "retry_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video")),
    responses((status = 200, description = "The video in its new state", body = VideoView)),
)]
pub(super) async fn retry_video(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<VideoView>, ApiError> {
    state.video_tools()?;
    let videos = &state.services.videos;
    let video = videos.retry(caller.store(), id).await?.ok_or_else(|| too_many(videos.limits()))?;
    Ok(Json(video.into()))
}

/// Cancel a video. It stops within a second. What is stored of it remains, without the numbers of
/// the people.
#[utoipa::path(
    post, path = "/videos/{id}/cancel", operation_id = "cancel_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video")),
    responses((status = 200, description = "The cancelled video", body = VideoView)),
)]
pub(super) async fn cancel_video(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<VideoView>, ApiError> {
    Ok(Json(state.services.videos.cancel(caller.store(), id).await?.into()))
}
