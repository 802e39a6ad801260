//! Grants permits for requests to a host: one at a time, with the delay that the crawl, robots.txt
//! and the host's responses require. Also limits the jobs of this process that are concurrent for
//! one host.
//!
//! Permits, pauses and the pace derived from a host's responses ([`crawler::pace`]) are in the
//! database, so that all processes share them. A permit without a delay is reused for a short time,
//! so a pause that another process records takes effect up to 0.1 s later.
//!
//! The limit on concurrent jobs grows with every fast response of the host. At most two jobs wait
//! for a slow host, regardless of the number of its queued pages, so that jobs of other hosts can
//! run.
use crate::admission::places::RetryTimes;
use crate::crawls::Config;
use crawler::pace::{Bounds, Pace, RequestEnd};
use crawler::{FetchError, HopPolicy, urls};
use queue::{only_outside_slot, outside_slot};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::crawls::hosts::{CrawlDelay, HostPace, PermitDecision};
use store::{Store, retried};
use url::Url;
use uuid::Uuid;

/// Maximum delay that a slow host's response time can cause.
const MAX_ADAPTIVE_DELAY: Duration = Duration::from_secs(10);
/// Minimum wait before the next request for a permit. It prevents a tight loop of queries.
const MIN_WAIT: Duration = Duration::from_millis(1);
/// Maximum wait that any number of jobs spend in the process. A return to the queue would take as
/// long.
const SHORT_WAIT: Duration = Duration::from_millis(250);
/// Maximum number of hosts in memory that refused a request. For other hosts, the pace is read only
/// when they refuse again.
const MAX_REFUSING_HOSTS: usize = 10_000;
/// Pace in milliseconds up to which a host counts as fast. If it also refuses no requests and no
/// delay is required, its pace is ignored. Otherwise each response would cause a write.
const NEGLIGIBLE_PACE_MS: i32 = 20;
/// Time for which a permit without a delay may be reused.
const PERMIT_TTL: Duration = Duration::from_millis(100);
/// Time for which a host counts as fast after its pace was read.
const PACE_TTL: Duration = Duration::from_secs(1);
/// Wait before a retry if the database fails. Permits cannot be granted without the database.
const DATABASE_PAUSE: Duration = Duration::from_secs(5);

pub(crate) struct HostThrottle {
    store: Store,
    config: Config,
    /// Hosts that refused a request of this process although the crawl sets a delay of 0. With such
    /// a delay, the pace is read only for these hosts.
    refusing_hosts: Mutex<HashSet<String>>,
    /// Permits and paces of hosts without a delay that were read from the database recently.
    undelayed_hosts: Mutex<HashMap<String, UndelayedHost>>,
    concurrency: Arc<HostConcurrency>,
}

/// What this process knows of a host to which it sends requests without a delay.
#[derive(Debug, Default)]
struct UndelayedHost {
    /// When the last permit was granted by the database, and its token.
    granted: Option<(Instant, i64)>,
    /// When this process recorded a pause.
    paused_at: Option<Instant>,
    /// When its pace was last read, if the host was fast and stayed fast.
    fast_at: Option<Instant>,
}

/// The delay that a crawl sets, and the collection whose requests it applies to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedDelay {
    pub(crate) collection: Uuid,
    pub(crate) delay: Duration,
}

/// Minimum times between two requests to a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delay {
    min_delay: Duration,
    /// The part of `min_delay` that applies to the requests of every collection.
    shared: Duration,
    /// The crawl's own delay, if it is longer than `shared`.
    own: Option<CrawlDelay>,
    /// Whether the host's response time also affects the delay. `false` if the crawl sets a delay.
    is_adaptive: bool,
}

/// A granted permit. Pass it to [`HostThrottle::end`] when the request has ended.
#[derive(Debug)]
pub(crate) struct HostPermit {
    host: String,
    token: i64,
    delay: Delay,
    concurrency: Option<ConcurrencyPermit>,
}

impl HostThrottle {
    pub(crate) fn new(store: Store, config: Config) -> Self {
        Self {
            store,
            config,
            refusing_hosts: Mutex::default(),
            undelayed_hosts: Mutex::default(),
            concurrency: Arc::default(),
        }
    }

