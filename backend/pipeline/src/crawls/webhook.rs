//! Handles `deliver_webhook`: sends one signed message to a crawl's webhook URL, and retries until
//! the receiver accepts it. Derives the secrets of collections.
//! Neither the URL nor a secret is written to a log or to a job's record, because both may grant
//! access.
//!
//! Each secret is derived from the service's `WEBHOOK_SECRET` and a random salt in the database.
//! Neither value suffices on its own to sign a message.
use super::{CrawlError, Crawls};
use crate::admission::places::{Place, Places};
use crate::crawls::{Config, closing};
use crate::domain::jobs::WebhookMessage;
use crate::domain::{CrawlOptions, Secret, hex, jobs};
use crawler::Fetcher;
use queue::{ClaimedJob, Handler, RunEnd};
use std::sync::Arc;
use std::time::Duration;
use store::collections::{SALT_BYTES, WebhookSigner};
use store::{Store, StoreError, Tx, keys};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Maximum wait between two deliveries.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// HTTP status of a receiver that accepts no further messages.
const GONE: u16 = 410;

pub(crate) struct DeliverWebhook {
    store: Store,
    fetcher: Fetcher,
    secret: Option<Secret>,
    retry: Duration,
    deliveries: DeliveryPlaces,
}

impl DeliverWebhook {
    pub(crate) fn new(store: Store, config: &Config, fetcher: Fetcher) -> Self {
        let (secret, retry) = (config.webhook_secret.clone(), config.webhook_retry);
        Self { store, fetcher, secret, retry, deliveries: DeliveryPlaces::default() }
    }

    async fn deliver(&self, job: &ClaimedJob, message: &WebhookMessage) -> Result<RunEnd, StoreError> {
        let crawl = match self.store.crawls().get(message.crawl_id).await {
            Err(StoreError::NotFound { .. }) => return Ok(RunEnd::Done),
            crawl => crawl?,
        };
        let options: Result<CrawlOptions, _> = serde_json::from_value(crawl.options.clone());
        let Some(url) = options.ok().and_then(|options| options.webhook) else { return Ok(RunEnd::Done) };
        let host = crawler::urls::host_key(&url);
        let _permit = match self.deliveries.acquire(&host, crawl.collection_id, job.attempt <= 1) {
            Ok(permit) => permit,
            Err(wait) => return Ok(RunEnd::Snooze(wait)),
        };
        let Some(secret) = &self.secret else {
            return Ok(self.retry_later(job, "WEBHOOK_SECRET is not set on this worker".into()));
        };
        let signers = self.store.collections().webhook_signers(crawl.collection_id).await?;
        let progress = self.store.crawls().progress(crawl.id).await?;
        let body = serde_json::json!({
            "event": message.event,
            "delivery": job.claim.id,
            "crawl": closing::webhook_message(&crawl, &progress),
        })
        .to_string();
        let timestamp = OffsetDateTime::now_utc().unix_timestamp().to_string();
        let headers = [
            ("content-type", "application/json".to_owned()),
            ("x-facecrawl-event", message.event.clone()),
            ("x-facecrawl-delivery", job.claim.id.to_string()),
            ("x-facecrawl-signature", signatures(&signing_secrets(secret, &signers), &timestamp, &body)),
            ("x-facecrawl-timestamp", timestamp),
        ];
        Ok(match self.fetcher.post(&url, &headers, body.into()).await {
            Ok(status) if (200..300).contains(&status) => RunEnd::Done,
            Ok(GONE) => RunEnd::Discard("the webhook responded with status 410 (gone)".into()),
            Ok(status) => self.retry_later(job, format!("the webhook responded with status {status}")),
            Err(error) => self
                .retry_later(job, format!("the webhook could not be reached ({}): {error}", error.reason())),
        })
    }

