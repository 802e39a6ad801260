//! Shared code of the handlers of crawl jobs: services, the view of a crawl, fetches under its
//! rules (scope, robots.txt, host permit), and the end of a job.
//!
//! The running jobs of each crawl in this process are counted, so that only the last of them checks
//! with a query whether the crawl has ended. While another job runs here, its row is still queued,
//! or that job checks when it ends.
use crate::crawls::closing;
use crate::crawls::job_error::JobError;
use crate::crawls::politeness::host_throttle::{HostThrottle, PermitGuard, RequestedDelay};
use crate::crawls::politeness::robots::RobotsCache;
use crate::domain::jobs::PageJob;
use crate::domain::{ChangeError, Row, RowEnd, check_live, count_outcome, profile_of};
use crate::{CrawlOptions, Crawls, FaceStore, crawls};
use crawler::fetch::Download;
use crawler::{FetchError, Fetched, Fetcher, HopPolicy, Request, Scope, SeedIndex, Validators, urls};
use domain::{CrawlState, Reason, Unprocessed};
use queue::{ClaimedJob, Queue, QueueError, RunEnd};
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::crawls::Crawl;
use store::crawls::http_cache::CachedResponse;
use store::{Store, StoreError, retried};
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;
use vision::Profile;

/// Time for which the row of a crawl is cached, unless it is paused. A pause or a cancellation
/// reaches running jobs after at most this time. The options never change. Regardless of the cache,
/// the claims of a cancelled crawl are lost and the jobs of a paused crawl are held.
const CRAWL_TTL: Duration = Duration::from_millis(500);

pub(crate) struct Context {
    pub(crate) store: Store,
    pub(crate) queue: Queue,
    pub(crate) faces: FaceStore,
    pub(crate) fetcher: Fetcher,
    pub(crate) config: crawls::Config,
    pub(crate) throttle: Arc<HostThrottle>,
    pub(crate) robots: RobotsCache,
    crawls: Mutex<HashMap<Uuid, (Instant, Arc<CrawlView>)>>,
    live_jobs: LiveJobs,
}

pub(crate) struct CrawlView {
    pub(crate) crawl: Crawl,
    pub(crate) options: CrawlOptions,
    seeds: SeedIndex,
    /// The collection's own quality profile, if it is set.
    pub(crate) quality_profile: Option<Profile>,
}

impl CrawlView {
    pub(crate) fn own_delay(&self) -> Option<RequestedDelay> {
        let delay = self.options.delay_ms.map(Duration::from_millis)?;
        Some(RequestedDelay { collection: self.crawl.collection_id, delay })
    }
}

impl Context {
    pub(crate) fn new(
        store: Store,
        queue: Queue,
        crawls: &Crawls,
        faces: FaceStore,
        fetcher: Fetcher,
    ) -> Self {
        let config = crawls.config().clone();
        let throttle = Arc::new(HostThrottle::new(store.clone(), config.clone()));
        let robots = RobotsCache::new(store.clone(), fetcher.clone(), throttle.clone(), config.clone());
        Self {
            store,
            queue,
            faces,
            fetcher,
            config,
            throttle,
            robots,
            crawls: Mutex::default(),
            live_jobs: LiveJobs::default(),
        }
    }

    /// Runs the work of a job and ends the job, so that the row and the job always end together.
    /// Ends the crawl if this was its last row.
    pub(crate) async fn run_and_end(
        &self,
        job: &ClaimedJob,
        crawl: Uuid,
        row: Row,
        cancel: CancellationToken,
        work: impl Future<Output = Result<(), JobError>>,
    ) -> RunEnd {
        let live = self.live_jobs.begin(crawl);
        let outcome = self.run(job, crawl, row, &cancel, work).await;
        // The row of a stale or cancelled job may have been settled by a commit whose response was
        // lost.
        let settled = matches!(outcome, RunEnd::Settled | RunEnd::Stale) || cancel.is_cancelled();
        if live.end(settled) {
            closing::end_if_done(&self.store, &self.queue, crawl).await;
        }
        outcome
    }

    async fn run(
        &self,
        job: &ClaimedJob,
        crawl: Uuid,
        row: Row,
        cancel: &CancellationToken,
        work: impl Future<Output = Result<(), JobError>>,
    ) -> RunEnd {
        let error = tokio::select! {
            done = work => match done {
                Ok(()) => return RunEnd::Settled,
                Err(error) => error,
            },
            // The crawl has been cancelled, so no result would be stored.
            () = self.until_cancelled(crawl) => return RunEnd::Stale,
            // The claim is lost or will be released. Snoozing a lost claim is a no-op.
            () = cancel.cancelled() => return RunEnd::Snooze(Duration::ZERO),
        };
        match self.handle_error(job, crawl, row, error).await {
            Ok(outcome) => outcome,
            Err(QueueError::Stale(_)) => RunEnd::Stale,
            Err(error) => RunEnd::Retry(error.to_string(), None),
        }
    }