    /// Returns the longer of the crawl's own (or the service's) delay and the one in robots.txt. A
    /// crawl's own delay applies to its own collection only, because one tenant must not slow down
    /// the crawls of others.
    pub(crate) fn delay(&self, own: Option<RequestedDelay>, robots: Option<Duration>) -> Delay {
        let robots = robots.unwrap_or_default();
        let default = self.config.default_delay;
        let min_delay = own.map_or(default, |own| own.delay).max(robots).min(self.config.max_delay);
        let shared = min_delay.min(default.max(robots));
        let longer = own.filter(|_| min_delay > shared);
        let own_delay =
            |own: RequestedDelay| CrawlDelay { collection: own.collection, delay_ms: millis(min_delay) };
        Delay { min_delay, shared, own: longer.map(own_delay), is_adaptive: own.is_none() }
    }

    /// Acquires a permit, and waits for it if the wait is short.
    ///
    /// # Errors
    /// Fails with [`FetchError::Postponed`], which contains the wait before the next attempt.
    pub(crate) async fn acquire(&self, host: &str, delay: Delay) -> Result<HostPermit, FetchError> {
        // Without a delay no job waits for a permit. The host's response times then limit its share
        // of the jobs.
        let concurrency = if delay.min_delay.is_zero() {
            Some(self.concurrency.acquire(host).map_err(FetchError::Postponed)?)
        } else {
            None
        };
        let token = self.acquire_token(host, delay).await?;
        Ok(HostPermit { host: host.to_owned(), token, delay, concurrency })
    }

    async fn acquire_token(&self, host: &str, delay: Delay) -> Result<i64, FetchError> {
        let is_undelayed = delay.own.is_none() && delay.shared.is_zero();
        if is_undelayed && let Some(token) = self.recent_token(host) {
            return Ok(token);
        }
        let deadline = Instant::now() + self.config.max_permit_wait;
        loop {
            let (shared, begin) = (millis(delay.shared), Instant::now());
            let decision = match delay.own {
                Some(own) => self.store.hosts().acquire_collection_permit(host, own, shared).await,
                None => self.store.hosts().acquire_permit(host, shared).await,
            };
            let wait = match decision.map_err(|error| self.database_error(&error))? {
                // For example, the commit waited for a standby.
                PermitDecision::Granted { token } if begin.elapsed() > self.config.grant_time_limit => {
                    tracing::warn!("the database took too long to grant a host permit; it is not used");
                    self.end(HostPermit { host: host.to_owned(), token, delay, concurrency: None }, None)
                        .await;
                    return Err(FetchError::Postponed(DATABASE_PAUSE));
                }
                PermitDecision::Granted { token } => {
                    if is_undelayed {
                        // A pause that was recorded after the query began invalidates its result.
                        let grant = |known: &mut UndelayedHost| {
                            if known.paused_at.is_none_or(|paused_at| paused_at < begin) {
                                known.granted = Some((begin, token));
                            }
                        };
                        self.update_undelayed(host, grant);
                    }
                    return Ok(token);
                }
                PermitDecision::Wait { wait } => wait.max(MIN_WAIT),
            };
            if Instant::now() + wait > deadline {
                return Err(FetchError::Postponed(wait));
            }
            // One job waits outside its slot, so that the host's next permit is used. The others
            // return to the queue, so that jobs of other hosts can run. A job waits only a short
            // time in its slot: if there are more hosts than slots, all slots would be occupied.
            let wait_slot = self.concurrency.reserve_wait_slot(host);
            let sleep = tokio::time::sleep(wait);
            match (&wait_slot, wait <= SHORT_WAIT) {
                (Some(_), true) => outside_slot(sleep).await,
                (None, true) => sleep.await,
                (Some(_), false) if only_outside_slot(sleep).await.is_some() => {}
                (_, false) => return Err(FetchError::Postponed(wait)),
            }
        }
    }

