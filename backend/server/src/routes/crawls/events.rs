use super::view::CrawlView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::follow::Snapshot;
use crate::openapi::example_of;
use crate::routes::events::events;
use crate::{ApiError, AppState, Scope, Spec};
use axum::extract::State;
use axum::response::IntoResponse;

pub(super) const SPEC: Spec = Spec::needs(Scope::Read).limited_elsewhere();

/// Follow a crawl as server-sent events.
///
/// The event `progress` contains the same JSON as `GET /crawls`, which lists only the first seeds.
/// It is sent immediately, and then at most twice per second after a change. When the crawl has
/// ended, the event `done` contains the same JSON, and the stream ends. The stream also ends when
/// the crawl is deleted or the service stops.
#[utoipa::path(
    get, path = "/crawls/{id}/events", operation_id = "follow_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl")),
    responses(
        (status = 200, description = "`progress` and `done` events", body = String, content_type = "text/event-stream",
            example = json!(format!("event: progress\ndata: {}\n\n", example_of::<CrawlView>()))),
        (status = 429, description = "The caller has the maximum number of open streams"),
    ),
)]
pub(super) async fn follow_crawl(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<impl IntoResponse, ApiError> {
    let view = |caller: &Caller, crawl: &Snapshot| CrawlView::new(caller, crawl.clone());
    events(state.clone(), caller, &state.crawl_followers, id, view).await
}
