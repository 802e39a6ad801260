//! Handles `deliver_webhook`: sends one signed message to a crawl's webhook URL, and retries until
//! the receiver accepts it. Replaces the secrets of collections. The signing is in `webhooks`.
use super::{CrawlError, Crawls};
use crate::crawls::{Config, closing};
use crate::domain::jobs::WebhookMessage;
use crate::domain::{CrawlOptions, jobs};
use crate::webhooks::{Attempt, GONE_TEXT, Message, WebhookSender, derive_secret, retry_wait};
use crawler::Fetcher;
use queue::{ClaimedJob, Handler, RunEnd};
use std::time::Duration;
use store::collections::SALT_BYTES;
use store::{Store, StoreError, Tx, keys};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) struct DeliverWebhook {
    store: Store,
    sender: WebhookSender,
    retry: Duration,
}

impl DeliverWebhook {
    pub(crate) fn new(store: Store, config: &Config, fetcher: Fetcher) -> Self {
        let sender = WebhookSender::new(store.clone(), fetcher, config.webhook_secret.clone());
        Self { store, sender, retry: config.webhook_retry }
    }

    async fn deliver(&self, job: &ClaimedJob, message: &WebhookMessage) -> Result<RunEnd, StoreError> {
        let crawl = match self.store.crawls().get(message.crawl_id).await {
            Err(StoreError::NotFound { .. }) => return Ok(RunEnd::Done),
            crawl => crawl?,
        };
        let options: Result<CrawlOptions, _> = serde_json::from_value(crawl.options.clone());
        let Some(url) = options.ok().and_then(|options| options.webhook) else { return Ok(RunEnd::Done) };
        let _place =
            match self.sender.acquire(&url, crawl.collection_id, crawl.collection_id, job.attempt <= 1) {
                Ok(place) => place,
                Err(wait) => return Ok(RunEnd::Snooze(wait)),
            };
        let progress = self.store.crawls().progress(crawl.id).await?;
        let body = serde_json::json!({
            "event": message.event,
            "delivery": job.claim.id,
            "crawl": closing::webhook_message(&crawl, &progress),
        })
        .to_string();
        let message = Message {
            url: &url,
            collection: crawl.collection_id,
            event: &message.event,
            delivery: job.claim.id,
            body,
        };
        Ok(match self.sender.send(message).await? {
            Attempt::Accepted => RunEnd::Done,
            Attempt::Gone => RunEnd::Discard(GONE_TEXT.into()),
            Attempt::Failed(reason) => {
                RunEnd::Retry(reason, Some(retry_wait(self.retry, u32::from(job.attempt.unsigned_abs()))))
            }
        })
    }
}

#[async_trait::async_trait]
impl Handler for DeliverWebhook {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> RunEnd {
        let message: WebhookMessage = match jobs::parse(&job.payload) {
            Ok(message) => message,
            Err(error) => return RunEnd::Discard(error),
        };
        tokio::select! {
            delivered = self.deliver(&job, &message) => {
                let outcome = delivered.unwrap_or_else(|error| RunEnd::Retry(error.to_string(), None));
                let label = match outcome {
                    // The message was not sent.
                    RunEnd::Snooze(_) => return outcome,
                    RunEnd::Done => "delivered",
                    _ => "failed",
                };
                metrics::counter!("facecrawl_webhook_deliveries_total", "outcome" => label).increment(1);
                outcome
            }
            () = cancel.cancelled() => RunEnd::Snooze(Duration::ZERO),
        }
    }
}

/// A new secret. The service returns it only once.
#[derive(Clone, Debug)]
pub struct NewWebhookSecret {
    /// 64 hexadecimal digits.
    pub secret: String,
    pub created_at: OffsetDateTime,
    /// The time until which messages are also signed with the previous secret.
    pub overlaps_until: OffsetDateTime,
}

impl Crawls {
    /// Creates a new secret for a collection's webhooks. For the duration `overlap`, messages are
    /// also signed with the previous secret.
    ///
    /// # Errors
    /// Fails with `StoreError::Conflict` if the service has no `WEBHOOK_SECRET`, and with
    /// `StoreError::NotFound` if the collection does not exist.
    pub async fn rotate_webhook_secret(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        overlap: Duration,
    ) -> Result<NewWebhookSecret, CrawlError> {
        let Some(service) = &self.config.webhook_secret else {
            let reason =
                "WEBHOOK_SECRET is not set on this service; the secrets of collections are derived from it";
            return Err(StoreError::Conflict(reason.into()).into());
        };
        let salt = keys::random_bytes::<SALT_BYTES>()?;
        let created =
            self.store.collections().rotate_webhook_secret(tx.conn(), collection, &salt, overlap).await?;
        Ok(NewWebhookSecret {
            secret: derive_secret(service, &salt).reveal().to_owned(),
            created_at: created.created_at,
            overlaps_until: created.overlaps_until,
        })
    }
}
