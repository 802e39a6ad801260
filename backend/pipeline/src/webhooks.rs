//! Signs the messages to webhooks and sends them, within limits for each receiver and collection.
//! Derives the secrets of collections. `crawls::webhook` and `watch::delivery` decide what is sent,
//! and when.
//!
//! Each secret is derived from the service's `WEBHOOK_SECRET` and a random salt in the database.
//! Neither value suffices on its own to sign a message. Neither the URL nor a secret is written to
//! a log or to a job's record, because both may grant access.
use crate::admission::places::{Place, Places};
use crate::domain::{Secret, hex};
use crawler::Fetcher;
use std::sync::Arc;
use std::time::Duration;
use store::collections::WebhookSigner;
use store::{Store, StoreError};
use time::OffsetDateTime;
use url::Url;
use uuid::Uuid;

/// Maximum wait between two attempts to deliver a message.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// HTTP status of a receiver that accepts no further messages.
const GONE: u16 = 410;

/// Sends messages to webhooks. Each sender has its own places.
pub(crate) struct WebhookSender {
    store: Store,
    fetcher: Fetcher,
    secret: Option<Secret>,
    places: DeliveryPlaces,
}

/// A message to one webhook.
pub(crate) struct Message<'a> {
    pub(crate) url: &'a Url,
    pub(crate) collection: Uuid,
    pub(crate) event: &'a str,
    /// Id of the message, which each repetition has too.
    pub(crate) delivery: Uuid,
    /// The body, as JSON.
    pub(crate) body: String,
}

/// The result of one attempt to deliver a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Accepted,
    /// The receiver accepts no further messages.
    Gone,
    /// The reason, without the URL. The message should be sent again.
    Failed(String),
}

/// Text of [`Attempt::Gone`] in records.
pub(crate) const GONE_TEXT: &str = "the webhook responded with status 410 (gone)";

impl WebhookSender {
    pub(crate) fn new(store: Store, fetcher: Fetcher, secret: Option<Secret>) -> Self {
        Self { store, fetcher, secret, places: DeliveryPlaces::default() }
    }

    /// Occupies a place for one message, or returns the wait before the next attempt. A slow
    /// receiver of one `sender` does not delay the messages of other senders.
    pub(crate) fn acquire(
        &self,
        url: &Url,
        collection: Uuid,
        sender: Uuid,
        is_first_attempt: bool,
    ) -> Result<DeliveryPlace, Duration> {
        self.places.acquire(&crawler::urls::host_key(url), collection, sender, is_first_attempt)
    }

    /// Sends a message once, like [`Self::post`].
    ///
    /// # Errors
    /// Fails if the secrets of the collection cannot be read.
    pub(crate) async fn send(&self, message: Message<'_>) -> Result<Attempt, StoreError> {
        Ok(match self.post(message).await? {
            Ok(status) if is_success(status) => Attempt::Accepted,
            Ok(GONE) => Attempt::Gone,
            Ok(status) => Attempt::Failed(format!("the webhook responded with status {status}")),
            Err(reason) => Attempt::Failed(reason),
        })
    }

    /// Sends a message once. Follows no redirect, and sends nothing to a forbidden address. Returns
    /// the status of the response, or why there was none. The reason does not contain the URL.
    ///
    /// # Errors
    /// Fails if the secrets of the collection cannot be read.
    pub(crate) async fn post(&self, message: Message<'_>) -> Result<Result<u16, String>, StoreError> {
        let Some(secret) = &self.secret else {
            return Ok(Err("WEBHOOK_SECRET is not set on this worker".into()));
        };
        let signers = self.store.collections().webhook_signers(message.collection).await?;
        let timestamp = OffsetDateTime::now_utc().unix_timestamp().to_string();
        let signature = signatures(&signing_secrets(secret, &signers), &timestamp, &message.body);
        let headers = [
            ("content-type", "application/json".to_owned()),
            ("x-facecrawl-event", message.event.to_owned()),
            ("x-facecrawl-delivery", message.delivery.to_string()),
            ("x-facecrawl-signature", signature),
            ("x-facecrawl-timestamp", timestamp),
        ];
        let response = self.fetcher.post(message.url, &headers, message.body.into()).await;
        Ok(response
            .map_err(|error| format!("the webhook could not be reached ({}): {error}", error.reason())))
    }
}

