//! Sends new alerts as server-sent events.
use super::alerts::AlertView;
use crate::admission::EventStream;
use crate::auth::Caller;
use crate::extract::{Bounded, Query};
use crate::follow::{AlertCount, Update};
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use store::watch::alerts::{Alert, AlertFilter};
use tokio::sync::watch;
use utoipa::IntoParams;

/// Number of alerts per read.
const ALERTS_PER_READ: i64 = 100;
const LAST_EVENT_ID: &str = "last-event-id";

/// Selects the alerts of an event stream.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Number of the last alert that the caller has; alerts with higher numbers follow. The header
    /// `last-event-id` takes precedence. Without both, only new alerts are sent.
    #[param(value_type = Option<u64>, minimum = 0)]
    after: Option<Bounded<0, { i64::MAX }>>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Watch).skip_connection_limit();

/// Follow the alerts of a collection as server-sent events.
///
/// Each event `alert` contains an alert in the form of `GET /alerts/{id}`, in the order of their
/// numbers. The id of the event is the number. A client that reconnects sends the last id in the
/// header `last-event-id`, and misses no alert that still exists.
#[utoipa::path(
    get, path = "/alerts/events", operation_id = "follow_alerts", tag = "watchlists",
    params(EventParams),
    responses((status = 200, description = "Events until the caller closes the connection", body = String, content_type = "text/event-stream",
        example = json!("id: 1815\nevent: alert\ndata: {\"id\": \"0198f1c2-7d10-7000-8000-4a6f1f6e2b01\", \"sequence\": 1815}\n\n"))),
)]
pub(super) async fn follow_alerts(
    state: AppState,
    caller: Caller,
    headers: HeaderMap,
    Query(params): Query<EventParams>,
) -> Result<Sse<impl futures::Stream<Item = Result<Event, Infallible>> + use<>>> {
    let counted = state.event_streams.admit()?;
    let collection = caller.collection(params.collection.as_deref()).await?.id;
    let sent = match last_event_id(&headers)?.or(params.after.map(Bounded::get)) {
        // After a restore of a backup, the numbers begin again below those that the client knows.
        Some(number) => number.min(caller.store().alerts().last_sequence(collection).await?),
        None => caller.store().alerts().last_sequence(collection).await?,
    };
    let receiver = state.alert_followers.follow(&state.services.store, collection);
    let filter = AlertFilter { collection_id: collection, ..AlertFilter::default() };
    let follower =
        Follower { state, caller, filter, receiver, sent, buffer: VecDeque::new(), _counted: counted };
    let stream = futures::stream::unfold(follower, async |mut follower| {
        let alert = follower.next().await?;
        let event = Event::default().id(alert.sequence.to_string()).event("alert");
        // A view is plain data, so serialising it does not fail. A failure would end the stream.
        let event = event.json_data(AlertView::from(alert)).ok()?;
        Some((Ok(event), follower))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|number| *number >= 0);
    number.map(Some).ok_or_else(|| {
        ApiError::for_field(Code::BadQuery, LAST_EVENT_ID, "the value is not an id of an event")
            .allowed(["the id of an event of this stream"])
    })
}

struct Follower {
    state: AppState,
    caller: Caller,
    filter: AlertFilter,
    receiver: watch::Receiver<Option<Update<Arc<AlertCount>>>>,
    /// Number of the last alert that was read.
    sent: i64,
    buffer: VecDeque<Alert>,
    _counted: EventStream,
}

impl Follower {
    /// Returns the next alert, or `None` after the end of the service, of the collection or of the
    /// key.
    async fn next(&mut self) -> Option<Alert> {
        loop {
            if let Some(alert) = self.buffer.pop_front() {
                return Some(alert);
            }
            self.check_key().await?;
            // After a failed read, `wait` returns when the last number has been read again.
            let rows = self.caller.store().alerts().list_after(&self.filter, self.sent, ALERTS_PER_READ);
            if let Ok(alerts) = rows.await {
                self.sent = alerts.last().map_or(self.sent, |alert| alert.sequence);
                self.buffer.extend(alerts);
            }
            while self.buffer.is_empty() && !self.wait().await? {}
        }
    }

    /// Returns `None` if the service stops or the key was revoked.
    async fn check_key(&self) -> Option<()> {
        if self.state.shutdown.is_cancelled() {
            return None;
        }
        let checked = self.caller.recheck_key(&self.state.keyring, &self.state.services.store).await;
        (!matches!(checked, Err(error) if error.code() == Code::Unauthorized)).then_some(())
    }

    /// Waits until the number of the last alert has been read again. Returns whether there may be
    /// new alerts, or `None` at the end of the stream.
    async fn wait(&mut self) -> Option<bool> {
        tokio::select! {
            () = self.state.shutdown.cancelled() => return None,
            changed = self.receiver.changed() => changed.ok()?,
        }
        self.check_key().await?;
        match &*self.receiver.borrow_and_update() {
            Some(Update::Found(_, count)) => Some(count.0 > self.sent),
            Some(Update::Deleted) => None,
            None => Some(false),
        }
    }
}
