//! Pauses, resumes, retries, cancels, follows and deletes videos.
use super::create::too_many;
use super::view::VideoView;
use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::openapi::example_of;
use crate::routes::shared::deletion::{DeletionParams, DeletionPreview, RequestedDeletion, carry_out};
use crate::routes::shared::events::events;
use crate::{AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use store::keys::audit::Action;
use store::videos::Video;

pub(super) const CONTROL: Spec = Spec::needs(Scope::Crawl).problems(&[&[Code::Conflict]]);
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
pub(super) async fn pause_video(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<VideoView>> {
    Ok(Json(state.services.videos.pause(caller.store(), id).await?.into()))
}

/// Resume a paused video.
#[utoipa::path(
    post, path = "/videos/{id}/resume", operation_id = "resume_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video")),
    responses((status = 200, description = "The video in its new state", body = VideoView)),
)]
pub(super) async fn resume_video(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<VideoView>> {
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
pub(super) async fn retry_video(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<VideoView>> {
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
pub(super) async fn cancel_video(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<VideoView>> {
    Ok(Json(state.services.videos.cancel(caller.store(), id).await?.into()))
}

pub(super) const EVENTS: Spec = Spec::needs(Scope::Read).skip_connection_limit();

/// Follow a video as server-sent events.
///
/// The event `progress` contains the same JSON as `GET /videos/{id}`. It is sent immediately, and
/// then at most twice per second after a change. When the video has ended, the event `done`
/// contains the same JSON, and the stream ends. The stream also ends when the video is deleted or
/// the service stops.
#[utoipa::path(
    get, path = "/videos/{id}/events", operation_id = "follow_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video")),
    responses(
        (status = 200, description = "`progress` and `done` events", body = String, content_type = "text/event-stream",
            example = json!(format!("event: progress\ndata: {}\n\n", example_of::<VideoView>()))),
        (status = 429, description = "The caller has the maximum number of open streams"),
    ),
)]
pub(super) async fn follow_video(state: AppState, caller: Caller, Id(id): Id) -> Result<impl IntoResponse> {
    let view = |_: &Caller, video: &Video| VideoView::from(video.clone());
    events(state.clone(), caller, &state.video_followers, id, view).await
}

pub(super) const DELETE: Spec = Spec::needs(Scope::Erase).problems(&[&[Code::ConfirmationNeeded]]);

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
    state: AppState,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<DeletionParams>,
) -> Result<Response> {
    let store = caller.store();
    let (video, videos) = (store.videos().get(id).await?, &state.services.videos);
    let deletion = RequestedDeletion {
        operation: "delete_video",
        target: id.to_string(),
        counts: store.deletion_counts().of_video(id).await?,
        params,
        audit: (Action::DeleteVideo, video.collection_id, json!({"video_id": id})),
    };
    carry_out(&state, &caller, deletion, StatusCode::NO_CONTENT, |mut tx| async move {
        Ok((videos.delete(&mut tx, store, id).await?, tx))
    })
    .await
}
