//! Reads the robots.txt of a host from memory, the database or the host. `crawler` parses it.

use super::host_throttle::{HostThrottle, RequestedDelay, ThrottledPolicy};
use crate::admission::budget::HeldBytes;
use crate::crawls::Config;
use crawler::fetch::{ConnectError, Kind};
use crawler::{FetchError, Fetcher, Request, Robots};
use domain::Reason;
use queue::outside_slot;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::crawls::hosts::RobotsRecord;
use store::{Store, StoreError};
use url::Url;

/// Maximum time for which a network error is cached. Requests for other URLs of the host reveal its
/// state soon enough.
const NETWORK_TTL: Duration = Duration::from_secs(5);
/// Maximum time for which an entry is cached in memory before the database is read again.
const MEMORY_TTL: Duration = Duration::from_secs(600);
/// Time limit for one process to fetch a robots.txt. It is longer than any fetch.
const CLAIM_DURATION: Duration = Duration::from_secs(40);
/// Wait before the other processes check whether the robots.txt is stored.
const CLAIM_RECHECK: Duration = Duration::from_millis(250);
/// Number of hosts in memory above which unused hosts are removed.
const MAX_HOSTS: usize = 10_000;
/// Total size of the rules in memory, in bytes, above which unused hosts are removed. A robots.txt
/// of 500 KiB takes about 2 MB, and a crawl can visit any number of hosts with such a file.
const MAX_BYTES: usize = 64 << 20;

/// The status that is stored for a response that is invalid or incomplete, or that cannot be
/// decoded. It is handled like the statuses from 500.
const UNREADABLE: u16 = 599;

type Slot = Arc<tokio::sync::Mutex<Option<Entry>>>;

pub(crate) struct RobotsCache {
    store: Store,
    fetcher: Fetcher,
    throttle: Arc<HostThrottle>,
    config: Config,
    hosts: Mutex<HashMap<String, Slot>>,
    /// Size of the rules in `hosts`, in bytes.
    bytes: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Entry {
    result: CachedResult,
    expires_at: Instant,
    /// The part of the cache's bytes that this entry uses.
    _share: Arc<HeldBytes>,
}

#[derive(Clone)]
enum CachedResult {
    Rules(Arc<Robots>),
    /// The status is 5xx, 429 or [`UNREADABLE`], so everything is disallowed (RFC 9309 2.3.1.4).
    Unavailable,
    /// The host did not respond.
    Unreachable(NoResponse),
}

#[derive(Clone, Copy)]
enum NoResponse {
    Dns,
    Connect(ConnectError),
    Timeout,
}

impl NoResponse {
    fn from_error(error: &FetchError) -> Self {
        match error {
            FetchError::Dns(_) => Self::Dns,
            FetchError::Timeout(_) => Self::Timeout,
            FetchError::Connect { cause, .. } => Self::Connect(*cause),
            _ => Self::Connect(ConnectError::Other),
        }
    }

    fn error(self) -> FetchError {
        const REASON: &str = "the host did not respond to a recent request for robots.txt";
        match self {
            Self::Dns => FetchError::Dns(REASON.into()),
            Self::Connect(cause) => FetchError::Connect { cause, why: REASON.into() },
            Self::Timeout => FetchError::Timeout(REASON),
        }
    }
}

impl RobotsCache {
    pub(crate) fn new(store: Store, fetcher: Fetcher, throttle: Arc<HostThrottle>, config: Config) -> Self {
        Self { store, fetcher, throttle, config, hosts: Mutex::default(), bytes: Arc::default() }
    }

    /// Returns the rules of the URL's host. Concurrent jobs of one host wait for one fetch.
    ///
    /// # Errors
    /// Fails with `Refused(RobotsUnavailable)`, `Postponed`, or the network error.
    pub(crate) async fn rules(
        &self,
        url: &Url,
        own_delay: Option<RequestedDelay>,
    ) -> Result<Arc<Robots>, FetchError> {
        let host = crawler::urls::host_key(url);
        let slot = self.slot(&host);
        let max_wait = self.config.max_permit_wait;
        let mut entry = match slot.try_lock() {
            Ok(entry) => entry,
            Err(_) => outside_slot(tokio::time::timeout(max_wait, slot.lock()))
                .await
                .map_err(|_| FetchError::Postponed(max_wait))?,
        };
        let now = Instant::now();
        if let Some(cached) = entry.as_ref().filter(|cached| cached.expires_at > now) {
            return cached.result.rules();
        }
        let record = match self.stored_record(&host).await? {
            Some(record) => record,
            None => match self.fetch_exclusively(&host, url, own_delay).await {
                Ok(record) => record,
                Err((error, record)) => {
                    if let Some(record) = record {
                        *entry = Some(self.new_entry(record, Some(NoResponse::from_error(&error))).await);
                    }
                    return Err(error);
                }
            },
        };
        let new_entry = self.new_entry(record, None).await;
        let result = new_entry.result.clone();
        *entry = Some(new_entry);
        result.rules()
    }

    /// Returns the stored robots.txt of any process, unless it is too old.
    async fn stored_record(&self, host: &str) -> Result<Option<RobotsRecord>, FetchError> {
        let stored = self.store.hosts().robots(host).await.map_err(database_error)?;
        Ok(stored.filter(|record| record.age < self.ttl(record.status)))
    }

