//! Checks and creates watchlists, and tests their webhooks, for the API and the command line.
use crate::Crawls;
use crate::domain::{CrawlError, profile_name};
use crate::webhooks::{Message, WebhookSender, is_success};
use crawler::{Fetcher, GuardError};
use domain::WatchNotify;
use serde_json::json;
use std::time::{Duration, Instant};
use store::keys::audit::{Action, Actor, AuditEntry};
use store::watch::{MAX_WATCHED, NewWatchlist, Watched, Watchlist};
use store::{Store, StoreError, retried};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use url::Url;
use uuid::Uuid;
use vision::Profile;

const MAX_NAME_CHARS: usize = 200;
const MAX_PURPOSE_CHARS: usize = 500;
/// Event of a message that tests a webhook.
const TEST_EVENT: &str = "alert.test";

#[derive(Debug, thiserror::Error)]
pub enum WatchlistError {
    /// A field has a value that is not allowed.
    #[error("{field}: {reason}")]
    Field {
        field: &'static str,
        reason: String,
        value: Option<String>,
        /// What is allowed, if the reason does not say it.
        allowed: Option<String>,
    },
    /// The webhook has a forbidden address.
    #[error("webhook: {0}")]
    Guard(#[from] GuardError),
    /// This service cannot send messages to the webhook.
    #[error(transparent)]
    Webhook(#[from] CrawlError),
    /// The store failed, a person or a face does not exist, or a limit is reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A watchlist to create, as a user describes it.
#[derive(Clone, Debug)]
pub struct WatchlistRequest {
    pub name: String,
    pub purpose: String,
    pub notify: WatchNotify,
    pub threshold: Option<f32>,
    pub quality_profile: Option<Profile>,
    pub webhook: Option<String>,
    pub cooldown_seconds: i32,
    pub expires_at: Option<OffsetDateTime>,
    pub subjects: Vec<Uuid>,
    pub faces: Vec<Uuid>,
}

/// The response to a message that tests a webhook.
#[derive(Clone, Debug)]
pub struct TestDelivery {
    /// Id of the message.
    pub delivery: Uuid,
    /// Status of the response, or why there was none. The reason does not contain the URL.
    pub response: Result<u16, String>,
    pub elapsed: Duration,
}

impl TestDelivery {
    /// Returns whether an alert with this response would be delivered.
    pub fn is_accepted(&self) -> bool {
        self.response.as_ref().is_ok_and(|status| is_success(*status))
    }
}

/// The operations that need more than the store.
pub struct Watchlists<'a> {
    /// Gives access to the rows that the caller may see.
    pub store: &'a Store,
    pub crawls: &'a Crawls,
    pub fetcher: &'a Fetcher,
}

impl Watchlists<'_> {
    /// Checks the fields of a watchlist, creates it, and records that in the audit log.
    ///
    /// # Errors
    /// Fails if a field is invalid, if the name is taken, if a person or a face is not in the
    /// collection, and if the collection would exceed a limit of watchlists.
    pub async fn create(
        &self,
        actor: Actor<'_>,
        collection: Uuid,
        request: WatchlistRequest,
    ) -> Result<Watchlist, WatchlistError> {
        let watched = Watched {
            subjects: check_ids("subjects", request.subjects)?,
            faces: check_ids("faces", request.faces)?,
        };
        if watched.subjects.is_empty() && watched.faces.is_empty() {
            return Err(WatchlistError::Field {
                field: "subjects",
                reason: "the watchlist watches nobody".into(),
                value: None,
                allowed: Some(format!("1 to {MAX_WATCHED} ids in subjects, faces or both")),
            });
        }
        let new = NewWatchlist {
            name: check_name(&request.name)?,
            purpose: check_purpose(&request.purpose)?,
            notify: request.notify,
            threshold: request.threshold,
            quality_profile: request.quality_profile.map(|profile| profile_name(profile).to_owned()),
            webhook: request.webhook.as_deref().map(|text| self.check_webhook(text)).transpose()?,
            cooldown_seconds: request.cooldown_seconds,
            expires_at: request.expires_at.map(check_expiry).transpose()?,
        };
        let id = retried("create_watchlist", || async {
            let mut tx = self.store.begin().await?;
            self.store.suppressions().lock(tx.conn(), collection, true).await?;
            let id = self.store.watchlists().insert(tx.conn(), collection, &new, &watched).await?;
            let detail = json!({
                "watchlist_id": id, "purpose": new.purpose, "notify": new.notify, "threshold": new.threshold,
                "subjects": watched.subjects.len(), "faces": watched.faces.len(),
                "quality_profile": new.quality_profile, "cooldown_seconds": new.cooldown_seconds,
                "expires_at": new.expires_at.map(|time| time.format(&Rfc3339).unwrap_or_default()),
                // Not the address, which may grant access.
                "webhook": new.webhook.as_ref().map(|_| "set"),
            });
            let entry = AuditEntry {
                action: Action::CreateWatchlist,
                collection_id: Some(collection),
                actor,
                detail,
            };
            self.store.audit().record(tx.conn(), &entry).await?;
            tx.commit().await?;
            Ok::<_, StoreError>(id)
        })
        .await?;
        Ok(self.store.watchlists().get(id).await?)
    }

    /// Returns the normal form of a URL that may receive alerts, as far as is known without DNS.
    ///
    /// # Errors
    /// Fails if the guard forbids the URL, and if this service cannot sign messages.
    pub fn check_webhook(&self, text: &str) -> Result<String, WatchlistError> {
        let invalid = |reason| WatchlistError::Field { field: "webhook", reason, value: None, allowed: None };
        let url = crawler::urls::parse(text.trim()).map_err(invalid)?;
        self.fetcher.guard().check_url(&url)?;
        self.crawls.check_webhook(&url)?;
        Ok(url.into())
    }

    /// Sends a signed message to the webhook of a watchlist once. It creates no alert, and has the
    /// event `alert.test`.
    ///
    /// # Errors
    /// Fails if the watchlist has no webhook, or this service cannot sign messages.
    pub async fn send_test(&self, watchlist: &Watchlist) -> Result<TestDelivery, WatchlistError> {
        let Some(url) = watchlist.webhook.as_deref().and_then(|text| Url::parse(text).ok()) else {
            return Err(WatchlistError::Field {
                field: "webhook",
                reason: "the watchlist has no webhook; set one first".into(),
                value: None,
                allowed: None,
            });
        };
        self.crawls.check_webhook(&url)?;
        let secret = self.crawls.config().webhook_secret.clone();
        let sender = WebhookSender::new(self.store.clone(), self.fetcher.clone(), secret);
        let delivery = Uuid::now_v7();
        let body = json!({
            "event": TEST_EVENT,
            "delivery": delivery,
            "test": {
                "watchlist_id": watchlist.id,
                "collection": watchlist.collection,
                "created_at": OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            },
        });
        let message = Message {
            url: &url,
            collection: watchlist.collection_id,
            event: TEST_EVENT,
            delivery,
            body: body.to_string(),
        };
        let started = Instant::now();
        let response = sender.post(message).await?;
        Ok(TestDelivery { delivery, response, elapsed: started.elapsed() })
    }
}

/// Returns the name of a watchlist without surrounding white space.
///
/// # Errors
/// Fails with [`WatchlistError::Field`], like the other checks.
pub fn check_name(text: &str) -> Result<String, WatchlistError> {
    check_text("name", text, MAX_NAME_CHARS)
}

/// Returns the purpose of a watchlist without surrounding white space.
pub fn check_purpose(text: &str) -> Result<String, WatchlistError> {
    check_text("purpose", text, MAX_PURPOSE_CHARS)
}

fn check_text(field: &'static str, text: &str, max: usize) -> Result<String, WatchlistError> {
    let normal = text.trim();
    if (1..=max).contains(&normal.chars().count()) && !text.chars().any(char::is_control) {
        return Ok(normal.to_owned());
    }
    let allowed = format!("1 to {max} characters without control characters");
    Err(WatchlistError::Field {
        field,
        reason: format!("the value must have {allowed}"),
        value: Some(text.to_owned()),
        allowed: Some(allowed),
    })
}

/// Returns the ids without duplicates.
pub fn check_ids(field: &'static str, mut ids: Vec<Uuid>) -> Result<Vec<Uuid>, WatchlistError> {
    ids.sort_unstable();
    ids.dedup();
    if ids.len() <= MAX_WATCHED {
        return Ok(ids);
    }
    let allowed = format!("at most {MAX_WATCHED} ids");
    let reason = format!("the value has {} ids; {allowed} are allowed", ids.len());
    Err(WatchlistError::Field { field, reason, value: None, allowed: Some(allowed) })
}

/// Returns the time if it is in the future.
pub fn check_expiry(expires_at: OffsetDateTime) -> Result<OffsetDateTime, WatchlistError> {
    if expires_at > OffsetDateTime::now_utc() {
        return Ok(expires_at);
    }
    Err(WatchlistError::Field {
        field: "expires_at",
        reason: "the time has passed".into(),
        value: None,
        allowed: Some("a time in the future".into()),
    })
}
