//! A host's turns: one request after the other, with the delay that the crawl, robots.txt and the host's own behaviour ask for.
//!
//! The state lies in the database, so that all processes are polite together. What a host suffers from (429, 503) is counted here, per process,
//! and written there as a pause that holds for everybody.

use crate::crawl::Config;
use crawler::FetchError;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use store::Store;
use store::hosts::Turn;
use time::OffsetDateTime;

/// The most that a slow host's own answering time adds to the delay.
const LONGEST_ADAPTIVE: Duration = Duration::from_secs(10);
/// First pause after a 429 or 503 without `Retry-After`; doubles with each in a row.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// When the database cannot be asked, nobody is polite by guessing.
const DATABASE_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Turns {
    store: Store,
    config: Config,
    /// Refusals in a row, by host.
    refusals: Mutex<HashMap<String, u32>>,
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
}

impl Turns {
    pub(super) fn new(store: Store, config: Config) -> Self {
        Self { store, config, refusals: Mutex::default() }
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
        let deadline = OffsetDateTime::now_utc() + self.config.patience;
        loop {
            let turn = self.store.take_turn(host, millis(delay.least)).await;
            match turn.map_err(|error| self.database_failed(&error))? {
                Turn::Granted { token } => return Ok(Grant { host: host.to_owned(), token, delay }),
                Turn::Wait { until } if until > deadline => return Err(FetchError::Later(until)),
                Turn::Wait { until } => {
                    let wait = until - OffsetDateTime::now_utc();
                    // Clocks of two machines differ: never spin.
                    let wait = Duration::try_from(wait).unwrap_or_default().max(Duration::from_millis(1));
                    tokio::time::sleep(wait).await;
                }
            }
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
