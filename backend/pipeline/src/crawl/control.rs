//! Pause, resume, cancel.

use super::{CrawlError, Crawls, news};
use store::StoreError;
use store::crawls::Crawl;
use uuid::Uuid;

/// States of a crawl that has not ended.
const LIVE: [&str; 2] = ["running", "paused"];
/// Times that a series is looked at again because it went on between two looks.
const LOOKS: usize = 5;

impl Crawls {
    /// Holds its jobs: nothing new is started until [`Self::resume`]; what is being fetched ends.
    ///
    /// # Errors
    /// `StoreError::Conflict` names the state when the crawl is not running.
    pub async fn pause(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        let mut tx = self.store().begin().await?;
        self.queue().hold_group(tx.conn(), id).await?;
        let crawl = self.store().set_crawl_state(tx.conn(), id, &["running"], "paused", None).await?;
        if crawl.kind != "web" {
            let reason = "a scan of local files runs with its command and cannot be paused";
            return Err(StoreError::Conflict(reason.into()).into());
        }
        tx.commit().await?;
        Ok(crawl)
    }

    /// Lets them run again.
    ///
    /// # Errors
    /// `StoreError::Conflict` names the state when the crawl is not paused.
    pub async fn resume(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        let mut tx = self.store().begin().await?;
        self.queue().release_group(tx.conn(), id).await?;
        let crawl = self.store().set_crawl_state(tx.conn(), id, &["paused"], "running", None).await?;
        tx.commit().await?;
        Ok(crawl)
    }

    /// Ends it; what is still queued is skipped with the reason `cancelled`, and what is being fetched is not stored. Of a crawl that starts
    /// again, whichever of its runs is named: the run under way ends, and there will be no next one.
    ///
    /// # Errors
    /// `StoreError::Conflict` names the state when the crawl has ended, and with it its series.
    pub async fn cancel(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        let crawl = self.store().crawl(id).await?;
        let Some(series) = crawl.series_id else { return self.cancel_run(id).await };
        // The series can go on between two looks: a run ends and promises the next, or the next begins.
        for _ in 0..LOOKS {
            let run = self.store().live_run(series).await?;
            let ended = match run {
                Some(run) => match self.cancel_run(run).await {
                    Err(CrawlError::Store(StoreError::Conflict(_))) => false,
                    cancelled => cancelled.map(|_| true)?,
                },
                None => {
                    let mut tx = self.store().begin().await?;
                    let ended = self.store().end_series(tx.conn(), series).await?;
                    tx.commit().await?;
                    ended
                }
            };
            if ended {
                return Ok(self.store().crawl(id).await?);
            }
        }
        let reason = format!("the crawl is {}, and there is no further run of it", crawl.state);
        Err(StoreError::Conflict(reason).into())
    }

    async fn cancel_run(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        let mut tx = self.store().begin().await?;
        self.queue().cancel_group(tx.conn(), id).await?;
        let crawl = self.store().set_crawl_state(tx.conn(), id, &LIVE, "cancelled", None).await?;
        self.store().skip_queued(tx.conn(), id, "cancelled").await?;
        news::ended(self.store(), self.queue(), &mut tx, &crawl).await?;
        tx.commit().await?;
        Ok(crawl)
    }
}
