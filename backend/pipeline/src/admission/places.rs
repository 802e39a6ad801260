//! Limits concurrent work: callers of [`FairSemaphore`] wait, and callers of [`Places`] receive the
//! time until the next attempt.

use inference::{FairQueue, Requester};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Grants permits to one waiter of each requester in turn. Cloning it is cheap.
#[derive(Clone)]
pub(crate) struct FairSemaphore {
    state: Arc<Mutex<State>>,
}

struct State {
    free: usize,
    waiting: FairQueue<oneshot::Sender<Permit>>,
}

/// Represents one permit. Dropping it passes it to the next waiter.
pub(crate) struct Permit {
    /// `None` only during the drop.
    state: Option<Arc<Mutex<State>>>,
}

impl FairSemaphore {
    pub(crate) fn new(permits: usize) -> Self {
        let state = State { free: permits, waiting: FairQueue::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns a permit if one is free.
    pub(crate) fn try_acquire(&self) -> Option<Permit> {
        let mut state = self.state.lock();
        state.free = state.free.checked_sub(1)?;
        Some(Permit { state: Some(self.state.clone()) })
    }

    /// Waits for a permit. Dropping the future passes its permit to the next waiter.
    pub(crate) async fn acquire(&self, requester: Requester) -> Permit {
        loop {
            let granted = {
                let mut state = self.state.lock();
                if state.free > 0 {
                    state.free -= 1;
                    return Permit { state: Some(self.state.clone()) };
                }
                let (grant, granted) = oneshot::channel();
                state.waiting.push(requester, grant);
                granted
            };
            if let Ok(permit) = granted.await {
                return permit;
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(shared) = self.state.take() else { return };
        let mut state = shared.lock();
        while let Some(grant) = state.waiting.pop() {
            match grant.send(Self { state: Some(shared.clone()) }) {
                Ok(()) => return,
                // The waiter dropped its future. A permit without state does not lock the semaphore
                // again when it is dropped.
                Err(mut permit) => permit.state = None,
            }
        }
        state.free += 1;
    }
}

/// Spreads the retries of rejected callers, so that they do not all return at the same time.
#[derive(Debug)]
pub(crate) struct RetryTimes {
    interval: Duration,
    max_wait: Duration,
    /// The latest retry time that was assigned.
    latest: Instant,
}

impl RetryTimes {
    /// `interval` is the time between two retries, and `max_wait` the longest time until a retry.
    pub(crate) fn new(interval: Duration, max_wait: Duration) -> Self {
        Self { interval, max_wait, latest: Instant::now() }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let now = Instant::now();
        let next = self.latest.max(now) + self.interval;
        self.latest = if next > now + self.max_wait { now + self.interval } else { next };
        self.latest - now
    }
}

/// Counts the occupied places of groups of work. Work may belong to several groups.
#[derive(Debug)]
pub(crate) struct Places<G> {
    retry_interval: Duration,
    max_wait: Duration,
    used: Mutex<HashMap<G, GroupUse>>,
}

#[derive(Debug)]
struct GroupUse {
    occupied: usize,
    retries: RetryTimes,
}

impl<G: Clone + Eq + Hash> Places<G> {
    pub(crate) fn new(retry_interval: Duration, max_wait: Duration) -> Self {
        Self { retry_interval, max_wait, used: Mutex::default() }
    }

    /// Occupies a place of each group, whose number of places `limit` returns. If a group has no
    /// free place, occupies none and returns how long to wait before the next attempt.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        groups: Vec<G>,
        limit: impl Fn(&G) -> usize,
    ) -> Result<Place<G>, Duration> {
        let mut used = self.used.lock();
        let is_full =
            |group: &&G| used.get(group).is_some_and(|group_use| group_use.occupied >= limit(group));
        if let Some(full) = groups.iter().find(is_full).and_then(|group| used.get_mut(group)) {
            return Err(full.retries.next());
        }
        for group in &groups {
            let retries = RetryTimes::new(self.retry_interval, self.max_wait);
            used.entry(group.clone()).or_insert(GroupUse { occupied: 0, retries }).occupied += 1;
        }
        Ok(Place { places: self.clone(), groups })
    }
}

#[cfg(test)]
impl<G> Places<G> {
    pub(crate) fn is_unused(&self) -> bool {
        self.used.lock().is_empty()
    }
}

/// A place of each of its groups. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct Place<G: Eq + Hash> {
    places: Arc<Places<G>>,
    groups: Vec<G>,
}

impl<G: Eq + Hash> Drop for Place<G> {
    fn drop(&mut self) {
        let mut used = self.places.used.lock();
        for group in &self.groups {
            if let Some(group_use) = used.get_mut(group) {
                group_use.occupied -= 1;
                if group_use.occupied == 0 {
                    used.remove(group);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn permits_alternate_between_requesters() {
        let semaphore = FairSemaphore::new(1);
        let (first, last) = (Requester(1), Requester(2));
        let permit = poll(pin!(semaphore.acquire(first)));
        let (mut second, mut third) = (pin!(semaphore.acquire(first)), pin!(semaphore.acquire(first)));
        let mut late = pin!(semaphore.acquire(last));
        assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
        assert!(poll(late.as_mut()).is_none());
        drop(permit);
        let permit = poll(second.as_mut());
        assert!(permit.is_some() && poll(third.as_mut()).is_none() && poll(late.as_mut()).is_none());
        drop(permit);
        assert!(poll(third.as_mut()).is_none());
        let permit = poll(late.as_mut());
        assert!(permit.is_some());
        drop(permit);
        assert!(poll(third.as_mut()).is_some());
    }

    #[test]
    fn dropped_waiters_do_not_lose_permits() {
        let semaphore = FairSemaphore::new(1);
        let permit = poll(pin!(semaphore.acquire(Requester(1))));
        {
            let mut cancelled = Box::pin(semaphore.acquire(Requester(2)));
            assert!(poll(cancelled.as_mut()).is_none());
            // One waiter is dropped before it receives a permit, the other one afterwards.
            let mut granted = Box::pin(semaphore.acquire(Requester(3)));
            assert!(poll(granted.as_mut()).is_none());
            drop(cancelled);
            drop(permit);
        }
        assert!(poll(pin!(semaphore.acquire(Requester(4)))).is_some());
    }
}