    fn retry_later(&self, job: &ClaimedJob, reason: String) -> RunEnd {
        let tripled = 3_u32.saturating_pow(u32::from(job.attempt.unsigned_abs()).saturating_sub(1));
        let wait = self.retry.saturating_mul(tripled).min(MAX_WAIT);
        RunEnd::Retry(reason, Some(wait))
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

/// Returns the comma-separated signatures with each secret, newest first. During a rotation there
/// are two.
fn signatures(secrets: &[Secret], timestamp: &str, body: &str) -> String {
    let values: Vec<String> = secrets.iter().map(|secret| sign(secret, timestamp, body)).collect();
    values.join(",")
}

/// Returns `sha256=` and the hexadecimal HMAC-SHA256 (RFC 2104) of `timestamp.body` under the
/// secret. The signed timestamp prevents the replay of an old message as a new one.
fn sign(secret: &Secret, timestamp: &str, body: &str) -> String {
    format!("sha256={}", hex(&secret.hmac(&[timestamp.as_bytes(), b".", body.as_bytes()])))
}

/// Maximum number of messages that a process sends concurrently ("places"). A message that waits
/// for its receiver uses a connection and little memory.
pub const DELIVERY_PLACES: usize = 32;
/// Maximum number of these places for messages of one collection to one receiver, for one
/// collection, and for messages that failed before.
const RECEIVER_PLACES: usize = 1;
const COLLECTION_PLACES: usize = DELIVERY_PLACES / 4;
const RETRY_PLACES: usize = DELIVERY_PLACES / 2;
/// Interval between the retry times of messages without a place, and maximum time to a retry.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_WAIT: Duration = Duration::from_secs(60);

/// The places for messages.
struct DeliveryPlaces(Arc<Places<DeliveryGroup>>);

/// The groups of messages whose number of places is limited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum DeliveryGroup {
    /// A host that receives messages of a collection. Each collection has its own place, so that it
    /// cannot delay the messages of other collections to the same host.
    Receiver(Uuid, String),
    Collection(Uuid),
    LaterAttempts,
}

impl DeliveryGroup {
    fn max_places(&self) -> usize {
        match self {
            Self::Receiver(..) => RECEIVER_PLACES,
            Self::Collection(_) => COLLECTION_PLACES,
            Self::LaterAttempts => RETRY_PLACES,
        }
    }
}

impl DeliveryPlaces {
    /// Occupies a place for a message to a host, or returns the wait before the next attempt.
    fn acquire(
        &self,
        host: &str,
        collection: Uuid,
        is_first_attempt: bool,
    ) -> Result<Place<DeliveryGroup>, Duration> {
        let mut groups =
            vec![DeliveryGroup::Receiver(collection, host.to_owned()), DeliveryGroup::Collection(collection)];
        if !is_first_attempt {
            groups.push(DeliveryGroup::LaterAttempts);
        }
        self.0.acquire(groups, DeliveryGroup::max_places)
    }
}

impl Default for DeliveryPlaces {
    fn default() -> Self {
        Self(Arc::new(Places::new(RETRY_INTERVAL, MAX_RETRY_WAIT)))
    }
}

/// Prefix of the HMAC's input, so that the HMAC never equals one for another purpose.
const LABEL: &[u8] = b"facecrawl webhook secret 1 ";

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

/// Returns the secrets that sign a message.
pub(crate) fn signing_secrets(service: &Secret, signers: &[WebhookSigner]) -> Vec<Secret> {
    let secret = |signer: &WebhookSigner| match signer {
        WebhookSigner::Own(salt) => derive_secret(service, salt),
        WebhookSigner::Service => service.clone(),
    };
    signers.iter().map(secret).collect()
}

fn derive_secret(service: &Secret, salt: &[u8]) -> Secret {
    Secret::new(hex(&service.hmac(&[LABEL, salt])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_signature_matches_openssl_hmac() {
        // Output of: printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef
        assert_eq!(
            sign(&Secret::new("0123456789abcdef"), "1700000000", "{\"a\":1}"),
            "sha256=9eb18f493f8ec135d9eb2dad817c369bb4e9cbfa818657897a7437c1cd8c3a23"
        );
    }

    #[test]
    fn limits_deliveries_by_receiver_collection_and_attempt() {
        let deliveries = DeliveryPlaces::default();
        let hosts = |name: &str| (0..DELIVERY_PLACES).map(|n| format!("{name}{n}")).collect::<Vec<_>>();
        let acquire_all = |name: &str, collection, is_first_attempt| -> Vec<Place<DeliveryGroup>> {
            hosts(name)
                .iter()
                .filter_map(|host| deliveries.acquire(host, collection, is_first_attempt).ok())
                .collect()
        };
        let slow = deliveries.acquire("slow", Uuid::from_u128(1), true);
        assert!(slow.is_ok() && deliveries.acquire("slow", Uuid::from_u128(1), true).is_err());
        assert!(
            deliveries.acquire("slow", Uuid::from_u128(2), true).is_ok(),
            "another collection has its own place"
        );
        assert_eq!(acquire_all("a", Uuid::from_u128(1), true).len(), COLLECTION_PLACES - 1);
        let retries: Vec<_> =
            (10..20).map(|name| acquire_all(&format!("{name}-"), Uuid::from_u128(name), false)).collect();
        assert_eq!(retries.iter().map(Vec::len).sum::<usize>(), RETRY_PLACES);
        assert_eq!(
            acquire_all("b", Uuid::from_u128(3), true).len(),
            COLLECTION_PLACES,
            "retries leave places for first attempts"
        );
        drop((slow, retries));
        assert!(deliveries.acquire("slow", Uuid::from_u128(2), false).is_ok());
        assert!(deliveries.0.is_unused(), "no place is occupied");
    }

    #[test]
    fn spreads_retry_waits_of_rejected_deliveries() {
        let deliveries = DeliveryPlaces::default();
        let _place = deliveries.acquire("slow", Uuid::nil(), true);
        let waits: Vec<Duration> =
            (0..1_000).filter_map(|_| deliveries.acquire("slow", Uuid::nil(), true).err()).collect();
        assert!(waits.len() == 1_000 && waits.iter().all(|wait| *wait <= MAX_RETRY_WAIT));
        assert!(waits[99] > RETRY_INTERVAL * 50, "{waits:?}");
    }

    #[test]
    fn webhook_secret_is_derived_from_service_secret_and_salt() {
        let service = Secret::new("0123456789abcdef");
        let derived = derive_secret(&service, &[1; SALT_BYTES]);
        assert_eq!(derived.reveal().len(), 64);
        assert_eq!(derived, derive_secret(&service, &[1; SALT_BYTES]));
        assert_ne!(derived, derive_secret(&service, &[2; SALT_BYTES]));
        assert_ne!(derived, derive_secret(&Secret::new("another secret!!"), &[1; SALT_BYTES]));
        let signing =
            signing_secrets(&service, &[WebhookSigner::Own(vec![1; SALT_BYTES]), WebhookSigner::Service]);
        assert_eq!(signing, [derived, service]);
    }
}