    async fn handle_error(
        &self,
        job: &ClaimedJob,
        crawl: Uuid,
        row: Row,
        error: JobError,
    ) -> Result<RunEnd, QueueError> {
        tracing::debug!(job = %job.claim.id, attempt = job.attempt, ledger = row.name(), ?error, "job error");
        match error {
            JobError::Stale => Ok(RunEnd::Stale),
            JobError::CrawlEnded => Ok(RunEnd::Done),
            JobError::Snooze(wait) => Ok(RunEnd::Snooze(wait)),
            JobError::Retry { reason, detail, wait } if job.attempt < job.max_attempts => {
                metrics::counter!("facecrawl_crawl_retries_total", "reason" => reason.code()).increment(1);
                Ok(RunEnd::Retry(format!("{reason}: {detail}"), wait))
            }
            JobError::Retry { reason, detail, .. } => {
                let end =
                    RowEnd { state: Unprocessed::Failed, reason: &reason, detail: &detail, status: None };
                self.settle(job, crawl, row, end, true).await
            }
            JobError::Final { state, reason, detail, status } => {
                let end = RowEnd { state, reason: &reason, detail: &detail, status };
                self.settle(job, crawl, row, end, false).await
            }
        }
    }

    /// Settles the row and ends the job in one transaction. If `discard` is `true`, the job is kept
    /// as discarded, so that it can be inspected and retried.
    async fn settle(
        &self,
        job: &ClaimedJob,
        crawl: Uuid,
        row: Row,
        end: RowEnd<'_>,
        discard: bool,
    ) -> Result<RunEnd, QueueError> {
        let RowEnd { reason, detail, .. } = end;
        let ended: Result<(), ChangeError> = retried("settle_row", || async {
            let mut tx = self.store.begin().await?;
            if discard {
                self.queue.fail(tx.conn(), job.claim, &format!("{reason}: {detail}"), true, None).await?;
            } else {
                self.queue.complete(tx.conn(), job.claim).await?;
            }
            check_live(&self.store, &mut tx, crawl, job.claim).await?;
            row.settle(&self.store, &mut tx, end).await?;
            Ok(tx.commit().await?)
        })
        .await;
        match ended {
            Ok(()) => {
                count_outcome(row.name(), end.state.as_str(), Some(end.reason));
                Ok(RunEnd::Settled)
            }
            Err(ChangeError::Queue(error)) => Err(error),
            Err(ChangeError::Store(error)) => Ok(RunEnd::Retry(error.to_string(), None)),
        }
    }

    /// Returns the crawl of a job if the job may run now.
    pub(crate) async fn running_crawl(&self, id: Uuid) -> Result<Arc<CrawlView>, JobError> {
        let view = self.view(id).await?;
        match view.crawl.state {
            CrawlState::Running => {
                // Otherwise the file would be fetched and then dropped.
                self.faces.blobs.check_space()?;
                Ok(view)
            }
            // The group is held, so the job runs again after the crawl is resumed.
            CrawlState::Paused => Err(JobError::Snooze(CRAWL_TTL)),
            _ => Err(JobError::CrawlEnded),
        }
    }

    /// Waits until the crawl has been cancelled or deleted. Ignores failures of the database.
    async fn until_cancelled(&self, id: Uuid) {
        loop {
            tokio::time::sleep(CRAWL_TTL).await;
            match self.view(id).await {
                Ok(view) if view.crawl.state == CrawlState::Cancelled => return,
                Err(JobError::CrawlEnded) => return,
                _ => {}
            }
        }
    }

