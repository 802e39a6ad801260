//! Look-ups of keys that this process has not seen: few at a time, whoever sends how many.
//!
//! Nobody can say before the look-up whether such a key exists, so none is refused for what others
//! sent. They stand in a line instead, which is short and of which one address has a part.
use super::Peer;
use crate::limit::{KeyedLimit, KeyedPermit};
use crate::{ApiError, Code};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Look-ups at a time. Each is one row by a unique index, on one connection of the pool.
const AT_A_TIME: usize = 2;
/// Most requests in the line, those whose look-up runs included.
const LINE: usize = 256;
/// Most of them that come from one address.
const OF_ONE_ADDRESS: usize = LINE / 4 * 3;
/// Longest wait in the line.
const WAIT: Duration = Duration::from_secs(2);

/// The line before the table of keys.
pub(crate) struct Lookups {
    line: Semaphore,
    of_address: KeyedLimit<Peer>,
    running: Semaphore,
}

/// A look-up that may run. Hold it until it is over.
pub(super) struct Lookup<'a> {
    _running: SemaphorePermit<'a>,
    _line: SemaphorePermit<'a>,
    _of_address: KeyedPermit<Peer>,
}

impl Default for Lookups {
    fn default() -> Self {
        Self {
            line: Semaphore::new(LINE),
            of_address: KeyedLimit::new(OF_ONE_ADDRESS),
            running: Semaphore::new(AT_A_TIME),
        }
    }
}

impl Lookups {
    /// Waits for a look-up.
    ///
    /// # Errors
    /// 429 where the line is full, or the address has its part of it, or the wait takes too long.
    pub(super) async fn admit(&self, peer: Peer) -> Result<Lookup<'_>, ApiError> {
        let full = || {
            let sentence = "too many keys that this service has not seen yet wait to be looked up";
            ApiError::new(Code::RateLimited, sentence).retry_after(WAIT)
        };
        let of_address = self.of_address.try_acquire(peer).ok_or_else(full)?;
        let line = self.line.try_acquire().map_err(|_| full())?;
        let running = tokio::time::timeout(WAIT, self.running.acquire()).await;
        let running = running.ok().and_then(Result::ok).ok_or_else(full)?;
        Ok(Lookup { _running: running, _line: line, _of_address: of_address })
    }
}
