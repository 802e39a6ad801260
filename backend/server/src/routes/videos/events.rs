use super::view::VideoView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::openapi::example_of;
use crate::routes::events::events;
use crate::{ApiError, AppState, Scope, Spec};
use axum::extract::State;
use axum::response::IntoResponse;
use store::videos::Video;

pub(super) const SPEC: Spec = Spec::needs(Scope::Read).limited_elsewhere();

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
pub(super) async fn follow_video(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<impl IntoResponse, ApiError> {
    let view = |_: &Caller, video: &Video| VideoView::from(video.clone());
    events(state.clone(), caller, &state.video_followers, id, view).await
}