    /// Releases a permit and records the host's pace. `outcome` is the host's response; `None`
    /// means that the fetch was dropped.
    pub(crate) async fn end(&self, permit: HostPermit, outcome: Option<RequestEnd>) {
        let response_time = match outcome {
            Some(RequestEnd::Responded { took, .. }) => Some(took),
            _ => None,
        };
        if let Some(concurrency) = permit.concurrency {
            self.concurrency.record_response(&permit.host, response_time);
            drop(concurrency);
        }
        let Delay { min_delay, shared, own, is_adaptive } = permit.delay;
        let mut delay = shared;
        let (mut pause, mut pace) = (None, None);
        if let Some(outcome) = outcome
            && (!min_delay.is_zero() || is_adaptive || self.update_refusing(&permit.host, outcome))
        {
            let max_delay = if is_adaptive { MAX_ADAPTIVE_DELAY } else { min_delay };
            let next = |stored: HostPace| {
                let before = Pace {
                    delay: Duration::from_millis(stored.pace_ms.max(0).unsigned_abs().into()),
                    refusals: stored.refusals.max(0).unsigned_abs(),
                };
                let (after, requested_pause) = before.after(outcome, Bounds { min_delay, max_delay });
                (before, after, requested_pause)
            };
            // If a fast host stays fast after this response, its stored pace is neither used nor
            // changed, and is not read.
            let skips_read = min_delay.is_zero() && self.was_fast(&permit.host) && {
                let (_, after, requested_pause) = next(HostPace::default());
                requested_pause.is_none() && is_fast(to_host_pace(after.delay, after.refusals))
            };
            // If the host's history cannot be read, a refusal is treated as the first one, and the
            // delay starts from its initial value.
            let stored_pace = match skips_read {
                true => HostPace::default(),
                false => {
                    retried("host_pace", || self.store.hosts().pace(&permit.host)).await.unwrap_or_default()
                }
            };
            let (before, after, requested_pause) = next(stored_pace);
            pause = requested_pause;
            // A crawl with its own delay does not change the pace of the host.
            let pace_delay = if is_adaptive { after.delay } else { before.delay };
            // Other collections wait for the delay that the host's responses caused, not for this
            // crawl's own delay.
            delay = if is_adaptive { after.delay } else { before.delay.max(shared).min(min_delay) };
            let new_pace = to_host_pace(pace_delay, after.refusals);
            if !skips_read && min_delay.is_zero() {
                let fast_at = (is_fast(stored_pace) && is_fast(new_pace)).then(Instant::now);
                self.update_undelayed(&permit.host, |known| known.fast_at = fast_at);
            }
            if min_delay.is_zero() && is_fast(stored_pace) && is_fast(new_pace) {
                delay = Duration::ZERO;
            } else {
                pace = Some(new_pace);
            }
        }
        let pause = pause.map(|wait| wait.min(self.config.max_delay));
        // Repeating the call only delays the host's next permit by the time between the calls.
        let ended = retried("finish_request", || {
            self.store.hosts().finish_request(&permit.host, permit.token, millis(delay), pause, pace)
        })
        .await;
        if let Err(error) = ended {
            // The permit expires by itself. Until then the host receives no requests.
            tracing::warn!(%error, "failed to record the end of a request");
        }
        if pause.is_some() {
            let paused = UndelayedHost { paused_at: Some(Instant::now()), ..UndelayedHost::default() };
            self.update_undelayed(&permit.host, |known| *known = paused);
        }
        let Some(own) = own else { return };
        let ended = retried("finish_collection_request", || {
            self.store.hosts().finish_collection_request(&permit.host, own)
        })
        .await;
        if let Err(error) = ended {
            tracing::warn!(%error, "failed to record the end of a collection's request");
        }
    }

    /// Returns the token of a permit without a delay that was granted less than [`PERMIT_TTL`] ago.
    /// Permits without a delay are interchangeable, so the token can be reused.
    fn recent_token(&self, host: &str) -> Option<i64> {
        let hosts = self.undelayed_hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let (granted_at, token) = hosts.get(host)?.granted?;
        (granted_at.elapsed() < PERMIT_TTL).then_some(token)
    }

