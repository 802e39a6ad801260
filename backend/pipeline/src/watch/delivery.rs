//! Sends the pending alerts of each watchlist to its webhook, one after the other and in order. The
//! id of the alert is the id of the message, so a receiver recognises a repeated message. The
//! signing is in `webhooks`.
//!
//! A process locks a watchlist on one connection while it delivers its alerts. If the process is
//! killed, the connection closes, and another process continues within a second. A job of the queue
//! would continue only after its lease has expired.
use crate::Crawls;
use crate::webhooks::{Attempt, DELIVERY_PLACES, GONE_TEXT, Message, WebhookSender, retry_wait};
use crawler::Fetcher;
use domain::{DeliveryState, WatchNotify};
use metrics::{counter, describe_counter};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::watch::WatchListener;
use store::watch::alerts::{Alert, DeliveryLocks, PendingDelivery};
use store::{Store, StoreError};
use time::OffsetDateTime;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

/// Maximum wait between two attempts to deliver an alert.
const MAX_WAIT: Duration = Duration::from_secs(300);
/// Interval between searches for due deliveries: retries, and those of a killed process.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Wait after an error of the database.
const ERROR_WAIT: Duration = Duration::from_secs(1);
/// Time for which the alerts of a watchlist are delivered without a break, and the break after it.
/// Other watchlists can then use its place.
const TIME_SLICE: Duration = Duration::from_secs(5);
const BREAK: Duration = Duration::from_millis(100);
/// Maximum number of watchlists of one collection whose alerts are delivered at a time.
const COLLECTION_WATCHLISTS: usize = DELIVERY_PLACES / 4;

/// Delivers alerts. One per process is enough.
pub struct Deliverer(Arc<Delivery>);

struct Delivery {
    store: Store,
    sender: WebhookSender,
    retry: Duration,
}

/// The watchlists that this process delivers.
struct Active {
    locks: DeliveryLocks,
    /// Each task returns the wait before its watchlist should be tried again.
    tasks: JoinSet<Duration>,
    /// The watchlists of the tasks, with their collections.
    watchlists: HashMap<Id, (Uuid, Uuid)>,
    /// Watchlists that wait for a place, after a time slice, or after an error of the database.
    postponed: HashMap<Uuid, Instant>,
}

impl Deliverer {
    pub fn new(store: Store, crawls: &Crawls, fetcher: Fetcher) -> Self {
        describe_counter!(
            "facecrawl_alert_deliveries_total",
            "Number of attempts to deliver an alert, and of deliveries that expired, by the state afterwards."
        );
        let config = crawls.config();
        // Alerts have their own places, so that they and the messages of crawls do not wait for
        // each other.
        let sender = WebhookSender::new(store.clone(), fetcher, config.webhook_secret.clone());
        Self(Arc::new(Delivery { store, sender, retry: config.webhook_retry }))
    }

    /// Delivers alerts until `shutdown` is cancelled. Another process then repeats a message that
    /// was being sent.
    pub async fn run(self, shutdown: CancellationToken) {
        let forever = async {
            loop {
                if let Err(error) = self.run_until_error().await {
                    tracing::warn!(%error, "failed to deliver alerts; trying again");
                }
                tokio::time::sleep(ERROR_WAIT).await;
            }
        };
        let _stopped: Option<()> = shutdown.run_until_cancelled(forever).await;
    }

    /// Returns when the database fails. The locks are then lost, and all tasks are aborted.
    async fn run_until_error(&self) -> Result<(), StoreError> {
        let mut listener: WatchListener = self.0.store.alerts().listen().await?;
        let mut active = Active {
            locks: self.0.store.alerts().delivery_locks().await?,
            tasks: JoinSet::new(),
            watchlists: HashMap::new(),
            postponed: HashMap::new(),
        };
        loop {
            active.locks.check().await?;
            active.start_due(&self.0).await?;
            let now = Instant::now();
            let next = active.postponed.values().map(|until| until.saturating_duration_since(now)).min();
            tokio::select! {
                Some(ended) = active.tasks.join_next_with_id() => {
                    let (id, wait) = match ended {
                        Ok(ended) => ended,
                        Err(error) => (error.id(), ERROR_WAIT),
                    };
                    active.end(id, wait).await?;
                }
                notified = listener.wait() => notified?,
                () = tokio::time::sleep(next.map_or(SCAN_INTERVAL, |next| next.min(SCAN_INTERVAL))) => {}
            }
        }
    }
}

impl Active {
    /// Starts a task for each watchlist with a due delivery that no process delivers.
    async fn start_due(&mut self, delivery: &Arc<Delivery>) -> Result<(), StoreError> {
        let now = Instant::now();
        self.postponed.retain(|_, until| *until > now);
        for (watchlist, collection) in delivery.store.alerts().due_deliveries().await? {
            let of_collection = self.watchlists.values().filter(|(_, other)| *other == collection).count();
            let is_active = self.watchlists.values().any(|(other, _)| *other == watchlist);
            let has_place = self.watchlists.len() < DELIVERY_PLACES && of_collection < COLLECTION_WATCHLISTS;
            if is_active || !has_place || self.postponed.contains_key(&watchlist) {
                continue;
            }
            if self.locks.try_lock(watchlist).await? {
                let delivery = delivery.clone();
                let task = self.tasks.spawn(async move { delivery.deliver_all(watchlist).await });
                self.watchlists.insert(task.id(), (watchlist, collection));
            }
        }
        Ok(())
    }

