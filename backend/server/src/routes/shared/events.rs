//! Sends the changes of crawls and videos as server-sent events.
use crate::admission::EventStream;
use crate::auth::Caller;
use crate::follow::{Followable, Followers, Update};
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
    End,
}

struct Watcher<T> {
    state: AppState,
    caller: Caller,
    receiver: watch::Receiver<Option<Update<Arc<T>>>>,
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
pub(crate) async fn events<T: Followable, V: Serialize + 'static>(
    state: AppState,
    caller: Caller,
    followers: &Followers<T>,
    id: Uuid,
    view: fn(&Caller, &T) -> V,
) -> Result<Sse<impl futures::Stream<Item = Result<Event, Infallible>> + use<T, V>>> {
    let counted = state.event_streams.admit()?;
    let first = T::load(caller.store(), id).await?;
    let since = Instant::now();
    let receiver = followers.follow(&state.services.store, id);
    let watcher = Watcher { state, caller, receiver, since, _counted: counted };
    let first = (watcher, Next::First(Arc::new(first)), view);
    let stream = futures::stream::unfold(first, async |(mut watcher, next, view)| {
        let item = match next {
            Next::End => return None,
            Next::First(item) => item,
            Next::After(last) => watcher.next_change(&last).await?,
        };
        let has_ended = item.has_ended();
        let event = Event::default().event(if has_ended { "done" } else { "progress" });
        // A view is plain data, so serialising it does not fail. A failure would end the stream.
        let event = event.json_data(view(&watcher.caller, &item)).ok()?;
        let next = if has_ended { Next::End } else { Next::After(item) };
        Some((Ok(event), (watcher, next, view)))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

impl<T: Followable> Watcher<T> {
    /// Returns the next change, or `None` after the end of the service, of the item or of the key.
    async fn next_change(&mut self, last: &T) -> Option<Arc<T>> {
        loop {
            tokio::select! {
                () = self.state.shutdown.cancelled() => return None,
                changed = self.receiver.changed() => changed.ok()?,
            }
            let key_check = self.caller.recheck_key(&self.state.keyring, &self.state.services.store).await;
            if matches!(key_check, Err(error) if error.code() == Code::Unauthorized) {
                return None;
            }
            let result = self.receiver.borrow_and_update().clone();
            match result {
                Some(Update::Found(started, item)) if started >= self.since && item.differs_from(last) => {
                    return Some(item);
                }
                Some(Update::Deleted) => return None,
                _ => {}
            }
        }
    }
}
