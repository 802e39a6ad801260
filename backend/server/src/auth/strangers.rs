//! How many keys that nobody made an address may try.
use super::Peer;
use crate::{ApiError, Code};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// Addresses that are told apart; any more share what is left of one.
const ADDRESSES: usize = 10_000;

/// Tries that are left to each address. They come back evenly, all of them within a minute.
pub(crate) struct Strangers {
    per_minute: f64,
    left: Mutex<HashMap<Peer, Tries>>,
}

#[derive(Clone, Copy)]
struct Tries {
    left: f64,
    at: Instant,
}

impl Strangers {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { per_minute: f64::from(per_minute.max(1)), left: Mutex::default() }
    }

    /// Takes a try for a key that this process has not seen before.
    ///
    /// # Errors
    /// 429 with the time until the next try.
    pub(super) fn take(&self, peer: Peer) -> Result<(), ApiError> {
        let now = Instant::now();
        let mut all = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(&peer) && all.len() >= ADDRESSES {
            all.retain(|_, tries| now.duration_since(tries.at) < MINUTE);
        }
        let peer = if all.len() < ADDRESSES || all.contains_key(&peer) {
            peer
        } else {
            Peer::of(&Default::default())
        };
        let tries = all.entry(peer).or_insert(Tries { left: self.per_minute, at: now });
        let regained = now.duration_since(tries.at).as_secs_f64() * self.per_minute / MINUTE.as_secs_f64();
        *tries = Tries { left: (tries.left + regained).min(self.per_minute), at: now };
        if tries.left >= 1.0 {
            tries.left -= 1.0;
            return Ok(());
        }
        let wait = Duration::from_secs_f64((1.0 - tries.left) * MINUTE.as_secs_f64() / self.per_minute);
        let sentence = "too many keys that are not this service's came from this address";
        Err(ApiError::new(Code::RateLimited, sentence).retry_after(wait))
    }

    /// Gives a try back: the key was one of this service's.
    pub(super) fn give_back(&self, peer: Peer) {
        let mut all = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tries) = all.get_mut(&peer) {
            tries.left = (tries.left + 1.0).min(self.per_minute);
        }
    }
}
