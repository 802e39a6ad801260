//! Handles `start_crawl`: starts the next run of a recurring crawl at its time. The transaction is
//! in `crawl::runs`.

use crate::Crawls;
use crate::domain::CrawlError;
use crate::domain::jobs::{self, NextRun};
use queue::{ClaimedJob, Handler, Outcome, QueueError};
use store::StoreError;
use tokio_util::sync::CancellationToken;

pub(crate) struct StartCrawl(pub(crate) Crawls);

#[async_trait::async_trait]
impl Handler for StartCrawl {
    async fn run(&self, job: ClaimedJob, _cancel: CancellationToken) -> Outcome {
        let run: NextRun = match jobs::read(&job.payload) {
            Ok(run) => run,
            Err(error) => return Outcome::Discard(error),
        };
        match self.0.start_next(run.crawl_id, job.claim).await {
            Ok(started) => {
                if let Some(crawl) = started {
                    tracing::info!(crawl = %crawl.id, series = ?crawl.series_id, "started the next run of a crawl");
                }
                Outcome::Settled
            }
            Err(CrawlError::Queue(QueueError::Stale(_))) => Outcome::Stale,
            // The crawl was deleted after its next run was scheduled.
            Err(CrawlError::Store(StoreError::NotFound { .. })) => Outcome::Done,
            Err(error @ CrawlError::Store(StoreError::Invalid(_))) => Outcome::Discard(error.to_string()),
            Err(error) => Outcome::Retry(error.to_string(), None),
        }
    }
}