    /// Fetches robots.txt while no other process fetches it, because the host's delay is unknown
    /// until then. Other processes retry until the result is stored.
    async fn fetch_exclusively(
        &self,
        host: &str,
        url: &Url,
        own_delay: Option<RequestedDelay>,
    ) -> Result<RobotsRecord, (FetchError, Option<RobotsRecord>)> {
        let claimed = self.store.hosts().claim_robots(host, CLAIM_DURATION).await;
        if !claimed.map_err(|error| (database_error(error), None))? {
            return Err((FetchError::Postponed(CLAIM_RECHECK), None));
        }
        // Another process may just have stored it.
        if let Some(record) = self.stored_record(host).await.map_err(|error| (error, None))? {
            self.release(host).await;
            return Ok(record);
        }
        let fetched = self.fetch(url, own_delay).await;
        match &fetched {
            Ok(record) | Err((_, Some(record))) => self.store_record(host, record).await,
            Err((_, None)) => self.release(host).await,
        }
        fetched
    }

    async fn release(&self, host: &str) {
        if let Err(error) = self.store.hosts().release_robots(host).await {
            tracing::warn!(%error, "failed to release the claim on robots.txt; it is not fetched until the claim expires");
        }
    }

    /// Fetches robots.txt through the network guard and the host's throttle. If an error is
    /// returned with a record, the caller must cache the record.
    async fn fetch(
        &self,
        url: &Url,
        own_delay: Option<RequestedDelay>,
    ) -> Result<RobotsRecord, (FetchError, Option<RobotsRecord>)> {
        let mut robots_url = url.clone();
        robots_url.set_path("/robots.txt");
        robots_url.set_query(None);
        robots_url.set_fragment(None);
        let policy = ThrottledPolicy::new(&self.throttle, own_delay);
        let fetched = self.fetcher.fetch(Request::new(robots_url, Kind::Robots), &policy).await;
        let record =
            |status: u16, body| RobotsRecord { status: i32::from(status), body, age: Duration::ZERO };
        match fetched {
            Ok(response) => Ok(record(response.status, Some(response.body.to_vec()))),
            Err(FetchError::Status { status, .. }) => Ok(record(status, None)),
            // RFC 9309 2.3.1.2 and 2.3.1.3: too many redirects mean that there is no robots.txt.
            Err(FetchError::TooManyRedirects) => Ok(record(404, None)),
            // The same applies to a redirect to a URL that is too long.
            Err(FetchError::Refused(Reason::UrlTooLong)) => Ok(record(404, None)),
            Err(error @ (FetchError::Guard(_) | FetchError::Postponed(_) | FetchError::Refused(_))) => {
                Err((error, None))
            }
            // The rules of the host are not known. The server may send a valid response later, so
            // the job is retried.
            Err(FetchError::Invalid(_) | FetchError::Undecodable(_) | FetchError::Incomplete { .. }) => {
                Ok(record(UNREADABLE, None))
            }
            Err(error) => Err((error, Some(record(0, None)))),
        }
    }

    async fn store_record(&self, host: &str, record: &RobotsRecord) {
        if let Err(error) = self.store.hosts().put_robots(host, record).await {
            tracing::warn!(%error, "failed to store robots.txt; it will be fetched again");
        }
    }

    /// Returns the entry of a record. `cause` is known if this process made the request.
    async fn new_entry(&self, record: RobotsRecord, cause: Option<NoResponse>) -> Entry {
        let remaining = self.ttl(record.status).saturating_sub(record.age);
        let (result, bytes) = match record.status {
            0 => (CachedResult::Unreachable(cause.unwrap_or(NoResponse::Connect(ConnectError::Other))), 0),
            429 | 500.. => (CachedResult::Unavailable, 0),
            status => {
                // Other statuses, such as redirects without a target, mean no robots.txt.
                let status = u16::try_from(status).ok().filter(|s| !(300..400).contains(s)).unwrap_or(404);
                let agent = self.fetcher.agent().to_owned();
                let body = record.body.unwrap_or_default();
                let parse = move || Robots::from_response(status, &body, &agent);
                // Parsing and sorting 500 KiB of rules takes too long for an async thread.
                match tokio::task::spawn_blocking(parse).await {
                    Ok(robots) => {
                        let bytes = robots.bytes();
                        (CachedResult::Rules(Arc::new(robots)), bytes)
                    }
                    Err(error) => {
                        tracing::error!(%error, "failed to parse robots.txt; the host counts as unavailable");
                        (CachedResult::Unavailable, 0)
                    }
                }
            }
        };
        let share = Arc::new(HeldBytes::new(&self.bytes, bytes));
        Entry { result, expires_at: Instant::now() + remaining.min(MEMORY_TTL), _share: share }
    }

    fn ttl(&self, status: i32) -> Duration {
        match status {
            0 => NETWORK_TTL.min(self.config.robots_retry),
            429 | 500.. => self.config.robots_retry,
            _ => self.config.robots_ttl,
        }
    }

    fn slot(&self, host: &str) -> Slot {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = hosts.len() >= MAX_HOSTS || self.bytes.load(Ordering::Relaxed) >= MAX_BYTES;
        if is_full && !hosts.contains_key(host) {
            // Entries in use are kept, so that only one request per robots.txt runs.
            hosts.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        hosts.entry(host.to_owned()).or_default().clone()
    }
}

fn database_error(error: StoreError) -> FetchError {
    tracing::error!(%error, "failed to read robots.txt from the database");
    FetchError::Postponed(NETWORK_TTL)
}

impl CachedResult {
    fn rules(&self) -> Result<Arc<Robots>, FetchError> {
        match self {
            Self::Rules(robots) => Ok(robots.clone()),
            Self::Unavailable => Err(FetchError::Refused(Reason::RobotsUnavailable)),
            Self::Unreachable(cause) => Err(cause.error()),
        }
    }
}
