//! A host's turns: one request after the other, with the delay that the crawl, robots.txt and the host's own behaviour ask for.
//!
//! The state lies in the database, so that all processes are polite together: turns, pauses, and the pace that a host's answers led to
//! ([`crawler::pace`]).

use super::host_concurrency::{HostConcurrency, Inside};
use crate::crawl::Config;
use crawler::FetchError;
use crawler::pace::{Bounds, Outcome, Pace};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::host_delays::OwnDelay;
use store::hosts::{HostPace, Turn};
use store::{Store, retried};
use time::OffsetDateTime;
use uuid::Uuid;

/// The most that a slow host's own answering time adds to the delay.
const LONGEST_ADAPTIVE: Duration = Duration::from_secs(10);
/// Waits so short are waited out by any number of jobs: going back to the queue would take as long.
const SHORT_WAIT: Duration = Duration::from_millis(250);
/// Refusing hosts remembered at once; of further ones the pace is only read when they refuse again.
const HOSTS: usize = 10_000;
/// When the database cannot be asked, nobody is polite by guessing.
const DATABASE_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct HostThrottle {
    store: Store,
    config: Config,
    /// Hosts without a delay that refused a request of this process: only of them is the pace read, because the others are asked too
    /// often for that.
    refusing: Mutex<HashSet<String>>,
    concurrency: Arc<HostConcurrency>,
}

/// Holds the delay that a crawl sets for itself and the collection whose requests it applies to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) collection: Uuid,
    pub(super) delay: Duration,
}

/// Least times between two requests to a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delay {
    least: Duration,
    /// The part of `least` that applies to the requests of every collection.
    shared: Duration,
    /// The crawl's own delay, if it is longer than `shared`.
    own: Option<OwnDelay>,
    /// Whether the host's answering time counts too: only where the crawl named no delay.
    adaptive: bool,
}

/// A turn that was had; has to be ended.
#[derive(Debug)]
pub(super) struct HostPermit {
    host: String,
    token: i64,
    delay: Delay,
    inside: Option<Inside>,
}

impl HostThrottle {
    pub(super) fn new(store: Store, config: Config) -> Self {
        Self { store, config, refusing: Mutex::default(), concurrency: Arc::default() }
    }

    /// The longer of the crawl's own (or the service's) delay and the one in robots.txt.
    ///
    /// A crawl's own delay applies to its own collection only, because one tenant must not slow the
    /// crawls of the others.
    pub(super) fn delay(&self, own: Option<Own>, robots: Option<Duration>) -> Delay {
        let robots = robots.unwrap_or_default();
        let default = self.config.default_delay;
        let least = own.map_or(default, |own| own.delay).max(robots).min(self.config.longest_delay);
        let shared = least.min(default.max(robots));
        let longer = own.filter(|_| least > shared);
        let own_delay = |own: Own| OwnDelay { collection: own.collection, delay_ms: millis(least) };
        Delay { least, shared, own: longer.map(own_delay), adaptive: own.is_none() }
    }

    /// Waits for the host's turn when that is near.
    ///
    /// # Errors
    /// [`FetchError::Later`] with the time at which it is worth asking again.
    pub(super) async fn take(&self, host: &str, delay: Delay) -> Result<HostPermit, FetchError> {
        // Without a delay nobody waits for a turn; what bounds the host's share of our jobs then is how it answers.
        let too_many = |wait| FetchError::Later(OffsetDateTime::now_utc() + wait);
        let inside =
            if delay.least.is_zero() { Some(self.concurrency.enter(host).map_err(too_many)?) } else { None };
        let token = self.take_turn(host, delay).await?;
        Ok(HostPermit { host: host.to_owned(), token, delay, inside })
    }

