//! Limits the number of concurrent jobs of this process for one host. Delays between requests are
//! in `host_throttle`.
//!
//! The limit grows with every fast response of the host. At most two jobs wait for a slow host,
//! regardless of the number of its queued pages, so that jobs of other hosts can run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Initial and minimum number of concurrent requests to a host.
const FIRST: usize = 2;
/// A response within this time raises the limit by one. A slower or missing response halves it.
const QUICK: Duration = Duration::from_secs(1);
/// Interval between the retry times of rejected jobs, and maximum time from now until a retry.
const STEP: Duration = Duration::from_millis(50);
const HORIZON: Duration = Duration::from_secs(10);
/// Number of hosts in memory above which idle hosts are removed.
const HOSTS: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct HostConcurrency(Mutex<HashMap<String, HostState>>);

#[derive(Debug)]
struct HostState {
    inside: usize,
    allowed: usize,
    /// Whether a job waits for the host's next permit.
    waited_for: bool,
    /// The latest retry time assigned to a rejected job.
    told: Instant,
}

impl HostConcurrency {
    /// Admits a request until the result is dropped, or returns how long to wait before the next
    /// attempt.
    pub(super) fn enter(self: &Arc<Self>, host: &str) -> Result<Inside, Duration> {
        self.with(host, |state| {
            if state.inside < state.allowed {
                state.inside += 1;
                return Ok(Inside { hosts: Arc::clone(self), host: host.to_owned() });
            }
            let now = Instant::now();
            let next = state.told.max(now) + STEP;
            state.told = if next > now + HORIZON { now + STEP } else { next };
            Err(state.told - now)
        })
    }

    /// Adapts the limit after a request. `took` is the time until the response; `None` means that
    /// there was no response.
    pub(super) fn answered(&self, host: &str, took: Option<Duration>) {
        self.with(host, |state| {
            state.allowed = match took {
                Some(took) if took < QUICK => state.allowed.saturating_add(1),
                _ => (state.allowed / 2).max(FIRST),
            };
        });
    }

    /// Reserves the only place for a job that waits for the host's next permit. Returns `None` if
    /// it is occupied. Dropping the place releases it.
    pub(super) fn wait<'a>(&'a self, host: &'a str) -> Option<Place<'a>> {
        let free = self.with(host, |state| !std::mem::replace(&mut state.waited_for, true));
        free.then_some(Place { hosts: self, host })
    }

    fn with<T>(&self, host: &str, look: impl FnOnce(&mut HostState) -> T) -> T {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() >= HOSTS && !hosts.contains_key(host) {
            hosts.retain(|_, state| state.inside > 0 || state.waited_for);
        }
        let new = || HostState { inside: 0, allowed: FIRST, waited_for: false, told: Instant::now() };
        look(hosts.entry(host.to_owned()).or_insert_with(new))
    }
}

/// A request that was admitted.
#[derive(Debug)]
pub(super) struct Inside {
    hosts: Arc<HostConcurrency>,
    host: String,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.hosts.with(&self.host, |state| state.inside = state.inside.saturating_sub(1));
    }
}

/// The place of a job that waits for a host's permit.
pub(super) struct Place<'a> {
    hosts: &'a HostConcurrency,
    host: &'a str,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.hosts.with(self.host, |state| state.waited_for = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn let_in(hosts: &Arc<HostConcurrency>, host: &str) -> Vec<Inside> {
        (0..100).map_while(|_| hosts.enter(host).ok()).collect()
    }

    #[test]
    fn quick_answers_let_more_in_and_slow_ones_fewer() {
        let hosts = Arc::new(HostConcurrency::default());
        let first = let_in(&hosts, "a");
        assert_eq!((first.len(), let_in(&hosts, "b").len()), (2, 2));
        hosts.answered("a", Some(Duration::from_millis(5)));
        drop(first);
        assert_eq!(let_in(&hosts, "a").len(), 3);
        for _ in 0..5 {
            hosts.answered("a", Some(Duration::from_millis(5)));
        }
        assert_eq!(let_in(&hosts, "a").len(), 8);
        hosts.answered("a", Some(Duration::from_secs(2)));
        assert_eq!(let_in(&hosts, "a").len(), 4);
        for _ in 0..3 {
            hosts.answered("a", None);
        }
        assert_eq!(let_in(&hosts, "a").len(), 2);
    }

    #[test]
    fn those_who_come_back_come_one_after_the_other() {
        let hosts = Arc::new(HostConcurrency::default());
        let _inside = let_in(&hosts, "a");
        let told: Vec<Duration> = (0..500).map(|_| hosts.enter("a").expect_err("full")).collect();
        assert!(told.iter().all(|wait| *wait <= HORIZON));
        assert!(told[99] > STEP * 50, "{told:?}");
    }

    #[test]
    fn one_may_wait_at_a_time() {
        let hosts = HostConcurrency::default();
        let place = hosts.wait("a");
        assert!(place.is_some() && hosts.wait("a").is_none() && hosts.wait("b").is_some());
        drop(place);
        assert!(hosts.wait("a").is_some());
    }
}
