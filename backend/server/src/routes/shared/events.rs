//! Sends what changes as server-sent events.
use crate::admission::EventStream;
use crate::auth::Caller;
use crate::follow::{Followed, Followers, Read};
use crate::{AppState, Code, Result};
use axum::response::sse::{Event, KeepAlive, Sse};
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use uuid::Uuid;

enum Next<T> {
    /// Sends this value first. It was read before the response began.
    First(Arc<T>),
    /// Waits for a change after this value.
    After(Arc<T>),
    Over,
}

struct Watcher<T> {
    state: AppState,
    caller: Caller,
    reads: watch::Receiver<Option<Read<Arc<T>>>>,
    /// Time at which the first value was read. A read that began earlier may return older data.
    since: Instant,
    _counted: EventStream,
}

/// Returns the events `progress` of an item, immediately and after each change, and `done` at its
/// end. `view` converts the item for the caller. The stream also ends when the item is deleted, the
/// service stops, or the caller's key becomes invalid.
///
/// # Errors
/// Fails with 404 if the caller may not see the item, and with 429 if the caller has too many
/// streams.
pub(crate) async fn events<T: Followed, V: Serialize + 'static>(
    state: AppState,
    caller: Caller,
    followers: &Followers<T>,
    id: Uuid,
    view: fn(&Caller, &T) -> V,
) -> Result<Sse<impl futures::Stream<Item = Result<Event, Infallible>> + use<T, V>>> {
    let counted = state.event_streams.admit()?;
    let first = T::read(caller.store(), id).await?;
    let since = Instant::now();
    let reads = followers.follow(&state.services.store, id);
    let watcher = Watcher { state, caller, reads, since, _counted: counted };
    let first = (watcher, Next::First(Arc::new(first)), view);
    let stream = futures::stream::unfold(first, async |(mut watcher, next, view)| {
        let item = match next {
            Next::Over => return None,
            Next::First(item) => item,
            Next::After(last) => watcher.next_change(&last).await?,
        };
        let over = item.is_over();
        let event = Event::default().event(if over { "done" } else { "progress" });
        // A view is plain data, so serialising it does not fail. A failure would end the stream.
        let event = event.json_data(view(&watcher.caller, &item)).ok()?;
        let next = if over { Next::Over } else { Next::After(item) };
        Some((Ok(event), (watcher, next, view)))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

impl<T: Followed> Watcher<T> {
    /// Waits for a change. `None`: the service stops, the item is deleted, or the key is invalid.
    async fn next_change(&mut self, last: &T) -> Option<Arc<T>> {
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
                Some(Read::Found(began, now)) if began >= self.since && now.differs(last) => {
                    return Some(now);
                }
                Some(Read::Gone) => return None,
                _ => {}
            }
        }
    }
}
