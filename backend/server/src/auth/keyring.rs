//! Keys that were seen a moment ago.
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

/// How long a key is believed without asking the database: a revoked key works no longer than this
/// in any service.
pub const CACHED: Duration = Duration::from_secs(5);
/// Least time between two notes in the database that a key is in use.
const NOTED: Duration = Duration::from_secs(60);

/// A cache in front of the table of keys. Only keys that exist are in it, so callers cannot fill
/// it.
#[derive(Default)]
pub(crate) struct Keyring {
    keys: Mutex<HashMap<KeyHash, (Instant, Arc<ApiKey>)>>,
    noted: Mutex<HashMap<Uuid, Instant>>,
    /// Hashes of all keys that this process ever found, revoked ones included. Their look-ups do
    /// not wait.
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
    /// not seen, while too many of those wait for their look-up.
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
                    // It was deleted, and is as good as one that never was.
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
        // The age counts from before the question: what changes while it is answered is not
        // believed longer.
        let since = Instant::now();
        let found = retried("find_key", || store.find_key(hash)).await?;
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|_, (since, _)| since.elapsed() < CACHED);
        let key = found.ok_or_else(|| refuse("unknown", "the key is not one of this service's"))?;
        let key = Arc::new(key);
        keys.insert(*hash, (since, key.clone()));
        Ok(key)
    }

    /// In the background: no caller waits for a note, and one that is lost is made a minute later.
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
                tracing::warn!(%error, key_id = %id, "cannot note that a key was used");
            }
        });
    }
}
