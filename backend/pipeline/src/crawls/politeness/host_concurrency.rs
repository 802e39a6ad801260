//! Limits the number of concurrent jobs of this process for one host. Delays between requests are
//! in `host_throttle`.
//!
//! The limit grows with every fast response of the host. At most two jobs wait for a slow host,
//! regardless of the number of its queued pages, so that jobs of other hosts can run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Initial and minimum number of concurrent requests to a host.
const MIN_CONCURRENCY: usize = 2;
/// A response within this time raises the limit by one. A slower or missing response halves it.
const FAST_RESPONSE: Duration = Duration::from_secs(1);
/// Interval between the retry times of rejected jobs, and maximum time from now until a retry.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
const MAX_RETRY_WAIT: Duration = Duration::from_secs(10);
/// Number of hosts in memory above which idle hosts are removed.
const MAX_HOSTS: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct HostConcurrency(Mutex<HashMap<String, HostState>>);

#[derive(Debug)]
struct HostState {
    in_flight: usize,
    allowed: usize,
    /// Whether a job waits for the host's next permit.
    waited_for: bool,
    /// The latest retry time assigned to a rejected job.
    last_retry_time: Instant,
}

impl HostConcurrency {
    /// Admits a request until the result is dropped, or returns the wait before the next attempt.
    pub(crate) fn acquire(self: &Arc<Self>, host: &str) -> Result<ConcurrencyPermit, Duration> {
        self.with(host, |state| {
            if state.in_flight < state.allowed {
                state.in_flight += 1;
                return Ok(ConcurrencyPermit { hosts: Arc::clone(self), host: host.to_owned() });
            }
            let now = Instant::now();
            let next = state.last_retry_time.max(now) + RETRY_INTERVAL;
            state.last_retry_time = if next > now + MAX_RETRY_WAIT { now + RETRY_INTERVAL } else { next };
            Err(state.last_retry_time - now)
        })
    }

    /// Adapts the limit after a request. `took` is the time until the response; `None` means that
    /// there was no response.
    pub(crate) fn record_response(&self, host: &str, took: Option<Duration>) {
        self.with(host, |state| {
            state.allowed = match took {
                Some(took) if took < FAST_RESPONSE => state.allowed.saturating_add(1),
                _ => (state.allowed / 2).max(MIN_CONCURRENCY),
            };
        });
    }

    /// Reserves the only slot for a job that waits for the host's next permit. Returns `None` if
    /// it is occupied. Dropping the slot releases it.
    pub(crate) fn wait<'a>(&'a self, host: &'a str) -> Option<WaitSlot<'a>> {
        let free = self.with(host, |state| !std::mem::replace(&mut state.waited_for, true));
        free.then_some(WaitSlot { hosts: self, host })
    }

    fn with<T>(&self, host: &str, update: impl FnOnce(&mut HostState) -> T) -> T {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() >= MAX_HOSTS && !hosts.contains_key(host) {
            hosts.retain(|_, state| state.in_flight > 0 || state.waited_for);
        }
        let new = || HostState {
            in_flight: 0,
            allowed: MIN_CONCURRENCY,
            waited_for: false,
            last_retry_time: Instant::now(),
        };
        update(hosts.entry(host.to_owned()).or_insert_with(new))
    }
}

/// Counts as one request in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct ConcurrencyPermit {
    hosts: Arc<HostConcurrency>,
    host: String,
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        self.hosts.with(&self.host, |state| state.in_flight = state.in_flight.saturating_sub(1));
    }
}

/// The slot of a job that waits for a host's permit.
pub(crate) struct WaitSlot<'a> {
    hosts: &'a HostConcurrency,
    host: &'a str,
}

impl Drop for WaitSlot<'_> {
    fn drop(&mut self) {
        self.hosts.with(self.host, |state| state.waited_for = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquire_all(hosts: &Arc<HostConcurrency>, host: &str) -> Vec<ConcurrencyPermit> {
        (0..100).map_while(|_| hosts.acquire(host).ok()).collect()
    }

    #[test]
    fn quick_answers_let_more_in_and_slow_ones_fewer() {
        let hosts = Arc::new(HostConcurrency::default());
        let first = acquire_all(&hosts, "a");
        assert_eq!((first.len(), acquire_all(&hosts, "b").len()), (2, 2));
        hosts.record_response("a", Some(Duration::from_millis(5)));
        drop(first);
        assert_eq!(acquire_all(&hosts, "a").len(), 3);
        for _ in 0..5 {
            hosts.record_response("a", Some(Duration::from_millis(5)));
        }
        assert_eq!(acquire_all(&hosts, "a").len(), 8);
        hosts.record_response("a", Some(Duration::from_secs(2)));
        assert_eq!(acquire_all(&hosts, "a").len(), 4);
        for _ in 0..3 {
            hosts.record_response("a", None);
        }
        assert_eq!(acquire_all(&hosts, "a").len(), 2);
    }

    #[test]
    fn those_who_come_back_come_one_after_the_other() {
        let hosts = Arc::new(HostConcurrency::default());
        let _held = acquire_all(&hosts, "a");
        let waits: Vec<Duration> = (0..500).map(|_| hosts.acquire("a").expect_err("full")).collect();
        assert!(waits.iter().all(|wait| *wait <= MAX_RETRY_WAIT));
        assert!(waits[99] > RETRY_INTERVAL * 50, "{waits:?}");
    }

    #[test]
    fn one_may_wait_at_a_time() {
        let hosts = HostConcurrency::default();
        let slot = hosts.wait("a");
        assert!(slot.is_some() && hosts.wait("a").is_none() && hosts.wait("b").is_some());
        drop(slot);
        assert!(hosts.wait("a").is_some());
    }
}
