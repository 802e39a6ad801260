//! Pause, resume and cancel crawls; retry and cancel single jobs.

use super::Crawls;
use crate::completion::{finish_if_done, notifications};
use crate::domain::{CrawlError, Row, jobs};
use queue::{JobRow, JobState, QueueError};
use store::crawls::Crawl;
use store::{StoreError, Tx, retried};
use uuid::Uuid;

/// States of a crawl that has not ended.
const LIVE: [&str; 2] = ["running", "paused"];
/// Jobs, and rows of each ledger, that are closed in one transaction: a tenth of a second's work.
const PIECE: i64 = 5_000;
/// Times that a series is looked at again because it went on between two looks.
const LOOKS: usize = 5;

/// What became of discarded jobs that were to live again.
#[derive(Clone, Debug, Default)]
pub struct Retried {
    /// Jobs that wait for their next run.
    pub retried: u64,
    /// Jobs that cannot, each with the reason.
    pub left: Vec<(Uuid, String)>,
}

impl Crawls {
    /// Holds its jobs: nothing new is started until [`Self::resume`]; what is being fetched ends.
    ///
    /// # Errors
    /// `StoreError::Conflict` names the state when the crawl is not running.
    pub async fn pause(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        retried("pause_crawl", || async {
            let mut tx = self.store().begin().await?;
            self.queue().hold_group(tx.conn(), id).await?;
            let crawl = self.store().set_crawl_state(tx.conn(), id, &["running"], "paused", None).await?;
            if crawl.kind != "web" {
                let reason = "a scan of local files runs with its command and cannot be paused";
                return Err(StoreError::Conflict(reason.into()).into());
            }
            tx.commit().await?;
            Ok(crawl)
        })
        .await
    }

