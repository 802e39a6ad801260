//! Tokens of dry runs: proof that a caller has seen how much a deletion takes along.
//!
//! A token is signed and not stored, so every process of the service accepts it. It is bound to the
//! operation and its target. It also has the number of rows; the call may delete up to
//! `confirm_above` rows more.
use crate::{ApiError, AppState, Code};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use time::OffsetDateTime;
use tokio::sync::OnceCell;

/// Seconds in which a token can be used.
const VALID: u64 = 15 * 60;

/// The secret of all processes, read once.
#[derive(Default)]
pub(crate) struct Secret(OnceCell<Vec<u8>>);

/// Signs and checks tokens.
pub(crate) struct Confirmations {
    mac: Hmac<Sha256>,
    /// Rows that one call may delete without a token.
    most: u64,
}

/// A deletion that cannot be undone.
pub(crate) struct Deletion {
    /// The operation's id and whatever tells its target from others.
    pub(crate) target: String,
    /// Rows that go.
    pub(crate) count: u64,
}

impl AppState {
    /// Returns the tokens of this service. To be called before a transaction begins: the secret may
    /// have to be read.
    ///
    /// # Errors
    /// 503 while the database is away.
    pub(crate) async fn confirmations(&self) -> Result<Confirmations, ApiError> {
        let read = || self.services.store.confirmation_secret();
        let secret = self.confirmation_secret.0.get_or_try_init(read).await?;
        let mac = Hmac::<Sha256>::new_from_slice(secret).map_err(ApiError::internal)?;
        Ok(Confirmations { mac, most: self.config.confirm_above })
    }
}

impl Confirmations {
    /// Returns the token that a dry run answers.
    pub(crate) fn token(&self, deletion: &Deletion) -> String {
        let (until, count) = (now() + VALID, deletion.count);
        let mac = self.sign(&deletion.target, until, count).finalize().into_bytes();
        format!("{until}.{count}.{}", URL_SAFE_NO_PAD.encode(mac))
    }

    /// Lets a deletion through that is small, or that was confirmed.
    ///
    /// What was added since the dry run may be as much as is deleted without a token: a crawl that
    /// goes on does not make every token worthless.
    ///
    /// # Errors
    /// 428 `confirmation_needed`, whose `reason` says what is wrong with the token.
    pub(crate) fn check(&self, deletion: &Deletion, token: Option<&str>) -> Result<(), ApiError> {
        if deletion.count <= self.most {
            return Ok(());
        }
        let count = deletion.count;
        let refuse = |reason: &str, why: &str| {
            let sentence = format!(
                "{count} rows would be deleted for good, more than the {} of CONFIRM_ABOVE, and {why}; send the call with dry_run=true and \
                 then with the `confirm` of its answer",
                self.most
            );
            ApiError::new(Code::ConfirmationNeeded, sentence)
                .reason(reason)
                .field("confirm")
                .allowed(["`confirm` of the same call with dry_run=true"])
        };
        let Some(token) = token else { return Err(refuse("missing", "the call has no `confirm`")) };
        let foreign = || refuse("mismatch", "`confirm` is not of a dry run of this call");
        let mut parts = token.splitn(3, '.');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (until, seen) = number().zip(number()).ok_or_else(foreign)?;
        if until < now() {
            return Err(refuse("expired", "`confirm` is older than 15 minutes"));
        }
        let mac = parts.next().and_then(|text| URL_SAFE_NO_PAD.decode(text).ok()).ok_or_else(foreign)?;
        self.sign(&deletion.target, until, seen).verify_slice(&mac).map_err(|_| foreign())?;
        if count > seen.saturating_add(self.most) {
            return Err(refuse("grown", &format!("the dry run found {seen}")));
        }
        Ok(())
    }

    fn sign(&self, target: &str, until: u64, count: u64) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(format!("{until}.{count}.{target}").as_bytes());
        mac
    }
}

fn now() -> u64 {
    u64::try_from(OffsetDateTime::now_utc().unix_timestamp()).unwrap_or_default()
}
