//! `GET /crawls/{id}/events`
use super::view::CrawlView;
use crate::auth::{Caller, CallerId};
use crate::extract::Id;
use crate::follow::{CrawlRead, Snapshot, Stream};
use crate::openapi::example_of;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// The state of a stream of events.
enum Follow {
    /// Sends this snapshot first. It was taken before the response began.
    First(Arc<Snapshot>),
    /// Waits for a change after this snapshot.
    After(Arc<Snapshot>),
    /// Ends the stream.
    Over,
}

/// The data that a stream needs for its next event.
struct Watcher {
    state: AppState,
    caller: Caller,
    reads: watch::Receiver<Option<CrawlRead>>,
    /// Time at which the first snapshot was taken. A read that began earlier may return older data.
    since: Instant,
    _counted: Stream,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read).problems(&[&[Code::Overloaded]]).limited_elsewhere();

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
) -> Result<Sse<impl futures::Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let counted = state.crawl_followers.admit(CallerId::current())?;
    let first = Snapshot::in_brief(caller.store(), id).await?;
    let since = Instant::now();
    let reads = state.crawl_followers.follow(&state.services.store, id);
    let watcher = Watcher { state, caller, reads, since, _counted: counted };
    let stream = futures::stream::unfold(
        (watcher, Follow::First(Arc::new(first))),
        move |(mut watcher, follow)| async move {
            let crawl = match follow {
                Follow::Over => return None,
                Follow::First(crawl) => crawl,
                Follow::After(last) => watcher.next_change(&last).await?,
            };
            let over = crawl.is_over();
            let event = Event::default().event(if over { "done" } else { "progress" });
            // A crawl is plain data, so serialising it does not fail. A failure would end the
            // stream.
            let event = event.json_data(CrawlView::new(&watcher.caller, Snapshot::clone(&crawl))).ok()?;
            let follow = if over { Follow::Over } else { Follow::After(crawl) };
            Some((Ok(event), (watcher, follow)))
        },
    );
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

impl Watcher {
    /// Waits until something changes. Returns `None` when the service stops, the crawl is deleted
    /// or the caller's key becomes invalid.
    async fn next_change(&mut self, last: &Snapshot) -> Option<Arc<Snapshot>> {
        loop {
            tokio::select! {
                () = self.state.shutdown.cancelled() => return None,
                changed = self.reads.changed() => changed.ok()?,
            }
            let valid = self.caller.recheck_key(&self.state.keyring, &self.state.services.store).await;
            if matches!(valid, Err(error) if error.code() == Code::Unauthorized) {
                return None;
            }
            let read = self.reads.borrow_and_update().clone();
            match read {
                Some(CrawlRead::Found(began, now))
                    if began >= self.since
                        && (now.crawl.state != last.crawl.state || now.progress != last.progress) =>
                {
                    return Some(now);
                }
                Some(CrawlRead::Gone) => return None,
                _ => {}
            }
        }
    }
}
