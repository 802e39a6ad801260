//! Limits the webhook messages that are sent concurrently, so that slow receivers do not delay the
//! others. The module `webhook` sends them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Maximum number of messages that a process sends concurrently ("places"). A message that waits
/// for its receiver uses a connection and little memory.
pub const DELIVERY_PLACES: usize = 32;
/// Maximum number of these places for messages of one collection to one receiver, for one
/// collection, and for messages that failed before.
const OF_A_RECEIVER: usize = 1;
const OF_A_COLLECTION: usize = DELIVERY_PLACES / 4;
const OF_LATER_ATTEMPTS: usize = DELIVERY_PLACES / 2;
/// Interval between the retry times of messages without a place, and maximum time to a retry.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_RETRY_WAIT: Duration = Duration::from_secs(60);

/// Counts the occupied places.
#[derive(Debug, Default)]
pub(crate) struct Deliveries(Mutex<HashMap<Share, ShareUse>>);

/// The groups of messages whose number of places is limited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Share {
    /// A host that receives messages of a collection. Collections do not share its place, so that
    /// nobody can delay the messages of others to the same service.
    Receiver(Uuid, String),
    Collection(Uuid),
    LaterAttempts,
}

impl Share {
    fn places(&self) -> usize {
        match self {
            Self::Receiver(..) => OF_A_RECEIVER,
            Self::Collection(_) => OF_A_COLLECTION,
            Self::LaterAttempts => OF_LATER_ATTEMPTS,
        }
    }
}

#[derive(Debug)]
struct ShareUse {
    in_use: usize,
    /// The latest retry time assigned to a message without a place.
    last_retry_time: Instant,
}

impl Deliveries {
    /// Occupies a place for a message to a host, or returns how long to wait before the next
    /// attempt. Dropping the place releases it.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        host: &str,
        collection: Uuid,
        is_first: bool,
    ) -> Result<DeliveryPermit, Duration> {
        let mut shares = vec![Share::Receiver(collection, host.to_owned()), Share::Collection(collection)];
        if !is_first {
            shares.push(Share::LaterAttempts);
        }
        let now = Instant::now();
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = shares
            .iter()
            .find(|share| used.get(share).is_some_and(|of_share| of_share.in_use >= share.places()));
        if let Some(full) = full.and_then(|share| used.get_mut(share)) {
            let next = full.last_retry_time.max(now) + RETRY_INTERVAL;
            full.last_retry_time = if next > now + MAX_RETRY_WAIT { now + RETRY_INTERVAL } else { next };
            return Err(full.last_retry_time - now);
        }
        for share in &shares {
            used.entry(share.clone()).or_insert(ShareUse { in_use: 0, last_retry_time: now }).in_use += 1;
        }
        Ok(DeliveryPermit { deliveries: self.clone(), shares })
    }
}

/// A place for one message.
#[derive(Debug)]
pub(crate) struct DeliveryPermit {
    deliveries: Arc<Deliveries>,
    shares: Vec<Share>,
}

impl Drop for DeliveryPermit {
    fn drop(&mut self) {
        let mut used = self.deliveries.0.lock().unwrap_or_else(PoisonError::into_inner);
        for share in &self.shares {
            if let Some(of_share) = used.get_mut(share) {
                of_share.in_use -= 1;
                if of_share.in_use == 0 {
                    used.remove(share);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_a_collection_and_later_attempts_have_shares_of_the_places() {
        let deliveries = Arc::new(Deliveries::default());
        let hosts = |of: &str| (0..DELIVERY_PLACES).map(|n| format!("{of}{n}")).collect::<Vec<_>>();
        let acquire_all = |of: &str, collection, is_first| -> Vec<DeliveryPermit> {
            hosts(of).iter().filter_map(|host| deliveries.acquire(host, collection, is_first).ok()).collect()
        };
        let one = deliveries.acquire("slow", Uuid::from_u128(1), true);
        assert!(one.is_ok() && deliveries.acquire("slow", Uuid::from_u128(1), true).is_err());
        assert!(deliveries.acquire("slow", Uuid::from_u128(2), true).is_ok(), "of another collection");
        assert_eq!(acquire_all("a", Uuid::from_u128(1), true).len(), OF_A_COLLECTION - 1);
        let later: Vec<_> =
            (10..20).map(|of| acquire_all(&format!("{of}-"), Uuid::from_u128(of), false)).collect();
        assert_eq!(later.iter().map(Vec::len).sum::<usize>(), OF_LATER_ATTEMPTS);
        assert_eq!(
            acquire_all("b", Uuid::from_u128(3), true).len(),
            OF_A_COLLECTION,
            "first attempts have room"
        );
        drop((one, later));
        assert!(deliveries.acquire("slow", Uuid::from_u128(2), false).is_ok());
        assert!(deliveries.0.lock().is_ok_and(|used| used.is_empty()), "nothing is remembered");
    }

    #[test]
    fn messages_without_a_place_come_back_one_after_the_other() {
        let deliveries = Arc::new(Deliveries::default());
        let _place = deliveries.acquire("slow", Uuid::nil(), true);
        let waits: Vec<Duration> =
            (0..1_000).filter_map(|_| deliveries.acquire("slow", Uuid::nil(), true).err()).collect();
        assert!(waits.len() == 1_000 && waits.iter().all(|wait| *wait <= MAX_RETRY_WAIT));
        assert!(waits[99] > RETRY_INTERVAL * 50, "{waits:?}");
    }
}