    async fn take_turn(&self, host: &str, delay: Delay) -> Result<i64, FetchError> {
        let deadline = OffsetDateTime::now_utc() + self.config.patience;
        loop {
            let shared = millis(delay.shared);
            let turn = match delay.own {
                Some(own) => self.store.take_own_turn(host, own, shared).await,
                None => self.store.take_turn(host, shared).await,
            };
            let until = match turn.map_err(|error| self.database_failed(&error))? {
                Turn::Granted { token } => return Ok(token),
                Turn::Wait { until } if until > deadline => return Err(FetchError::Later(until)),
                Turn::Wait { until } => until,
            };
            // Clocks of two machines differ: never spin.
            let wait = Duration::try_from(until - OffsetDateTime::now_utc()).unwrap_or_default();
            let wait = wait.max(Duration::from_millis(1));
            if wait <= SHORT_WAIT {
                tokio::time::sleep(wait).await;
                continue;
            }
            // One job waits here for the host, so that its turns are used; the others make room for other hosts' jobs.
            let Some(_place) = self.concurrency.wait(host) else { return Err(FetchError::Later(until)) };
            tokio::time::sleep(wait).await;
        }
    }

    /// Ends a turn. `outcome`: how the host answered, `None` when nobody waited for it.
    pub(super) async fn end(&self, permit: HostPermit, outcome: Option<Outcome>) {
        let took = match outcome {
            Some(Outcome::Answered { took, .. }) => Some(took),
            _ => None,
        };
        if let Some(inside) = permit.inside {
            self.concurrency.answered(&permit.host, took);
            drop(inside);
        }
        let Delay { least, shared, own, adaptive } = permit.delay;
        let mut delay = shared;
        let (mut pause, mut pace) = (None, None);
        if let Some(outcome) = outcome
            && (!least.is_zero() || adaptive || self.refuses(&permit.host, outcome))
        {
            // Without the host's history a refusal is the first, and the delay starts anew.
            let known = retried("host_pace", || self.store.host_pace(&permit.host)).await.unwrap_or_default();
            let before = Pace {
                delay: Duration::from_millis(known.pace_ms.max(0).unsigned_abs().into()),
                refusals: known.refusals.max(0).unsigned_abs(),
            };
            let longest = if adaptive { LONGEST_ADAPTIVE } else { least };
            let (after, asked) = before.after(outcome, Bounds { least, longest });
            pause = asked;
            // A crawl that names its delay learns nothing about how fast the host would like it.
            let learnt = if adaptive { after.delay } else { before.delay };
            // Other collections wait for the delay that the host's answers caused, not for this
            // crawl's own.
            delay = if adaptive { after.delay } else { before.delay.max(shared).min(least) };
            pace = Some(HostPace {
                pace_ms: i32::try_from(learnt.as_millis()).unwrap_or(i32::MAX),
                refusals: i32::try_from(after.refusals).unwrap_or(i32::MAX),
            });
        }
        let not_before = pause.map(|wait| OffsetDateTime::now_utc() + wait.min(self.config.longest_delay));
        // Said twice, it only moves the host's next turn by the time in between.
        let ended = retried("finish_request", || {
            self.store.finish_request(&permit.host, permit.token, millis(delay), not_before, pace)
        })
        .await;
        if let Err(error) = ended {
            // The grant expires by itself; until then the host is left alone, which harms nobody.
            tracing::warn!(host = permit.host, %error, "the end of a request could not be recorded");
        }
        let Some(own) = own else { return };
        let ended = retried("finish_own_request", || self.store.finish_own_request(&permit.host, own)).await;
        if let Err(error) = ended {
            tracing::warn!(host = permit.host, %error, "failed to record the end of a collection's request");
        }
    }

    /// Whether a host without delay refuses, or did so until now.
    fn refuses(&self, host: &str, outcome: Outcome) -> bool {
        let mut refusing = self.refusing.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Outcome::Answered { status: 429 | 503, .. } => {
                if refusing.len() < HOSTS {
                    refusing.insert(host.to_owned());
                }
                true
            }
            Outcome::Answered { status: 200..=399, .. } => refusing.remove(host),
            _ => false,
        }
    }

    fn database_failed(&self, error: &store::StoreError) -> FetchError {
        tracing::error!(%error, "hosts' turns cannot be had");
        FetchError::Later(OffsetDateTime::now_utc() + DATABASE_PAUSE)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
