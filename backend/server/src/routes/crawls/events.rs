//! `GET /crawls/{id}/events`
use super::view::CrawlView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::{ApiError, AppState, Code, Problem};
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use std::convert::Infallible;
use uuid::Uuid;

/// Where a stream of events stands.
enum Follow {
    /// The first look was taken before the answer began.
    First(Box<CrawlView>),
    /// Shown last.
    After(Box<CrawlView>),
    /// Nothing more to say.
    Over,
}

/// Follow a crawl as server-sent events.
///
/// `progress` has the same JSON as `GET /crawls/{id}`, at once and then at most twice a second when something changed; `done` has it
/// once more when the crawl has ended, and the stream ends. It also ends when the crawl is deleted or the service stops.
#[utoipa::path(
    get, path = "/crawls/{id}/events", operation_id = "follow_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "The crawl")),
    responses(
        (status = 200, description = "`progress` and `done` events", body = String, content_type = "text/event-stream"),
        (status = 404, description = "No such crawl", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn follow_crawl(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let first = CrawlView::load(&caller, id).await?;
    let stream = futures::stream::unfold(
        (state, caller, Follow::First(Box::new(first))),
        move |(state, caller, follow)| async move {
            let view = match follow {
                Follow::Over => return None,
                Follow::First(view) => view,
                Follow::After(last) => next_change(&state, &caller, id, &last).await?,
            };
            let over = view.is_over();
            let event = Event::default().event(if over { "done" } else { "progress" });
            // A crawl is plain data, so this cannot fail; if it did, the stream would end.
            let event = event.json_data(&view).ok()?;
            let follow = if over { Follow::Over } else { Follow::After(view) };
            Some((Ok(event), (state, caller, follow)))
        },
    );
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

/// Looks until something changed; `None` when the service stops, the crawl is gone or the caller's key works no more. A failed look is tried again: a short
/// loss of the database should not end what someone watches.
async fn next_change(
    state: &AppState,
    caller: &Caller,
    id: Uuid,
    last: &CrawlView,
) -> Option<Box<CrawlView>> {
    loop {
        tokio::select! {
            () = state.shutdown.cancelled() => return None,
            () = tokio::time::sleep(state.config.events_interval) => {}
        }
        if matches!(caller.is_still_welcome(state).await, Err(error) if error.code() == Code::Unauthorized) {
            return None;
        }
        match CrawlView::load(caller, id).await {
            Ok(view) if view.state != last.state || view.counts != last.counts => {
                return Some(Box::new(view));
            }
            Ok(_) => {}
            Err(error) if error.code() == Code::NotFound => return None,
            Err(_) => {}
        }
    }
}
