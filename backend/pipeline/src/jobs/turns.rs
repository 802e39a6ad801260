//! A host's turns: one request after the other, with the delay that the crawl, robots.txt and the host's own behaviour ask for.
//!
//! The state lies in the database, so that all processes are polite together. What a host suffers from (429, 503) is counted here, per process,
//! and written there as a pause that holds for everybody.

use super::crowd::{Crowds, Inside};
use crate::crawl::Config;
use crawler::FetchError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::Store;
use store::hosts::Turn;
use time::OffsetDateTime;

/// The most that a slow host's own answering time adds to the delay.
const LONGEST_ADAPTIVE: Duration = Duration::from_secs(10);
/// First pause after a 429 or 503 without `Retry-After`; doubles with each in a row.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Waits so short are waited out by any number of jobs: going back to the queue would take as long.
const SHORT_WAIT: Duration = Duration::from_millis(250);
/// When the database cannot be asked, nobody is polite by guessing.
const DATABASE_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Turns {
    store: Store,
    config: Config,
    /// Refusals in a row, by host.
    refusals: Mutex<HashMap<String, u32>>,
    crowds: Arc<Crowds>,
}

/// Least times between two requests to a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delay {
    least: Duration,
    /// Whether the host's answering time counts too: only where the crawl named no delay.
    adaptive: bool,
}

/// A turn that was had; has to be ended.
#[derive(Debug)]
pub(super) struct Grant {
    host: String,
    token: i64,
    delay: Delay,
    inside: Option<Inside>,
}

impl Turns {
    pub(super) fn new(store: Store, config: Config) -> Self {
        Self { store, config, refusals: Mutex::default(), crowds: Arc::default() }
    }

    /// The longer of the crawl's own (or the service's) delay and the one in robots.txt.
    pub(super) fn delay(&self, own: Option<Duration>, robots: Option<Duration>) -> Delay {
        let least = own.unwrap_or(self.config.default_delay).max(robots.unwrap_or_default());
        Delay { least: least.min(self.config.longest_delay), adaptive: own.is_none() }
    }

    /// Waits for the host's turn when that is near.
    ///
    /// # Errors
    /// [`FetchError::Later`] with the time at which it is worth asking again.
    pub(super) async fn take(&self, host: &str, delay: Delay) -> Result<Grant, FetchError> {
        // Without a delay nobody waits for a turn; what bounds the host's share of our jobs then is how it answers.
        let crowded = |wait| FetchError::Later(OffsetDateTime::now_utc() + wait);
        let inside =
            if delay.least.is_zero() { Some(self.crowds.enter(host).map_err(crowded)?) } else { None };
        let token = self.take_turn(host, delay).await?;
        Ok(Grant { host: host.to_owned(), token, delay, inside })
    }

    async fn take_turn(&self, host: &str, delay: Delay) -> Result<i64, FetchError> {
        let deadline = OffsetDateTime::now_utc() + self.config.patience;
        loop {
            let turn = self.store.take_turn(host, millis(delay.least)).await;
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
            let Some(_place) = self.crowds.wait(host) else { return Err(FetchError::Later(until)) };
            tokio::time::sleep(wait).await;
        }
    }

    /// Ends a turn. `status`: of the answer, `None` when there was none.
    pub(super) async fn end(
        &self,
        grant: Grant,
        status: Option<u16>,
        retry_after: Option<Duration>,
        took: Duration,
    ) {
        if let Some(inside) = grant.inside {
            self.crowds.answered(&grant.host, status.map(|_| took));
            drop(inside);
        }
        let mut delay = grant.delay.least;
        if grant.delay.adaptive {
            delay = delay.max(took.min(LONGEST_ADAPTIVE));
        }
        let pause = self.pause(&grant.host, status, retry_after);
        let not_before = pause.map(|wait| OffsetDateTime::now_utc() + wait.min(self.config.longest_delay));
        let ended = self.store.finish_request(&grant.host, grant.token, millis(delay), not_before).await;
        if let Err(error) = ended {
            // The grant expires by itself; until then the host is left alone, which harms nobody.
            tracing::warn!(host = grant.host, %error, "the end of a request could not be recorded");
        }
    }

    /// The pause that an answer asks for.
    fn pause(&self, host: &str, status: Option<u16>, retry_after: Option<Duration>) -> Option<Duration> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(status, Some(429 | 503)) {
            if status.is_some() {
                refusals.remove(host);
            }
            return None;
        }
        let count = refusals.entry(host.to_owned()).or_default();
        *count = count.saturating_add(1);
        let grown = FIRST_PAUSE * 2_u32.saturating_pow(*count - 1).min(1024);
        Some(retry_after.unwrap_or(grown.min(LONGEST_PAUSE)))
    }

    fn database_failed(&self, error: &store::StoreError) -> FetchError {
        tracing::error!(%error, "hosts' turns cannot be had");
        FetchError::Later(OffsetDateTime::now_utc() + DATABASE_PAUSE)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