    async fn view(&self, id: Uuid) -> Result<Arc<CrawlView>, JobError> {
        if let Some((read_at, view)) = self.cached().get(&id)
            && read_at.elapsed() < CRAWL_TTL
            // If a resumed crawl still seemed paused, its videos would wait longer.
            && view.crawl.state != CrawlState::Paused
        {
            return Ok(view.clone());
        }
        let crawl = match retried("crawl", || self.store.crawls().get(id)).await {
            Err(StoreError::NotFound { .. }) => return Err(JobError::CrawlEnded),
            crawl => crawl?,
        };
        let collection = match self.store.collections().by_id(crawl.collection_id).await {
            // The collection was deleted, so no result of the crawl can be stored.
            Err(StoreError::NotFound { .. }) => return Err(JobError::CrawlEnded),
            collection => collection?,
        };
        let options: CrawlOptions = serde_json::from_value(crawl.options.clone())
            .map_err(|error| JobError::failed(Reason::BadOptions, error))?;
        let seeds = crawl.seeds.iter().filter_map(|seed| Url::parse(seed).ok());
        let view = Arc::new(CrawlView {
            seeds: SeedIndex::new(options.scope, seeds),
            options,
            quality_profile: profile_of(&collection),
            crawl,
        });
        let mut cached = self.cached();
        cached.retain(|_, (read_at, _)| read_at.elapsed() < CRAWL_TTL);
        cached.insert(id, (Instant::now(), view.clone()));
        Ok(view)
    }

    fn cached(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, (Instant, Arc<CrawlView>)>> {
        self.crawls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
pub(crate) struct LiveJobs(Mutex<HashMap<Uuid, Jobs>>);

#[derive(Default)]
struct Jobs {
    running: usize,
    /// Whether a job settled a row since the last check.
    settled: bool,
}

/// A running job. If it is dropped before [`Self::end`], for example at a shutdown, another job or
/// `Crawls::reconcile` ends the crawl.
pub(crate) struct LiveJob<'a> {
    jobs: &'a LiveJobs,
    crawl: Uuid,
    has_ended: bool,
}

impl LiveJobs {
    /// Counts a job of the crawl as running, until [`LiveJob::end`] is called or it is dropped.
    pub(crate) fn begin(&self, crawl: Uuid) -> LiveJob<'_> {
        self.lock().entry(crawl).or_default().running += 1;
        LiveJob { jobs: self, crawl, has_ended: false }
    }

    /// Removes a job. Returns `true` if it was the last one and a row was settled since the last
    /// check.
    fn remove(&self, crawl: Uuid, settled: bool) -> bool {
        let mut crawls = self.lock();
        let Some(jobs) = crawls.get_mut(&crawl) else { return settled };
        jobs.running -= 1;
        jobs.settled |= settled;
        if jobs.running > 0 {
            return false;
        }
        crawls.remove(&crawl).is_some_and(|jobs| jobs.settled)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Jobs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveJob<'_> {
    /// Ends the job. `settled` means that it settled its row, or may have settled it. Returns
    /// whether the caller must check if the crawl has ended: no other job of the crawl runs in this
    /// process, and a row was settled since the last check.
    pub(crate) fn end(mut self, settled: bool) -> bool {
        self.has_ended = true;
        self.jobs.remove(self.crawl, settled)
    }
}

impl Drop for LiveJob<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.jobs.remove(self.crawl, false);
        }
    }
}

pub(crate) const NOT_MODIFIED: u16 = 304;

/// Returns the validators of a visit, or `None` if its URL cannot be parsed.
pub(crate) fn validators(visit: &CachedResponse) -> Option<Validators> {
    let url = Url::parse(&visit.final_url).ok()?;
    Some(Validators { url, etag: visit.etag.clone(), last_modified: visit.last_modified.clone() })
}

/// Returns the visit to store for a response, or `None` if the response has no validators.
pub(crate) fn visit_of(fetched: &Fetched) -> Option<CachedResponse> {
    let validators = fetched.validators()?;
    Some(CachedResponse {
        final_url: validators.url.into(),
        etag: validators.etag,
        last_modified: validators.last_modified,
        bytes: i64::try_from(fetched.body.len()).unwrap_or(i64::MAX),
    })
}

/// Increments `facecrawl_crawl_not_modified_total{ledger}` and
/// `facecrawl_crawl_bytes_saved_total{ledger}`.
pub(crate) fn count_saved(ledger: &'static str, bytes: i64) {
    metrics::counter!("facecrawl_crawl_not_modified_total", "ledger" => ledger).increment(1);
    metrics::counter!("facecrawl_crawl_bytes_saved_total", "ledger" => ledger)
        .increment(bytes.max(0).unsigned_abs());
}

/// First attempt of a job that accepts an incomplete body. A connection can break by chance, but
/// the bodies of a server with a wrong `Content-Length` are always incomplete.
const INCOMPLETE_ATTEMPT: i16 = 2;

pub(crate) fn accepts_incomplete(attempt: i16, max_attempts: i16) -> bool {
    attempt >= INCOMPLETE_ATTEMPT.min(max_attempts)
}