    /// Returns `true` if the host was fast when its pace was last read, at most a second ago. While
    /// it stays fast, its pace is neither used nor changed, so it need not be read again.
    fn was_fast(&self, host: &str) -> bool {
        let hosts = self.undelayed_hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let read_at = hosts.get(host).and_then(|memory| memory.fast_at);
        read_at.is_some_and(|read_at| read_at.elapsed() < PACE_TTL)
    }

    fn update_undelayed(&self, host: &str, change: impl FnOnce(&mut UndelayedHost)) {
        let mut hosts = self.undelayed_hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() >= MAX_HOSTS {
            // The entries are only a cache, so all of them can be removed.
            hosts.clear();
        }
        change(hosts.entry(host.to_owned()).or_default());
    }

    /// Updates the set of refusing hosts. Returns `true` if the host refused this request or an
    /// earlier one.
    fn update_refusing(&self, host: &str, outcome: RequestEnd) -> bool {
        let mut refusing = self.refusing_hosts.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            RequestEnd::Responded { status: 429 | 503, .. } => {
                if refusing.len() < MAX_REFUSING_HOSTS {
                    refusing.insert(host.to_owned());
                }
                true
            }
            RequestEnd::Responded { status: 200..=399, .. } => refusing.remove(host),
            _ => false,
        }
    }

    fn database_error(&self, error: &store::StoreError) -> FetchError {
        tracing::error!(%error, "failed to acquire host permit");
        FetchError::Postponed(DATABASE_PAUSE)
    }
}

fn to_host_pace(delay: Duration, refusals: u32) -> HostPace {
    HostPace {
        pace_ms: i32::try_from(delay.as_millis()).unwrap_or(i32::MAX),
        refusals: i32::try_from(refusals).unwrap_or(i32::MAX),
    }
}

fn is_fast(pace: HostPace) -> bool {
    pace.refusals == 0 && pace.pace_ms <= NEGLIGIBLE_PACE_MS
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

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
    has_waiter: bool,
    retries: RetryTimes,
}

impl HostConcurrency {
    /// Admits a request until the result is dropped, or returns the wait before the next attempt.
    pub(crate) fn acquire(self: &Arc<Self>, host: &str) -> Result<ConcurrencyPermit, Duration> {
        self.update(host, |state| {
            if state.in_flight < state.allowed {
                state.in_flight += 1;
                return Ok(ConcurrencyPermit { hosts: Arc::clone(self), host: host.to_owned() });
            }
            Err(state.retries.next())
        })
    }

    /// Adapts the limit. `response_time` is `None` if there was no response.
    pub(crate) fn record_response(&self, host: &str, response_time: Option<Duration>) {
        self.update(host, |state| {
            state.allowed = match response_time {
                Some(time) if time < FAST_RESPONSE => state.allowed.saturating_add(1),
                _ => (state.allowed / 2).max(MIN_CONCURRENCY),
            };
        });
    }

    /// Reserves the only slot for a job that waits for the host's next permit. Returns `None` if
    /// it is occupied. Dropping the slot releases it.
    pub(crate) fn reserve_wait_slot<'a>(&'a self, host: &'a str) -> Option<WaitSlot<'a>> {
        let is_free = self.update(host, |state| !std::mem::replace(&mut state.has_waiter, true));
        is_free.then_some(WaitSlot { hosts: self, host })
    }

    fn update<T>(&self, host: &str, change: impl FnOnce(&mut HostState) -> T) -> T {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() >= MAX_HOSTS && !hosts.contains_key(host) {
            hosts.retain(|_, state| state.in_flight > 0 || state.has_waiter);
        }
        let new = || HostState {
            in_flight: 0,
            allowed: MIN_CONCURRENCY,
            has_waiter: false,
            retries: RetryTimes::new(RETRY_INTERVAL, MAX_RETRY_WAIT),
        };
        change(hosts.entry(host.to_owned()).or_insert_with(new))
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
        self.hosts.update(&self.host, |state| state.in_flight = state.in_flight.saturating_sub(1));
    }
}

pub(crate) struct WaitSlot<'a> {
    hosts: &'a HostConcurrency,
    host: &'a str,
}

