//! Reads the key of a request, `Authorization: Bearer fc_…` or `X-API-Key: fc_…`, and looks it up.
//! Keys that were used recently are cached.
use crate::admission::KeyLookups;
use crate::request::Peer;
use crate::{ApiError, Code, Result};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::keys::{ApiKey, KeyHash};
use store::{Store, retried};
use time::OffsetDateTime;
use uuid::Uuid;

/// Alternative header for the key, for clients that cannot set `Authorization`.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The reason of a 401 error for a request without a key.
pub(crate) const NO_KEY: &str = "missing";

/// Returns whether the headers contain a key.
pub(crate) fn has_key(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION) || headers.contains_key(API_KEY)
}

/// Removes the key from the headers, so that no later code can reveal it, and returns its hash.
pub(crate) fn take_key(headers: &mut HeaderMap) -> Result<KeyHash> {
    let bearer = headers.remove(header::AUTHORIZATION);
    let api_key = headers.remove(API_KEY);
    let text = match (&bearer, &api_key) {
        (Some(_), Some(_)) => {
            return Err(unauthorized(
                "twice",
                "both `Authorization` and `X-API-Key` contain a key; send only one of them",
            ));
        }
        (Some(value), None) => bearer_token(value)
            .ok_or_else(|| unauthorized("scheme", "`Authorization` must have the form `Bearer fc_…`"))?,
        (None, Some(value)) => value.to_str().unwrap_or_default(),
        (None, None) => return Err(no_key()),
    };
    parse_key(text)
}

/// Returns the error of a request without a key.
pub(crate) fn no_key() -> ApiError {
    unauthorized(NO_KEY, "this service requires a key")
}

/// Returns the hash of a key.
pub(crate) fn parse_key(text: &str) -> Result<KeyHash> {
    KeyHash::from_key(text.trim())
        .ok_or_else(|| unauthorized("unknown", "the key is unknown to this service"))
}