pub(crate) fn accept_incomplete(
    fetched: Result<Fetched, FetchError>,
    accepts_incomplete: bool,
) -> Result<Fetched, FetchError> {
    match fetched {
        Err(FetchError::Incomplete { received: Some(received), .. }) if accepts_incomplete => Ok(*received),
        fetched => fetched,
    }
}

/// The URLs that a fetch may visit.
pub(crate) enum Area<'a> {
    /// URLs inside the crawl's scope, for a page.
    Page(&'a PageJob),
    /// Any URL, for an image or a video.
    Anywhere,
}

pub(crate) struct FetchPolicy<'a> {
    context: &'a Context,
    view: &'a CrawlView,
    area: Area<'a>,
    permit_guard: PermitGuard,
}

impl<'a> FetchPolicy<'a> {
    pub(crate) fn new(context: &'a Context, view: &'a CrawlView, area: Area<'a>) -> Self {
        Self { context, view, area, permit_guard: PermitGuard::new(context.throttle.clone()) }
    }

    pub(crate) async fn fetch(&self, request: Request) -> Result<Fetched, FetchError> {
        self.context.fetcher.fetch(request, self).await
    }

    pub(crate) async fn download(&self, request: Request) -> Result<Download, FetchError> {
        self.context.fetcher.download(request, self).await
    }

    fn in_area(&self, url: &Url) -> bool {
        match &self.area {
            Area::Anywhere => true,
            Area::Page(page) => {
                in_scope(self.view, page.redirected_seed.as_ref(), url)
                    // A seed may redirect to https or to "www.", but not to another site.
                    || (page.depth == 0 && Scope::Domain.contains(std::slice::from_ref(&page.url), &[], url))
            }
        }
    }
}

/// Returns `true` if a page belongs to the crawl. `redirected_seed` is the URL to which its seed
/// redirected.
pub(crate) fn in_scope(view: &CrawlView, redirected_seed: Option<&Url>, url: &Url) -> bool {
    let (scope, allow) = (view.options.scope, &view.options.allow);
    view.seeds.contains(allow, url)
        || redirected_seed
            .is_some_and(|redirected_seed| scope.contains(std::slice::from_ref(redirected_seed), allow, url))
}

#[async_trait::async_trait]
impl HopPolicy for FetchPolicy<'_> {
    async fn admit(&self, url: &Url) -> Result<(), FetchError> {
        if !self.in_area(url) {
            return Err(FetchError::Refused(Reason::OutOfScope));
        }
        if let Area::Page(page) = &self.area
            && *url != page.url
            && url.as_str().len() > urls::MAX_LENGTH
        {
            // The limit for links also applies to redirects, because the page's address is stored
            // with each of its images.
            return Err(FetchError::Refused(Reason::UrlTooLong));
        }
        let mut robots_delay = None;
        if self.view.options.respect_robots {
            let robots = self.context.robots.rules(url, self.view.own_delay()).await?;
            if !robots.allows(url) {
                return Err(FetchError::Refused(Reason::RobotsDisallowed));
            }
            robots_delay = robots.crawl_delay();
        }
        let delay = self.context.throttle.delay(self.view.own_delay(), robots_delay);
        self.permit_guard.acquire(url, delay).await
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

    #[test]
    fn last_job_checks_completion_if_row_was_settled() {
        let (jobs, crawl) = (LiveJobs::default(), Uuid::now_v7());
        let (first, second, other) = (jobs.begin(crawl), jobs.begin(crawl), jobs.begin(Uuid::now_v7()));
        assert!(!first.end(true), "another job of the crawl is running");
        assert!(second.end(false), "the last job must check for the row that the first job settled");
        assert!(!other.end(false), "nothing was settled");
        assert!(jobs.lock().is_empty());
    }

    #[test]
    fn dropped_job_does_not_block_completion_check() {
        let (jobs, crawl) = (LiveJobs::default(), Uuid::now_v7());
        let (dropped, last) = (jobs.begin(crawl), jobs.begin(crawl));
        drop(dropped);
        assert!(last.end(true));
    }

    #[test]
    fn accepts_incomplete_body_from_second_attempt() {
        let accepting: Vec<i16> = (1..=5).filter(|attempt| accepts_incomplete(*attempt, 5)).collect();
        assert_eq!(accepting, [2, 3, 4, 5]);
        assert!(accepts_incomplete(1, 1), "the only attempt");
        let broken = || Err(FetchError::Incomplete { why: "x".into(), received: None });
        assert!(accept_incomplete(broken(), true).is_err(), "no part of the body was received");
    }
}
