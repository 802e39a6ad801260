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
pub const CACHED: Duration = Duration::from_secs(5);
/// Minimum interval between two updates of the time of last use of a key in the database.
const NOTED: Duration = Duration::from_secs(60);

/// A cache of the table of keys. The cache contains only keys that exist, so callers cannot fill
/// it.
#[derive(Default)]
pub(crate) struct Keyring {
    keys: Mutex<HashMap<KeyHash, (Instant, Arc<ApiKey>)>>,
    noted: Mutex<HashMap<Uuid, Instant>>,
    /// Hashes of all keys that this process has ever found, including revoked ones. Look-ups of
    /// these keys are not queued.
    known: Mutex<HashSet<KeyHash>>,
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
            None if self.is_known(hash) => self.ask(store, hash).await.inspect_err(|error| {
                if error.code() == Code::Unauthorized {
                    // A deleted key is treated like one that never existed.
                    self.known().remove(hash);
                }
            })?,
            None => {
                let _lookup = match from {
                    Some(peer) => Some(self.lookups.admit(peer).await?),
                    None => None,
                };
                let key = self.ask(store, hash).await?;
                self.known().insert(*hash);
                key
            }
        };
        if key.revoked_at.is_some() {
            return Err(refuse("revoked", "the key has been revoked"));
        }
        if key.expires_at.is_some_and(|end| end <= OffsetDateTime::now_utc()) {
            return Err(refuse("expired", "the key has expired"));
        }
        self.note(store, key.id);
        Ok(key)
    }

    fn known(&self) -> MutexGuard<'_, HashSet<KeyHash>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_known(&self, hash: &KeyHash) -> bool {
        self.known().contains(hash)
    }

    fn cached(&self, hash: &KeyHash) -> Option<Arc<ApiKey>> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.get(hash).filter(|(since, _)| since.elapsed() < CACHED).map(|(_, key)| key.clone())
    }

    async fn ask(&self, store: &Store, hash: &KeyHash) -> Result<Arc<ApiKey>, ApiError> {
        // The age is measured from before the query, so a change during the query is not hidden for
        // longer than the limit.
        let since = Instant::now();
        let found = retried("find_key", || store.find_key(hash)).await?;
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|_, (since, _)| since.elapsed() < CACHED);
        let key = found.ok_or_else(|| refuse("unknown", "the key is unknown to this service"))?;
        let key = Arc::new(key);
        keys.insert(*hash, (since, key.clone()));
        Ok(key)
    }

    /// Records the use of the key in the background, so no caller waits for it. A failed update is
    /// repeated one minute later.
    fn note(&self, store: &Store, id: Uuid) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.get(&id).is_some_and(|at| at.elapsed() < NOTED) {
            return;
        }
        noted.retain(|_, at| at.elapsed() < NOTED);
        noted.insert(id, Instant::now());
        let store = store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.touch_key(id).await {
                tracing::warn!(%error, key_id = %id, "failed to record the use of a key");
            }
        });
    }
}
