//! Limits the webhook messages that are sent concurrently, so that slow receivers do not delay the
//! others. The module `webhook` sends them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Maximum number of messages that a process sends concurrently ("places"). A message that waits
/// for its receiver uses a connection and little memory.
pub const DELIVERY_PLACES: usize = 32;
/// Maximum number of these places for one receiver, for one collection, and for messages that
/// failed before.
const OF_A_RECEIVER: usize = 1;
const OF_A_COLLECTION: usize = DELIVERY_PLACES / 4;
const OF_LATER_ATTEMPTS: usize = DELIVERY_PLACES / 2;
/// Interval between the retry times of messages without a place, and maximum time from now until a
/// retry.
const STEP: Duration = Duration::from_millis(100);
const HORIZON: Duration = Duration::from_secs(60);

/// Counts the occupied places.
#[derive(Debug, Default)]
pub(super) struct Deliveries(Mutex<HashMap<Share, Taken>>);

/// The groups of messages whose number of places is limited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Share {
    Receiver(String),
    Collection(Uuid),
    LaterAttempts,
}

impl Share {
    fn places(&self) -> usize {
        match self {
            Self::Receiver(_) => OF_A_RECEIVER,
            Self::Collection(_) => OF_A_COLLECTION,
            Self::LaterAttempts => OF_LATER_ATTEMPTS,
        }
    }
}

#[derive(Debug)]
struct Taken {
    inside: usize,
    /// The latest retry time assigned to a message without a place.
    told: Instant,
}

impl Deliveries {
    /// Occupies a place for a message to a host, or returns how long to wait before the next
    /// attempt. Dropping the place releases it.
    pub(super) fn enter(
        self: &Arc<Self>,
        host: &str,
        collection: Uuid,
        is_first: bool,
    ) -> Result<Place, Duration> {
        let mut shares = vec![Share::Receiver(host.to_owned()), Share::Collection(collection)];
        if !is_first {
            shares.push(Share::LaterAttempts);
        }
        let now = Instant::now();
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = shares.iter().find(|share| taken.get(share).is_some_and(|t| t.inside >= share.places()));
        if let Some(full) = full.and_then(|share| taken.get_mut(share)) {
            let next = full.told.max(now) + STEP;
            full.told = if next > now + HORIZON { now + STEP } else { next };
            return Err(full.told - now);
        }
        for share in &shares {
            taken.entry(share.clone()).or_insert(Taken { inside: 0, told: now }).inside += 1;
        }
        Ok(Place { deliveries: self.clone(), shares })
    }
}

/// A place for one message.
#[derive(Debug)]
pub(super) struct Place {
    deliveries: Arc<Deliveries>,
    shares: Vec<Share>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.deliveries.0.lock().unwrap_or_else(PoisonError::into_inner);
        for share in &self.shares {
            if let Some(of_share) = taken.get_mut(share) {
                of_share.inside -= 1;
                if of_share.inside == 0 {
                    taken.remove(share);
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
        let enter = |of: &str, collection, is_first| -> Vec<Place> {
            hosts(of).iter().filter_map(|host| deliveries.enter(host, collection, is_first).ok()).collect()
        };
        let one = deliveries.enter("slow", Uuid::from_u128(1), true);
        assert!(one.is_ok() && deliveries.enter("slow", Uuid::from_u128(2), true).is_err());
        assert_eq!(enter("a", Uuid::from_u128(1), true).len(), OF_A_COLLECTION - 1);
        let later: Vec<_> = (10..20).map(|of| enter(&format!("{of}-"), Uuid::from_u128(of), false)).collect();
        assert_eq!(later.iter().map(Vec::len).sum::<usize>(), OF_LATER_ATTEMPTS);
        assert_eq!(enter("b", Uuid::from_u128(3), true).len(), OF_A_COLLECTION, "first attempts have room");
        drop((one, later));
        assert!(deliveries.enter("slow", Uuid::from_u128(2), false).is_ok());
        assert!(deliveries.0.lock().is_ok_and(|taken| taken.is_empty()), "nothing is remembered");
    }

    #[test]
    fn messages_without_a_place_come_back_one_after_the_other() {
        let deliveries = Arc::new(Deliveries::default());
        let _place = deliveries.enter("slow", Uuid::nil(), true);
        let told: Vec<Duration> =
            (0..1_000).filter_map(|_| deliveries.enter("slow", Uuid::nil(), true).err()).collect();
        assert!(told.len() == 1_000 && told.iter().all(|wait| *wait <= HORIZON));
        assert!(told[99] > STEP * 50, "{told:?}");
    }
}
