//! Handles `deliver_webhook`: sends one signed message to a crawl's webhook URL, and retries until
//! the receiver accepts it. The limits on concurrent messages are in `deliveries`. Neither the URL
//! nor the secret is written to a log or to a job's record, because both may grant access.

use super::deliveries::Deliveries;
use crate::crawls::Config;
use crate::crawls::closing::notifications;
use crate::crawls::webhook_secrets::secrets;
use crate::domain::jobs::{self, WebhookMessage};
use crate::domain::{CrawlOptions, Secret};
use crawler::Fetcher;
use hmac::{Hmac, KeyInit, Mac};
use queue::{ClaimedJob, Handler, Outcome};
use sha2::Sha256;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, StoreError};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

/// Maximum wait between two deliveries.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// HTTP status of a receiver that accepts no further messages.
const GONE: u16 = 410;

pub(crate) struct DeliverWebhook {
    store: Store,
    fetcher: Fetcher,
    secret: Option<Secret>,
    retry: Duration,
    deliveries: Arc<Deliveries>,
}

impl DeliverWebhook {
    pub(crate) fn new(store: Store, config: &Config, fetcher: Fetcher) -> Self {
        let (secret, retry) = (config.webhook_secret.clone(), config.webhook_retry);
        Self { store, fetcher, secret, retry, deliveries: Arc::default() }
    }

    async fn deliver(&self, job: &ClaimedJob, message: &WebhookMessage) -> Outcome {
        let crawl = match self.store.crawl(message.crawl_id).await {
            Ok(crawl) => crawl,
            Err(StoreError::NotFound { .. }) => return Outcome::Done,
            Err(error) => return Outcome::Retry(error.to_string(), None),
        };
        let options: Result<CrawlOptions, _> = serde_json::from_value(crawl.options.clone());
        let Some(url) = options.ok().and_then(|options| options.webhook) else { return Outcome::Done };
        let host = crawler::urls::host_key(&url);
        let _permit = match self.deliveries.acquire(&host, crawl.collection_id, job.attempt <= 1) {
            Ok(permit) => permit,
            Err(wait) => return Outcome::Snooze(wait),
        };
        let Some(secret) = &self.secret else {
            return self.retry_later(job, "WEBHOOK_SECRET is not set on this worker".into());
        };
        let signers = match self.store.webhook_signers(crawl.collection_id).await {
            Ok(signers) => signers,
            Err(error) => return Outcome::Retry(error.to_string(), None),
        };
        let progress = match self.store.crawl_progress(crawl.id).await {
            Ok(progress) => progress,
            Err(error) => return Outcome::Retry(error.to_string(), None),
        };
        let body = serde_json::json!({
            "event": message.event,
            "delivery": job.claim.id,
            "crawl": notifications::report(&crawl, &progress),
        })
        .to_string();
        let timestamp = OffsetDateTime::now_utc().unix_timestamp().to_string();
        let headers = [
            ("content-type", "application/json".to_owned()),
            ("x-facecrawl-event", message.event.clone()),
            ("x-facecrawl-delivery", job.claim.id.to_string()),
            ("x-facecrawl-signature", signatures(&secrets(secret, &signers), &timestamp, &body)),
            ("x-facecrawl-timestamp", timestamp),
        ];
        match self.fetcher.post(&url, &headers, body.into()).await {
            Ok(status) if (200..300).contains(&status) => Outcome::Done,
            Ok(GONE) => Outcome::Discard("the webhook responded with status 410 (gone)".into()),
            Ok(status) => self.retry_later(job, format!("the webhook responded with status {status}")),
            Err(error) => self
                .retry_later(job, format!("the webhook could not be reached ({}): {error}", error.reason())),
        }
    }

    fn retry_later(&self, job: &ClaimedJob, why: String) -> Outcome {
        let tripled = 3_u32.saturating_pow(u32::from(job.attempt.unsigned_abs()).saturating_sub(1));
        let wait = self.retry.saturating_mul(tripled).min(MAX_WAIT);
        Outcome::Retry(why, Some(wait))
    }
}

#[async_trait::async_trait]
impl Handler for DeliverWebhook {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> Outcome {
        let message: WebhookMessage = match jobs::read(&job.payload) {
            Ok(message) => message,
            Err(error) => return Outcome::Discard(error),
        };
        tokio::select! {
            outcome = self.deliver(&job, &message) => {
                let label = match outcome {
                    // The message was not sent.
                    Outcome::Snooze(_) => return outcome,
                    Outcome::Done => "delivered",
                    _ => "failed",
                };
                metrics::counter!("facecrawl_webhook_deliveries_total", "outcome" => label).increment(1);
                outcome
            }
            () = cancel.cancelled() => Outcome::Snooze(Duration::ZERO),
        }
    }
}

/// Returns a signature for each secret, newest first, comma-separated; two during a rotation.
fn signatures(secrets: &[Secret], timestamp: &str, body: &str) -> String {
    let all: Vec<String> = secrets.iter().map(|secret| sign(secret, timestamp, body)).collect();
    all.join(",")
}

/// Returns `sha256=` and the hexadecimal HMAC-SHA256 (RFC 2104) of `timestamp.body` under the
/// secret. The signed timestamp prevents the replay of an old message as a new one.
fn sign(secret: &Secret, timestamp: &str, body: &str) -> String {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes()).expect("HMAC accepts a key of any length");
    for part in [timestamp, ".", body] {
        mac.update(part.as_bytes());
    }
    let digits: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_what_any_hmac_tool_says() {
        // Output of: printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef
        assert_eq!(
            sign(&Secret::new("0123456789abcdef"), "1700000000", "{\"a\":1}"),
            "sha256=9eb18f493f8ec135d9eb2dad817c369bb4e9cbfa818657897a7437c1cd8c3a23"
        );
    }
}
