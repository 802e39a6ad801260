//! Handles `deliver_alerts`: sends the pending alerts of a watchlist to its webhook, one after the
//! other and in order. The alert's id is the id of the message, so a receiver recognises a message
//! that is repeated. The signing is in `webhooks`.
//!
//! The job ends only if no alert is pending. It checks this under the lock of the numbers of the
//! alerts, under which alerts are stored and jobs are enqueued. So no alert is left without a job.
use crate::crawls::Config;
use crate::domain::jobs::AlertDeliveries;
use crate::domain::{ChangeError, jobs};
use crate::webhooks::{Attempt, GONE_TEXT, Message, WebhookSender, retry_wait};
use crawler::Fetcher;
use domain::{DeliveryState, WatchNotify};
use metrics::{counter, describe_counter};
use queue::{ClaimedJob, Handler, Queue, QueueError, RunEnd};
use serde::Serialize;
use std::time::Duration;
use store::watch::alerts::{Alert, PendingDelivery};
use store::{Store, StoreError};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

/// Maximum wait between two attempts to deliver an alert.
const MAX_WAIT: Duration = Duration::from_secs(300);

pub(crate) struct DeliverAlerts {
    store: Store,
    queue: Queue,
    sender: WebhookSender,
    retry: Duration,
}

impl DeliverAlerts {
    pub(crate) fn new(store: Store, queue: Queue, config: &Config, fetcher: Fetcher) -> Self {
        describe_counter!(
            "facecrawl_alert_deliveries_total",
            "Number of attempts to deliver an alert, by the state of the delivery afterwards."
        );
        // Alerts have their own places, so that they and the messages of crawls do not wait for
        // each other.
        let sender = WebhookSender::new(store.clone(), fetcher, config.webhook_secret.clone());
        Self { store, queue, sender, retry: config.webhook_retry }
    }

    async fn deliver_all(&self, job: &ClaimedJob, watchlist: Uuid) -> Result<RunEnd, ChangeError> {
        loop {
            match self.store.alerts().next_delivery(watchlist).await? {
                Some(pending) => {
                    if let Some(wait) = self.deliver(&pending).await? {
                        return Ok(RunEnd::Snooze(wait));
                    }
                }
                None if self.end(job, watchlist).await? => return Ok(RunEnd::Settled),
                None => {}
            }
        }
    }

    /// Sends one alert. Returns the wait before the next attempt, if it must be sent again.
    async fn deliver(&self, pending: &PendingDelivery) -> Result<Option<Duration>, StoreError> {
        let PendingDelivery { alert, webhook, is_expired } = pending;
        let alerts = self.store.alerts();
        let Some(url) = webhook.as_deref().and_then(|webhook| Url::parse(webhook).ok()) else {
            alerts.end_delivery(alert.id, DeliveryState::None).await?;
            return Ok(None);
        };
        if *is_expired {
            alerts.end_delivery(alert.id, DeliveryState::Failed).await?;
            return Ok(None);
        }
        let _place = match self.sender.acquire(&url, alert.collection_id, alert.attempts == 0) {
            Ok(place) => place,
            Err(wait) => return Ok(Some(wait)),
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
        alerts.record_attempt(alert.id, state, error.as_deref()).await?;
        counter!("facecrawl_alert_deliveries_total", "outcome" => state.as_str()).increment(1);
        let failures = alert.attempts.unsigned_abs().saturating_add(1);
        Ok((state == DeliveryState::Pending).then(|| retry_wait(self.retry, failures).min(MAX_WAIT)))
    }

    /// Completes the job if no alert is pending.
    async fn end(&self, job: &ClaimedJob, watchlist: Uuid) -> Result<bool, ChangeError> {
        let mut tx = self.store.begin().await?;
        if !self.store.alerts().may_end_delivery(tx.conn(), job.tenant, watchlist).await? {
            return Ok(false);
        }
        self.queue.complete(tx.conn(), job.claim).await?;
        tx.commit().await?;
        Ok(true)
    }
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
            stored_at: alert.stored_at,
            created_at: alert.created_at,
        }
    }
}

#[async_trait::async_trait]
impl Handler for DeliverAlerts {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> RunEnd {
        let payload: AlertDeliveries = match jobs::parse(&job.payload) {
            Ok(payload) => payload,
            Err(error) => return RunEnd::Discard(error),
        };
        tokio::select! {
            delivered = self.deliver_all(&job, payload.watchlist_id) => match delivered {
                Ok(end) => end,
                Err(ChangeError::Queue(QueueError::Stale(_))) => RunEnd::Stale,
                Err(error) => RunEnd::Retry(error.to_string(), None),
            },
            () = cancel.cancelled() => RunEnd::Snooze(Duration::ZERO),
        }
    }
}
