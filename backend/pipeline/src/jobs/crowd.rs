//! How many of this process's jobs one host may keep busy. A host that answers at once is let in further with every answer; one that does not
//! keeps two jobs waiting and no more, however many of its pages are in line, so that the others are worked on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Requests at a time to a host that has not shown anything yet.
const FIRST: usize = 2;
/// An answer within this time lets one more in; a slower one, or none, halves what was let in.
const QUICK: Duration = Duration::from_secs(1);
/// Those who have to come back are told times this far apart, at most so far ahead.
const STEP: Duration = Duration::from_millis(50);
const HORIZON: Duration = Duration::from_secs(10);
/// Hosts remembered at once.
const HOSTS: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Crowds(Mutex<HashMap<String, Crowd>>);

#[derive(Debug)]
struct Crowd {
    inside: usize,
    allowed: usize,
    /// Somebody waits for its next turn.
    waited_for: bool,
    /// The latest time told to somebody who has to come back.
    told: Instant,
}

impl Crowds {
    /// Lets a request in, until what it gets is dropped, or says after which time to come back.
    pub(super) fn enter(self: &Arc<Self>, host: &str) -> Result<Inside, Duration> {
        self.with(host, |crowd| {
            if crowd.inside < crowd.allowed {
                crowd.inside += 1;
                return Ok(Inside { crowds: Arc::clone(self), host: host.to_owned() });
            }
            let now = Instant::now();
            let next = crowd.told.max(now) + STEP;
            crowd.told = if next > now + HORIZON { now + STEP } else { next };
            Err(crowd.told - now)
        })
    }

    /// How a request ended. `took`: until its answer; `None` when there was none.
    pub(super) fn answered(&self, host: &str, took: Option<Duration>) {
        self.with(host, |crowd| {
            crowd.allowed = match took {
                Some(took) if took < QUICK => crowd.allowed.saturating_add(1),
                _ => (crowd.allowed / 2).max(FIRST),
            };
        });
    }

    /// The place in which one caller at a time may wait for the host's next turn; `None` when it is taken. Free again when dropped.
    pub(super) fn wait<'a>(&'a self, host: &'a str) -> Option<Place<'a>> {
        let free = self.with(host, |crowd| !std::mem::replace(&mut crowd.waited_for, true));
        free.then_some(Place { crowds: self, host })
    }

    fn with<T>(&self, host: &str, look: impl FnOnce(&mut Crowd) -> T) -> T {
        let mut crowds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if crowds.len() >= HOSTS && !crowds.contains_key(host) {
            crowds.retain(|_, crowd| crowd.inside > 0 || crowd.waited_for);
        }
        let new = || Crowd { inside: 0, allowed: FIRST, waited_for: false, told: Instant::now() };
        look(crowds.entry(host.to_owned()).or_insert_with(new))
    }
}

/// A request that was let in.
#[derive(Debug)]
pub(super) struct Inside {
    crowds: Arc<Crowds>,
    host: String,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.crowds.with(&self.host, |crowd| crowd.inside = crowd.inside.saturating_sub(1));
    }
}

/// Held while waiting.
pub(super) struct Place<'a> {
    crowds: &'a Crowds,
    host: &'a str,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.crowds.with(self.host, |crowd| crowd.waited_for = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn let_in(crowds: &Arc<Crowds>, host: &str) -> Vec<Inside> {
        (0..100).map_while(|_| crowds.enter(host).ok()).collect()
    }

    #[test]
    fn quick_answers_let_more_in_and_slow_ones_fewer() {
        let crowds = Arc::new(Crowds::default());
        let first = let_in(&crowds, "a");
        assert_eq!((first.len(), let_in(&crowds, "b").len()), (2, 2));
        crowds.answered("a", Some(Duration::from_millis(5)));
        drop(first);
        assert_eq!(let_in(&crowds, "a").len(), 3);
        for _ in 0..5 {
            crowds.answered("a", Some(Duration::from_millis(5)));
        }
        assert_eq!(let_in(&crowds, "a").len(), 8);
        crowds.answered("a", Some(Duration::from_secs(2)));
        assert_eq!(let_in(&crowds, "a").len(), 4);
        for _ in 0..3 {
            crowds.answered("a", None);
        }
        assert_eq!(let_in(&crowds, "a").len(), 2);
    }

    #[test]
    fn those_who_come_back_come_one_after_the_other() {
        let crowds = Arc::new(Crowds::default());
        let _inside = let_in(&crowds, "a");
        let told: Vec<Duration> = (0..500).map(|_| crowds.enter("a").expect_err("full")).collect();
        assert!(told.iter().all(|wait| *wait <= HORIZON));
        assert!(told[99] > STEP * 50, "{told:?}");
    }

    #[test]
    fn one_may_wait_at_a_time() {
        let crowds = Crowds::default();
        let place = crowds.wait("a");
        assert!(place.is_some() && crowds.wait("a").is_none() && crowds.wait("b").is_some());
        drop(place);
        assert!(crowds.wait("a").is_some());
    }
}