/// Returns whether a receiver with this status has accepted the message.
pub(crate) fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// Returns the wait after the n-th failed attempt of a message, from 1. The first wait triples with
/// each failure, up to an hour.
pub(crate) fn retry_wait(first: Duration, failures: u32) -> Duration {
    first.saturating_mul(3_u32.saturating_pow(failures.saturating_sub(1))).min(MAX_WAIT)
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

/// Maximum number of messages that a [`WebhookSender`] sends concurrently ("places"). A process has
/// one sender for crawls and one for alerts. A message that waits for its receiver uses a
/// connection and little memory.
pub const DELIVERY_PLACES: usize = 32;
/// Maximum number of these places for messages of one collection to one receiver, for one
/// collection, and for messages that failed before.
const RECEIVER_PLACES: usize = 1;
const COLLECTION_PLACES: usize = DELIVERY_PLACES / 4;
const RETRY_PLACES: usize = DELIVERY_PLACES / 2;
/// Interval between the retry times of messages without a place, and maximum time to a retry.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_WAIT: Duration = Duration::from_secs(60);

/// A place for one message.
pub(crate) type DeliveryPlace = Place<DeliveryGroup>;

/// The places for messages.
struct DeliveryPlaces(Arc<Places<DeliveryGroup>>);

/// The groups of messages whose number of places is limited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DeliveryGroup {
    /// A host that receives messages of a sender: of all crawls of a collection, or of a watchlist.
    /// Each sender has its own place, so that it cannot delay the messages of others to the same
    /// host.
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
        sender: Uuid,
        is_first_attempt: bool,
    ) -> Result<DeliveryPlace, Duration> {
        let mut groups =
            vec![DeliveryGroup::Receiver(sender, host.to_owned()), DeliveryGroup::Collection(collection)];
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

/// Returns the secrets that sign a message.
fn signing_secrets(service: &Secret, signers: &[WebhookSigner]) -> Vec<Secret> {
    let secret = |signer: &WebhookSigner| match signer {
        WebhookSigner::Own(salt) => derive_secret(service, salt),
        WebhookSigner::Service => service.clone(),
    };
    signers.iter().map(secret).collect()
}

/// Returns the secret of a collection.
pub(crate) fn derive_secret(service: &Secret, salt: &[u8]) -> Secret {
    Secret::new(hex(&service.hmac(&[LABEL, salt])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::collections::SALT_BYTES;

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
                .filter_map(|host| deliveries.acquire(host, collection, collection, is_first_attempt).ok())
                .collect()
        };
        let slow = deliveries.acquire("slow", Uuid::from_u128(1), Uuid::from_u128(1), true);
        assert!(
            slow.is_ok() && deliveries.acquire("slow", Uuid::from_u128(1), Uuid::from_u128(1), true).is_err()
        );
        assert!(
            deliveries.acquire("slow", Uuid::from_u128(2), Uuid::from_u128(2), true).is_ok(),
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
        assert!(deliveries.acquire("slow", Uuid::from_u128(2), Uuid::from_u128(2), false).is_ok());
        assert!(deliveries.0.is_unused(), "no place is occupied");
    }

    #[test]
    fn spreads_retry_waits_of_rejected_deliveries() {
        let deliveries = DeliveryPlaces::default();
        let _place = deliveries.acquire("slow", Uuid::nil(), Uuid::nil(), true);
        let waits: Vec<Duration> = (0..1_000)
            .filter_map(|_| deliveries.acquire("slow", Uuid::nil(), Uuid::nil(), true).err())
            .collect();
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
