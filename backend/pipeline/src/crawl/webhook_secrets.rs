//! Secrets of collections' webhooks: each is made of the service's `WEBHOOK_SECRET` and a random salt in the database, so that neither alone is
//! enough to sign a message.

use super::{CrawlError, Crawls, Secret};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::time::Duration;
use store::webhook_secrets::{SALT, WebhookSigner};
use store::{StoreError, Tx, keys};
use time::OffsetDateTime;
use uuid::Uuid;

/// What the HMAC is for, so that it never equals one of another purpose.
const LABEL: &[u8] = b"facecrawl webhook secret 1 ";

/// A secret that was made; it can be read from here this once.
#[derive(Clone, Debug)]
pub struct NewWebhookSecret {
    /// 64 hexadecimal digits.
    pub secret: String,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// Until when messages are also signed with what signed them before.
    pub overlaps_until: OffsetDateTime,
}

impl Crawls {
    /// Gives a collection's webhooks a new secret; messages are signed with the one before it for `overlap` longer.
    ///
    /// # Errors
    /// `StoreError::Conflict` where the service has no `WEBHOOK_SECRET`; `StoreError::NotFound` for a collection that is not there.
    pub async fn rotate_webhook_secret(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        overlap: Duration,
    ) -> Result<NewWebhookSecret, CrawlError> {
        let Some(service) = &self.config.webhook_secret else {
            let sentence = "this service has no WEBHOOK_SECRET, of which the secrets of collections are made";
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

/// The secrets that a message is signed with.
pub(crate) fn secrets(service: &Secret, signers: &[WebhookSigner]) -> Vec<Secret> {
    let secret = |signer: &WebhookSigner| match signer {
        WebhookSigner::Own(salt) => derived(service, salt),
        WebhookSigner::Service => service.clone(),
    };
    signers.iter().map(secret).collect()
}

fn derived(service: &Secret, salt: &[u8]) -> Secret {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(service.reveal().as_bytes()).expect("a key of any length will do");
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