    /// Lets them run again.
    ///
    /// # Errors
    /// `StoreError::Conflict` names the state when the crawl is not paused.
    pub async fn resume(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        retried("resume_crawl", || async {
            let mut tx = self.store().begin().await?;
            self.queue().release_group(tx.conn(), id).await?;
            let crawl = self.store().set_crawl_state(tx.conn(), id, &["paused"], "running", None).await?;
            tx.commit().await?;
            Ok(crawl)
        })
        .await
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

    /// The state is what counts: no job of the crawl begins or stores anything after it. The first piece of its rows and jobs is closed with
    /// it, which for most crawls is all; the rest follows piece by piece.
    async fn cancel_run(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        let (crawl, closing) = retried("cancel_crawl", || self.begin_to_close(id)).await?;
        if closing {
            let crawls = self.clone();
            // Should this process end first, `reconcile` goes on with it.
            tokio::spawn(async move {
                if let Err(error) = crawls.close(id).await {
                    tracing::warn!(crawl = %id, %error, "the rest of a cancelled crawl is closed later");
                }
            });
        }
        Ok(crawl)
    }

    /// The state, and the first piece; whether there is more to close.
    async fn begin_to_close(&self, id: Uuid) -> Result<(Crawl, bool), CrawlError> {
        let mut tx = self.store().begin().await?;
        let jobs = self.queue().cancel_group(tx.conn(), id, PIECE).await?;
        let crawl = self.store().set_crawl_state(tx.conn(), id, &LIVE, "cancelled", None).await?;
        let rows = self.store().skip_queued(tx.conn(), id, "cancelled", PIECE).await?;
        let closing = jobs.cast_signed() >= PIECE || rows >= PIECE;
        self.store().set_closing(tx.conn(), id, closing).await?;
        notifications::ended(self.store(), self.queue(), &mut tx, &crawl).await?;
        tx.commit().await?;
        Ok((crawl, closing))
    }

    /// Closes what is left of a cancelled crawl. Any number of processes may be at it.
    pub(super) async fn close(&self, id: Uuid) -> Result<(), CrawlError> {
        loop {
            let mut tx = self.store().begin().await?;
            let jobs = self.queue().cancel_group(tx.conn(), id, PIECE).await?;
            let rows = match self.store().skip_queued(tx.conn(), id, "cancelled", PIECE).await {
                // Deleted meanwhile, and its rows with it; the jobs still have to go.
                Err(StoreError::NotFound { .. }) => 0,
                rows => rows?,
            };
            let done = jobs.cast_signed() < PIECE && rows < PIECE;
            if done {
                self.store().set_closing(tx.conn(), id, false).await?;
            }
            tx.commit().await?;
            if done {
                return Ok(());
            }
        }
    }

    /// Gives a discarded or cancelled job a new life with fresh attempts, and opens the ledger row that its failure closed.
    ///
    /// # Errors
    /// `QueueError::NotFound` and `QueueError::Duplicate` as [`queue::Queue::retry`] says; `StoreError::Conflict` when the job's crawl has ended
    /// or is gone.
    pub async fn retry(&self, job: Uuid) -> Result<JobRow, CrawlError> {
        let mut tx = self.store().begin().await?;
        let row = self.queue().retry(tx.conn(), job).await?;
        if let Some(crawl) = row.group_id {
            self.reopen(&mut tx, crawl, &row).await?;
        }
        tx.commit().await?;
        Ok(row)
    }

    /// Retries discarded jobs of a kind and a crawl (of all where none is named), oldest last. Those that cannot live again are left as they are.
    pub async fn retry_discarded(
        &self,
        kind: Option<&str>,
        crawl: Option<Uuid>,
    ) -> Result<Retried, CrawlError> {
        let mut told = Retried::default();
        let mut before = None;
        loop {
            let rows = self.queue().list(Some(JobState::Discarded), kind, crawl, before, PIECE).await?;
            for row in &rows {
                match self.retry(row.id).await {
                    Ok(_) => told.retried += 1,
                    Err(CrawlError::Store(StoreError::Conflict(why))) => told.left.push((row.id, why)),
                    Err(CrawlError::Queue(why @ (QueueError::Duplicate(_) | QueueError::NotFound(_)))) => {
                        told.left.push((row.id, why.to_string()));
                    }
                    Err(error) => return Err(error),
                }
            }
            match rows.last() {
                Some(last) => before = Some(last.id),
                None => return Ok(told),
            }
        }
    }

    /// Ends a live job; the page or image that it is about is skipped with the reason `cancelled`, and a crawl for which it was the last
    /// ends.
    ///
    /// # Errors
    /// `QueueError::NotFound` when the job is not live.
    pub async fn cancel_job(&self, job: Uuid) -> Result<JobRow, CrawlError> {
        let mut tx = self.store().begin().await?;
        let row = self.queue().cancel(tx.conn(), job).await?;
        if let Some(crawl) = row.group_id
            && let Some((ledger, id)) = jobs::row_of(&row.kind, &row.payload)
            && self.store().crawl_state(tx.conn(), crawl).await?.is_some()
        {
            self.store().lock_crawl(tx.conn(), crawl).await?;
            let detail = Some("its job was cancelled");
            Row::new(ledger, id).settle(self.store(), &mut tx, "skipped", "cancelled", detail, None).await?;
            finish_if_done(self.store(), self.queue(), &mut tx, crawl).await?;
        }
        tx.commit().await?;
        Ok(row)
    }

    async fn reopen(&self, tx: &mut Tx, crawl: Uuid, job: &JobRow) -> Result<(), CrawlError> {
        let refuse = |why: String| Err(StoreError::Conflict(why).into());
        match self.store().lock_crawl(tx.conn(), crawl).await {
            Err(StoreError::NotFound { .. }) => return refuse("the job's crawl has been deleted".into()),
            locked => locked?,
        }
        let state = self.store().crawl_state(tx.conn(), crawl).await?.unwrap_or_default();
        if !LIVE.contains(&state.as_str()) {
            return refuse(format!("the job's crawl is {state}; start a new crawl with its URL instead"));
        }
        if let Some((ledger, row)) = jobs::row_of(&job.kind, &job.payload) {
            self.store().reopen_row(tx.conn(), crawl, ledger, row).await?;
        }
        Ok(())
    }
}
