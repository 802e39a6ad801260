//! Code common to the handlers of `scan_page` and `scan_image`, including the end of their jobs.
//! Fetching and storing are in their own modules.

use super::job_error::JobError;
use super::live_jobs::LiveJobs;
use super::sitemap_permits::SitemapPermits;
use crate::crawls::closing;
use crate::crawls::politeness::host_throttle::{HostThrottle, RequestedDelay};
use crate::crawls::politeness::robots::RobotsCache;
use crate::domain::ChangeError;
use crate::domain::{Row, RowEnd};
use crate::images::ingest::outcome::count_outcome;
use crate::{CrawlOptions, Crawls, Ingest, crawls, profile_of};
use crawler::Fetcher;
use domain::{CrawlState, Reason, Unprocessed};
use queue::{ClaimedJob, Outcome, Queue, QueueError};
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::crawls::Crawl;
use store::{Store, StoreError, retried};
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;
use vision::Profile;

/// How long the row of a crawl is cached, unless it is paused. A pause or a cancellation reaches
/// running jobs at most this much later. The options never change. Regardless of the cache, the
/// claims of a cancelled crawl are lost and the jobs of a paused crawl are held.
const CRAWL_TTL: Duration = Duration::from_millis(500);

pub(crate) struct Context {
    pub(crate) store: Store,
    pub(crate) queue: Queue,
    pub(crate) ingest: Ingest,
    pub(crate) fetcher: Fetcher,
    pub(crate) config: crawls::Config,
    pub(crate) throttle: Arc<HostThrottle>,
    pub(crate) robots: RobotsCache,
    pub(crate) sitemap_permits: SitemapPermits,
    crawls: Mutex<HashMap<Uuid, (Instant, Arc<CrawlView>)>>,
    live_jobs: LiveJobs,
}

/// The data of a crawl that its jobs need.
pub(crate) struct CrawlView {
    pub(crate) crawl: Crawl,
    pub(crate) options: CrawlOptions,
    pub(crate) seeds: Vec<Url>,
    /// The collection's own quality profile, if it is set.
    pub(crate) quality_profile: Option<Profile>,
}

impl CrawlView {
    /// Returns the delay set in the crawl's own options.
    pub(crate) fn own_delay(&self) -> Option<RequestedDelay> {
        let delay = self.options.delay_ms.map(Duration::from_millis)?;
        Some(RequestedDelay { collection: self.crawl.collection_id, delay })
    }
}

