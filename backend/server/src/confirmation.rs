//! Contains confirmation tokens, which prove that a caller saw the number of rows that a deletion
//! removes.
//!
//! A token is signed and not stored, so every process of the service accepts it. It is bound to the
//! operation and its target. It contains the number of rows that the dry run counted, and the call
//! may delete up to `confirm_above` rows more.
use crate::{ApiError, Code, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use store::Store;
use time::OffsetDateTime;
use tokio::sync::OnceCell;

const LIFETIME_SECONDS: u64 = 15 * 60;

/// Holds the signing secret that all processes share. The secret is read from the database once.
#[derive(Default)]
pub(crate) struct Secret(OnceCell<Vec<u8>>);

pub(crate) struct Confirmations {
    mac: Hmac<Sha256>,
    /// Maximum number of rows that one call may delete without a token.
    max_unconfirmed: u64,
}

impl Secret {
    /// Returns the signer for confirmation tokens. Deletions of at most `max_unconfirmed` rows need
    /// no token. Call it before a transaction begins, because it may have to read the secret from
    /// the database.
    ///
    /// # Errors
    /// Fails with 503 if the database is unavailable.
    pub(crate) async fn signer(&self, store: &Store, max_unconfirmed: u64) -> Result<Confirmations> {
        let secret = self.0.get_or_try_init(|| store.deletion_counts().confirmation_secret()).await?;
        let mac = Hmac::<Sha256>::new_from_slice(secret).map_err(ApiError::internal)?;
        Ok(Confirmations { mac, max_unconfirmed })
    }
}

impl Confirmations {
    /// Returns the token for the response of a dry run that counted `count` rows. `target`
    /// identifies the operation and its target. Two different deletions have different texts.
    pub(crate) fn token(&self, target: &str, count: u64) -> String {
        let expiry = unix_time() + LIFETIME_SECONDS;
        let mac = self.sign(target, expiry, count).finalize().into_bytes();
        format!("{expiry}.{count}.{}", URL_SAFE_NO_PAD.encode(mac))
    }

    /// Accepts a deletion that is small or was confirmed. The number of rows may grow by up to
    /// `confirm_above` after the dry run, because a running crawl would otherwise invalidate every
    /// token.
    ///
    /// # Errors
    /// Fails with 428 `confirmation_needed`. Its `reason` states what is wrong with the token.
    pub(crate) fn check(&self, target: &str, count: u64, token: Option<&str>) -> Result<()> {
        if count <= self.max_unconfirmed {
            return Ok(());
        }
        let refuse = |reason: &str, problem: &str| {
            let message = format!(
                "{count} rows would be deleted permanently, which is more than CONFIRM_ABOVE ({}), and {problem}; repeat the call with \
                 dry_run=true, then send it with the `confirm` of that response",
                self.max_unconfirmed
            );
            ApiError::new(Code::ConfirmationNeeded, message)
                .reason(reason)
                .field("confirm")
                .allowed(["`confirm` of the same call with dry_run=true"])
        };
        let Some(token) = token else { return Err(refuse("missing", "the call has no `confirm`")) };
        let mismatch = || refuse("mismatch", "`confirm` is not from a dry run of this call");
        let mut parts = token.splitn(3, '.');
        let mut next_number = || parts.next()?.parse::<u64>().ok();
        let (expiry, previous_count) = next_number().zip(next_number()).ok_or_else(mismatch)?;
        if expiry < unix_time() {
            return Err(refuse("expired", "`confirm` is older than 15 minutes"));
        }
        let mac = parts.next().and_then(|text| URL_SAFE_NO_PAD.decode(text).ok()).ok_or_else(mismatch)?;
        self.sign(target, expiry, previous_count).verify_slice(&mac).map_err(|_| mismatch())?;
        if count > previous_count.saturating_add(self.max_unconfirmed) {
            return Err(refuse("grown", &format!("the dry run counted only {previous_count}")));
        }
        Ok(())
    }

    fn sign(&self, target: &str, expiry: u64, count: u64) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(format!("{expiry}.{count}.{target}").as_bytes());
        mac
    }
}

fn unix_time() -> u64 {
    u64::try_from(OffsetDateTime::now_utc().unix_timestamp()).unwrap_or_default()
}
