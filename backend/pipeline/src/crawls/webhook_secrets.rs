//! Derives the secrets of collections' webhooks. Messages are signed in `worker::webhook`. Each
//! secret is derived from the service's `WEBHOOK_SECRET` and a random salt in the database. Neither
//! value suffices on its own to sign a message.

use super::{CrawlError, Crawls, Secret};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::time::Duration;
use store::collections::{SALT, WebhookSigner};
use store::{StoreError, Tx, keys};
use time::OffsetDateTime;
use uuid::Uuid;

/// Label of the HMAC's purpose, so that it never equals an HMAC for another purpose.
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
            let sentence =
                "WEBHOOK_SECRET is not set on this service; the secrets of collections are derived from it";
            return Err(StoreError::Conflict(sentence.into()).into());
        };
        let salt = keys::random::<SALT>()?;
        let made = self.store.rotate_webhook_secret(tx.conn(), collection, &salt, overlap).await?;
        Ok(NewWebhookSecret {
            secret: derived(service, &salt).reveal().to_owned(),
            created_at: made.created_at,
            overlaps_until: made.overlaps_until,
        })
    }
}

/// Returns the secrets that sign a message.
pub(crate) fn secrets(service: &Secret, signers: &[WebhookSigner]) -> Vec<Secret> {
    let secret = |signer: &WebhookSigner| match signer {
        WebhookSigner::Own(salt) => derived(service, salt),
        WebhookSigner::Service => service.clone(),
    };
    signers.iter().map(secret).collect()
}

fn derived(service: &Secret, salt: &[u8]) -> Secret {
    let mut mac = Hmac::<Sha256>::new_from_slice(service.reveal().as_bytes())
        .expect("HMAC accepts a key of any length");
    mac.update(LABEL);
    mac.update(salt);
    Secret::new(mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_needs_the_services_secret_and_the_salt() {
        let service = Secret::new("0123456789abcdef");
        let one = derived(&service, &[1; SALT]);
        assert_eq!(one.reveal().len(), 64);
        assert_eq!(one, derived(&service, &[1; SALT]));
        assert_ne!(one, derived(&service, &[2; SALT]));
        assert_ne!(one, derived(&Secret::new("another secret!!"), &[1; SALT]));
        let both = secrets(&service, &[WebhookSigner::Own(vec![1; SALT]), WebhookSigner::Service]);
        assert_eq!(both, [one, service]);
    }
}
