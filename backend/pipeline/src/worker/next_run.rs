//! `start_crawl`: the next run of a crawl that starts again, at its time.

use crate::Crawls;
use crate::domain::CrawlError;
use crate::domain::jobs::{self, NextRun};
use queue::{ClaimedJob, Handler, Outcome, QueueError};
use store::StoreError;
use tokio_util::sync::CancellationToken;

/// The handler.
pub(super) struct StartCrawl(pub(super) Crawls);

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
                    tracing::info!(crawl = %crawl.id, series = ?crawl.series_id, "the next run of a crawl begins");
                }
                Outcome::Settled
            }
            Err(CrawlError::Queue(QueueError::Stale(_))) => Outcome::Stale,
            // Deleted between the promise and the look: there is nothing to run.
            Err(CrawlError::Store(StoreError::NotFound { .. })) => Outcome::Done,
            Err(error @ CrawlError::Store(StoreError::Invalid(_))) => Outcome::Discard(error.to_string()),
            Err(error) => Outcome::Retry(error.to_string(), None),
        }
    }
}