    /// Unlocks the watchlist of a task that has ended. The notification of an alert that was stored
    /// meanwhile had no effect, because the watchlist was locked. The caller therefore looks again.
    async fn end(&mut self, task: Id, wait: Duration) -> Result<(), StoreError> {
        let Some((watchlist, _)) = self.watchlists.remove(&task) else { return Ok(()) };
        if wait > Duration::ZERO {
            self.postponed.insert(watchlist, Instant::now() + wait);
        }
        self.locks.unlock(watchlist).await
    }
}

impl Delivery {
    /// Delivers the due alerts of a watchlist. Returns the wait before it should be tried again.
    async fn deliver_all(&self, watchlist: Uuid) -> Duration {
        let started = Instant::now();
        loop {
            if started.elapsed() >= TIME_SLICE {
                return BREAK;
            }
            let delivered = match self.store.alerts().next_delivery(watchlist).await {
                Ok(Some(pending)) if pending.is_due => self.deliver(&pending).await,
                Ok(_) => return Duration::ZERO,
                Err(error) => Err(error),
            };
            match delivered {
                Ok(Duration::ZERO) => {}
                Ok(wait) => return wait,
                Err(error) => {
                    tracing::warn!(%watchlist, %error, "failed to deliver an alert; trying again");
                    return ERROR_WAIT;
                }
            }
        }
    }

    /// Sends one alert, or ends its delivery. Returns zero, or the wait before the next attempt to
    /// acquire a place.
    async fn deliver(&self, pending: &PendingDelivery) -> Result<Duration, StoreError> {
        let PendingDelivery { alert, webhook, is_expired, .. } = pending;
        let alerts = self.store.alerts();
        let Some(url) = webhook.as_deref().and_then(|webhook| Url::parse(webhook).ok()) else {
            alerts.end_delivery(alert.id, DeliveryState::None).await?;
            return Ok(Duration::ZERO);
        };
        if *is_expired {
            alerts.end_delivery(alert.id, DeliveryState::Failed).await?;
            count_attempt(DeliveryState::Failed);
            return Ok(Duration::ZERO);
        }
        let _place =
            match self.sender.acquire(&url, alert.collection_id, alert.watchlist_id, alert.attempts == 0) {
                Ok(place) => place,
                Err(wait) => return Ok(wait),
            };
        let event = format!("alert.{}", alert.notify);
        let body = Body { event: &event, delivery: alert.id, alert: alert.into() };
        let message = Message {
            url: &url,
            collection: alert.collection_id,
            event: &event,
            delivery: alert.id,
            body: serde_json::to_string(&body).expect("a message is plain data"),
        };
        let (state, error) = match self.sender.send(message).await? {
            Attempt::Accepted => (DeliveryState::Delivered, None),
            Attempt::Gone => (DeliveryState::Failed, Some(GONE_TEXT.to_owned())),
            Attempt::Failed(reason) => (DeliveryState::Pending, Some(reason)),
        };
        let failures = alert.attempts.unsigned_abs().saturating_add(1);
        let wait = retry_wait(self.retry, failures).min(MAX_WAIT);
        alerts.record_attempt(alert.id, state, error.as_deref(), wait).await?;
        count_attempt(state);
        Ok(Duration::ZERO)
    }
}

fn count_attempt(state: DeliveryState) {
    counter!("facecrawl_alert_deliveries_total", "outcome" => state.as_str()).increment(1);
}

/// The body of a message.
#[derive(Serialize)]
struct Body<'a> {
    event: &'a str,
    delivery: Uuid,
    alert: AlertMessage<'a>,
}

/// An alert in the form of a webhook message. It contains nothing that an attempt changes, so
/// repetitions are equal, and no name of a person and no address.
#[derive(Serialize)]
struct AlertMessage<'a> {
    id: Uuid,
    sequence: i64,
    notify: WatchNotify,
    collection: &'a str,
    watchlist_id: Uuid,
    face_id: Uuid,
    image_id: Uuid,
    subject_id: Option<Uuid>,
    watched_face_id: Option<Uuid>,
    similarity: Option<f32>,
    /// The name of the camera.
    stream: Option<&'a str>,
    #[serde(with = "time::serde::rfc3339")]
    stored_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl<'a> From<&'a Alert> for AlertMessage<'a> {
    fn from(alert: &'a Alert) -> Self {
        Self {
            id: alert.id,
            sequence: alert.sequence,
            notify: alert.notify,
            collection: &alert.collection,
            watchlist_id: alert.watchlist_id,
            face_id: alert.face_id,
            image_id: alert.image_id,
            subject_id: alert.subject_id,
            watched_face_id: alert.watched_face_id,
            similarity: alert.similarity,
            stream: alert.stream.as_deref(),
            stored_at: alert.stored_at,
            created_at: alert.created_at,
        }
    }
}
