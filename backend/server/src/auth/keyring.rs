//! Caches API keys that were used recently.
use super::Peer;
use super::credentials::refuse;
use super::lookups::Lookups;
use crate::{ApiError, Code};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::keys::{ApiKey, KeyHash};
use store::{Store, retried};
use time::OffsetDateTime;
use uuid::Uuid;

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
    lookups: Lookups,
}

impl Keyring {
    /// Returns the valid key with that hash. `from` is the address that sent it. `None` means that
    /// this process knows the key, so its look-up does not wait.
    ///
    /// # Errors
    /// Fails with 401 for a key that is not valid. Fails with 429 for a key that this process has
    /// not seen, while too many such keys wait to be looked up.
    pub(crate) async fn find(
        &self,
        store: &Store,
        hash: &KeyHash,
        from: Option<Peer>,
    ) -> Result<Arc<ApiKey>, ApiError> {
        let key = match self.cached(hash) {
            Some(key) => key,
            None if self.is_known(hash) => self.load(store, hash).await.inspect_err(|error| {
                if error.code() == Code::Unauthorized {
                    // A deleted key is treated like one that never existed.
                    self.known_hashes().remove(hash);
                }
            })?,
            None => {
                let _lookup = match from {
                    Some(peer) => Some(self.lookups.admit(peer).await?),
                    None => None,
                };
                let key = self.load(store, hash).await?;
                self.known_hashes().insert(*hash);
                key
            }
        };
        if key.revoked_at.is_some() {
            return Err(refuse("revoked", "the key has been revoked"));
        }
        if key.expires_at.is_some_and(|end| end <= OffsetDateTime::now_utc()) {
            return Err(refuse("expired", "the key has expired"));
        }
        self.record_use(store, key.id);
        Ok(key)
    }

    fn known_hashes(&self) -> MutexGuard<'_, HashSet<KeyHash>> {
        self.known_hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_known(&self, hash: &KeyHash) -> bool {
        self.known_hashes().contains(hash)
    }

    fn cached(&self, hash: &KeyHash) -> Option<Arc<ApiKey>> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.get(hash).filter(|(since, _)| since.elapsed() < KEY_CACHE_TTL).map(|(_, key)| key.clone())
    }

    async fn load(&self, store: &Store, hash: &KeyHash) -> Result<Arc<ApiKey>, ApiError> {
        // The age is measured from before the query, so a change during the query is not hidden for
        // longer than the limit.
        let since = Instant::now();
        let found = retried("find_key", || store.find_key(hash)).await?;
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|_, (since, _)| since.elapsed() < KEY_CACHE_TTL);
        let key = found.ok_or_else(|| refuse("unknown", "the key is unknown to this service"))?;
        let key = Arc::new(key);
        keys.insert(*hash, (since, key.clone()));
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
            if let Err(error) = store.touch_key(id).await {
                tracing::warn!(%error, key_id = %id, "failed to record the use of a key");
            }
        });
    }
}