impl Context {
    pub(crate) fn new(store: Store, queue: Queue, crawls: &Crawls, ingest: Ingest, fetcher: Fetcher) -> Self {
        let config = crawls.config().clone();
        let throttle = Arc::new(HostThrottle::new(store.clone(), config.clone()));
        let robots = RobotsCache::new(store.clone(), fetcher.clone(), throttle.clone(), config.clone());
        Self {
            store,
            queue,
            ingest,
            fetcher,
            config,
            throttle,
            robots,
            sitemap_permits: SitemapPermits::default(),
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
    ) -> Outcome {
        let live = self.live_jobs.begin(crawl);
        let outcome = self.run(job, crawl, row, &cancel, work).await;
        // The row of a stale claim may be settled too, by a commit without a response or before the
        // work was dropped.
        let settled = matches!(outcome, Outcome::Settled | Outcome::Stale) || cancel.is_cancelled();
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
    ) -> Outcome {
        let error = tokio::select! {
            done = work => match done {
                Ok(()) => return Outcome::Settled,
                Err(error) => error,
            },
            // The crawl has been cancelled, so no result would be stored.
            () = self.until_cancelled(crawl) => return Outcome::Stale,
            // The claim is lost or will be released. Snoozing a lost claim is a no-op.
            () = cancel.cancelled() => return Outcome::Snooze(Duration::ZERO),
        };
        match self.handle_error(job, crawl, row, error).await {
            Ok(outcome) => outcome,
            Err(QueueError::Stale(_)) => Outcome::Stale,
            Err(error) => Outcome::Retry(error.to_string(), None),
        }
    }

    async fn handle_error(
        &self,
        job: &ClaimedJob,
        crawl: Uuid,
        row: Row,
        error: JobError,
    ) -> Result<Outcome, QueueError> {
        tracing::debug!(job = %job.claim.id, attempt = job.attempt, ledger = row.name(), ?error, "job error");
        match error {
            JobError::Stale => Ok(Outcome::Stale),
            JobError::Gone => Ok(Outcome::Done),
            JobError::Later(wait) => Ok(Outcome::Snooze(wait)),
            JobError::Retry { reason, detail, wait } if job.attempt < job.max_attempts => {
                metrics::counter!("facecrawl_crawl_retries_total", "reason" => reason.code()).increment(1);
                Ok(Outcome::Retry(format!("{reason}: {detail}"), wait))
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

    /// Settles the row and ends the job in one transaction. If `spent` is `true`, the job has no
    /// attempts left. It is kept as discarded, so that it can be inspected and retried.
    async fn settle(
        &self,
        job: &ClaimedJob,
        crawl: Uuid,
        row: Row,
        end: RowEnd<'_>,
        spent: bool,
    ) -> Result<Outcome, QueueError> {
        let RowEnd { reason, detail, .. } = end;
        let ended: Result<(), ChangeError> = retried("settle_row", || async {
            let mut tx = self.store.begin().await?;
            if spent {
                self.queue.fail(tx.conn(), job.claim, &format!("{reason}: {detail}"), true, None).await?;
            } else {
                self.queue.complete(tx.conn(), job.claim).await?;
            }
            closing::check_live(&self.store, &mut tx, crawl, job.claim).await?;
            row.settle(&self.store, &mut tx, end).await?;
            Ok(tx.commit().await?)
        })
        .await;
        match ended {
            Ok(()) => {
                count_outcome(row.name(), end.state.as_str(), Some(end.reason));
                Ok(Outcome::Settled)
            }
            Err(ChangeError::Queue(error)) => Err(error),
            Err(ChangeError::Store(error)) => Ok(Outcome::Retry(error.to_string(), None)),
        }
    }

    /// Returns the crawl of a job if the job may run now.
    pub(crate) async fn running(&self, id: Uuid) -> Result<Arc<CrawlView>, JobError> {
        let view = self.view(id).await?;
        match view.crawl.state {
            CrawlState::Running => {
                // Otherwise the file would be fetched and then dropped.
                self.ingest.blobs().check_space()?;
                Ok(view)
            }
            // The group is held, so the job runs again after the crawl is resumed.
            CrawlState::Paused => Err(JobError::Later(CRAWL_TTL)),
            _ => Err(JobError::Gone),
        }
    }

    /// Waits until the crawl has been cancelled or deleted. Ignores failures of the database.
    async fn until_cancelled(&self, id: Uuid) {
        loop {
            tokio::time::sleep(CRAWL_TTL).await;
            match self.view(id).await {
                Ok(view) if view.crawl.state == CrawlState::Cancelled => return,
                Err(JobError::Gone) => return,
                _ => {}
            }
        }
    }

    async fn view(&self, id: Uuid) -> Result<Arc<CrawlView>, JobError> {
        if let Some((read, view)) = self.cached().get(&id)
            && read.elapsed() < CRAWL_TTL
            // The cached state may be outdated: if a resumed crawl still seemed paused, its videos
            // would wait longer.
            && view.crawl.state != CrawlState::Paused
        {
            return Ok(view.clone());
        }
        let crawl = match retried("crawl", || self.store.crawl(id)).await {
            Err(StoreError::NotFound { .. }) => return Err(JobError::Gone),
            crawl => crawl?,
        };
        let collection = match self.store.collection_by_id(crawl.collection_id).await {
            // The collection was deleted, so no result of the crawl can be stored.
            Err(StoreError::NotFound { .. }) => return Err(JobError::Gone),
            collection => collection?,
        };
        let view = Arc::new(CrawlView {
            options: serde_json::from_value(crawl.options.clone())
                .map_err(|error| JobError::failed(Reason::BadOptions, error))?,
            seeds: crawl.seeds.iter().filter_map(|seed| Url::parse(seed).ok()).collect(),
            quality_profile: profile_of(&collection),
            crawl,
        });
        let mut cached = self.cached();
        cached.retain(|_, (read, _)| read.elapsed() < CRAWL_TTL);
        cached.insert(id, (Instant::now(), view.clone()));
        Ok(view)
    }

    fn cached(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, (Instant, Arc<CrawlView>)>> {
        self.crawls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
