//! Limits the look-ups of keys that this process has not seen. Only a few look-ups run at a time,
//! regardless of the number of requests. The cache of known keys is in `keyring`.
//!
//! The service cannot know before the look-up whether such a key exists, so it cannot reject
//! requests by key. The requests wait in a short queue instead, and one address can occupy only a
//! part of it.
use super::Peer;
use crate::limit::{KeyedLimit, KeyedPermit};
use crate::{ApiError, Code};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Maximum number of look-ups at a time. Each reads one row by a unique index, on one connection of
/// the pool.
const MAX_RUNNING: usize = 2;
/// Maximum number of requests in the queue, including those whose look-up runs.
const MAX_QUEUED: usize = 256;
const MAX_QUEUED_PER_ADDRESS: usize = MAX_QUEUED / 4 * 3;
const MAX_WAIT: Duration = Duration::from_secs(2);

pub(crate) struct Lookups {
    queued: Semaphore,
    per_address: KeyedLimit<Peer>,
    running: Semaphore,
}

/// Permits one look-up. Hold it until the look-up has ended.
pub(super) struct LookupPermit<'a> {
    _running: SemaphorePermit<'a>,
    _queued: SemaphorePermit<'a>,
    _per_address: KeyedPermit<Peer>,
}

impl Default for Lookups {
    fn default() -> Self {
        Self {
            queued: Semaphore::new(MAX_QUEUED),
            per_address: KeyedLimit::new(MAX_QUEUED_PER_ADDRESS),
            running: Semaphore::new(MAX_RUNNING),
        }
    }
}

impl Lookups {
    /// Waits for permission to run a look-up.
    ///
    /// # Errors
    /// Fails with 429 if the queue is full, if the address reached its maximum, or if the wait
    /// takes too long.
    pub(super) async fn admit(&self, peer: Peer) -> Result<LookupPermit<'_>, ApiError> {
        let full = || {
            let sentence = "too many look-ups of unknown keys are in progress; try again later";
            ApiError::new(Code::RateLimited, sentence).retry_after(MAX_WAIT)
        };
        let per_address = self.per_address.try_acquire(peer).ok_or_else(full)?;
        let queued = self.queued.try_acquire().map_err(|_| full())?;
        let running = tokio::time::timeout(MAX_WAIT, self.running.acquire()).await;
        let running = running.ok().and_then(Result::ok).ok_or_else(full)?;
        Ok(LookupPermit { _running: running, _queued: queued, _per_address: per_address })
    }
}