/// Returns the token of a `Bearer` header. The scheme's name is case-insensitive.
fn bearer_token(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// Returns a 401 error. `reason` is a more specific code. If no key was sent, RFC 6750 requires a
/// challenge without an error.
fn unauthorized(reason: &str, detail: &str) -> ApiError {
    let challenge = match reason {
        NO_KEY => "Bearer realm=\"facecrawl\"",
        _ => "Bearer realm=\"facecrawl\", error=\"invalid_token\"",
    };
    ApiError::new(Code::Unauthorized, detail)
        .reason(reason)
        .allowed(["Authorization: Bearer fc_…", "X-API-Key: fc_…"])
        .challenge(challenge.to_owned())
}

/// How long a key is accepted without a database query. A revoked key stops working in every
/// process after at most this time.
const KEY_CACHE_TTL: Duration = Duration::from_secs(5);
/// Minimum interval between two updates of the time of last use of a key in the database.
const LAST_USE_INTERVAL: Duration = Duration::from_secs(60);

/// A cache of the table of keys. It contains only keys that exist, so callers cannot fill it.
#[derive(Default)]
pub(crate) struct Keyring {
    keys: Mutex<HashMap<KeyHash, (Instant, Arc<ApiKey>)>>,
    last_uses: Mutex<HashMap<Uuid, Instant>>,
    /// Hashes of all keys that this process has ever found, including revoked ones. Look-ups of
    /// these keys are not queued.
    known_hashes: Mutex<HashSet<KeyHash>>,
    /// Limits the look-ups of all other keys.
    lookups: KeyLookups,
}

impl Keyring {
    /// Returns the valid key with that hash. `peer` is the address that sent it. `None` means that
    /// this process has found the key before, so its look-up does not wait.
    ///
    /// # Errors
    /// Fails with 401 for a key that is not valid. Fails with 429 for a key that this process has
    /// not seen, while too many such keys wait to be looked up.
    pub(crate) async fn find(
        &self,
        store: &Store,
        hash: &KeyHash,
        peer: Option<Peer>,
    ) -> Result<Arc<ApiKey>> {
        let key = match self.cached(hash) {
            Some(key) => key,
            None if self.known_hashes().contains(hash) => {
                self.load(store, hash).await.inspect_err(|error| {
                    if error.code() == Code::Unauthorized {
                        // A deleted key is treated like one that never existed.
                        self.known_hashes().remove(hash);
                    }
                })?
            }
            None => {
                let _lookup = match peer {
                    Some(peer) => Some(self.lookups.admit(peer).await?),
                    None => None,
                };
                let key = self.load(store, hash).await?;
                self.known_hashes().insert(*hash);
                key
            }
        };
        if key.revoked_at.is_some() {
            return Err(unauthorized("revoked", "the key has been revoked"));
        }
        if key.expires_at.is_some_and(|end| end <= OffsetDateTime::now_utc()) {
            return Err(unauthorized("expired", "the key has expired"));
        }
        self.record_use(store, key.id);
        Ok(key)
    }

    fn known_hashes(&self) -> MutexGuard<'_, HashSet<KeyHash>> {
        self.known_hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cached(&self, hash: &KeyHash) -> Option<Arc<ApiKey>> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.get(hash).filter(|(loaded, _)| loaded.elapsed() < KEY_CACHE_TTL).map(|(_, key)| key.clone())
    }

    async fn load(&self, store: &Store, hash: &KeyHash) -> Result<Arc<ApiKey>> {
        // The age is measured from before the query, so a change during the query is not hidden for
        // longer than the limit.
        let loaded = Instant::now();
        let row = retried("find_key", || store.keys().find(hash)).await?;
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|_, (loaded, _)| loaded.elapsed() < KEY_CACHE_TTL);
        let key = row.ok_or_else(|| unauthorized("unknown", "the key is unknown to this service"))?;
        let key = Arc::new(key);
        keys.insert(*hash, (loaded, key.clone()));
        Ok(key)
    }

    /// Records the use of the key in the background, so no caller waits for it. A failed update is
    /// repeated one minute later.
    fn record_use(&self, store: &Store, id: Uuid) {
        let mut last_uses = self.last_uses.lock().unwrap_or_else(PoisonError::into_inner);
        if last_uses.get(&id).is_some_and(|at| at.elapsed() < LAST_USE_INTERVAL) {
            return;
        }
        last_uses.retain(|_, at| at.elapsed() < LAST_USE_INTERVAL);
        last_uses.insert(id, Instant::now());
        let store = store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.keys().record_use(id).await {
                tracing::warn!(%error, key_id = %id, "failed to record the use of a key");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const KEY: &str = "fc_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn key_is_read_and_removed_from_either_header() {
        for (name, value) in [
            (header::AUTHORIZATION, format!("Bearer {KEY}")),
            (header::AUTHORIZATION, format!("bearer  {KEY} ")),
            (API_KEY, KEY.to_owned()),
        ] {
            let mut headers = headers(&[(name, &value)]);
            assert!(take_key(&mut headers).unwrap() == KeyHash::from_key(KEY).unwrap(), "{value}");
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn each_credential_error_has_reason() {
        let bearer = format!("Bearer {KEY}");
        for (pairs, reason) in [
            (vec![], "missing"),
            (vec![(header::AUTHORIZATION, KEY)], "scheme"),
            (vec![(header::AUTHORIZATION, "Basic dTpw")], "scheme"),
            (vec![(header::AUTHORIZATION, bearer.as_str()), (API_KEY, KEY)], "twice"),
            (vec![(API_KEY, "fc_")], "unknown"),
            (vec![(API_KEY, "letmein")], "unknown"),
        ] {
            let problem = take_key(&mut headers(&pairs)).unwrap_err().into_problem();
            assert_eq!((problem.code, problem.reason.as_deref()), (Code::Unauthorized, Some(reason)));
            assert!(!problem.detail.contains("letmein"));
        }
    }
}