impl Drop for WaitSlot<'_> {
    fn drop(&mut self) {
        self.hosts.update(self.host, |state| state.has_waiter = false);
    }
}

/// Holds the host permit of a fetch. The permit is always released when the fetch ends. A separate
/// task releases it, even if the fetch is dropped.
pub(crate) struct PermitGuard {
    throttle: Arc<HostThrottle>,
    permit: Mutex<Option<HostPermit>>,
}

impl PermitGuard {
    pub(crate) fn new(throttle: Arc<HostThrottle>) -> Self {
        Self { throttle, permit: Mutex::new(None) }
    }

    pub(crate) async fn acquire(&self, url: &Url, delay: Delay) -> Result<(), FetchError> {
        let permit = self.throttle.acquire(&urls::host_key(url), delay).await?;
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
        Ok(())
    }

    /// Releases the permit and waits until the release is recorded.
    pub(crate) async fn end(&self, status: Option<u16>, retry_after: Option<Duration>, took: Duration) {
        let outcome =
            status.map_or(RequestEnd::Failed, |status| RequestEnd::Responded { status, retry_after, took });
        if let Some(task) = self.spawn_release(Some(outcome)) {
            let _ = task.await;
        }
    }

    /// Releases the permit without waiting, for a dropped fetch, whose response is unknown.
    pub(crate) fn abandon(&self) {
        drop(self.spawn_release(None));
    }

    fn spawn_release(&self, outcome: Option<RequestEnd>) -> Option<tokio::task::JoinHandle<()>> {
        let permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        // Without a runtime, the process is ending. The permit then expires.
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let throttle = self.throttle.clone();
        Some(runtime.spawn(async move { throttle.end(permit, outcome).await }))
    }
}

/// The policy of a fetch for which only the delay of each host applies: for a robots.txt, a video
/// at an address from a caller, and the files of its playlist. Without the delay, a caller or a
/// playlist could make the service send many requests to another host.
pub(crate) struct ThrottledPolicy<'a> {
    throttle: &'a HostThrottle,
    own_delay: Option<RequestedDelay>,
    permit_guard: PermitGuard,
}

impl<'a> ThrottledPolicy<'a> {
    pub(crate) fn new(throttle: &'a Arc<HostThrottle>, own_delay: Option<RequestedDelay>) -> Self {
        Self { throttle, own_delay, permit_guard: PermitGuard::new(throttle.clone()) }
    }
}

#[async_trait::async_trait]
impl HopPolicy for ThrottledPolicy<'_> {
    async fn admit(&self, url: &Url) -> Result<(), FetchError> {
        self.permit_guard.acquire(url, self.throttle.delay(self.own_delay, None)).await
    }

    async fn finished(&self, _url: &Url, status: Option<u16>, retry_after: Option<Duration>, took: Duration) {
        self.permit_guard.end(status, retry_after, took).await;
    }

    fn abandoned(&self, _url: &Url) {
        self.permit_guard.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquire_all(hosts: &Arc<HostConcurrency>, host: &str) -> Vec<ConcurrencyPermit> {
        (0..100).map_while(|_| hosts.acquire(host).ok()).collect()
    }

    #[test]
    fn host_concurrency_adapts_to_response_time() {
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
    fn spreads_retry_waits_for_full_host() {
        let hosts = Arc::new(HostConcurrency::default());
        let _held = acquire_all(&hosts, "a");
        let waits: Vec<Duration> = (0..500).map(|_| hosts.acquire("a").expect_err("full")).collect();
        assert!(waits.iter().all(|wait| *wait <= MAX_RETRY_WAIT));
        assert!(waits[99] > RETRY_INTERVAL * 50, "{waits:?}");
    }

    #[test]
    fn allows_one_waiter_per_host() {
        let hosts = HostConcurrency::default();
        let slot = hosts.reserve_wait_slot("a");
        assert!(
            slot.is_some()
                && hosts.reserve_wait_slot("a").is_none()
                && hosts.reserve_wait_slot("b").is_some()
        );
        drop(slot);
        assert!(hosts.reserve_wait_slot("a").is_some());
    }
}
