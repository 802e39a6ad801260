//! Pauses, resumes and cancels crawls, retries and cancels single jobs, and periodically repairs
//! rows whose job is missing. Crawls without queued rows are ended in `closing`.
//!
//! A job normally ends in the transaction that settles its row. The exception is a job that the
//! queue itself discards, because its worker died or its handler panicked at every attempt. Without
//! the repair, its row would remain queued, and the crawl would never end. A crawl would also never
//! end if its last worker stopped after the commit of the last row.
use super::Crawls;
use crate::crawls::closing;
use crate::domain::{CrawlError, Row, RowEnd, forget_jobs, jobs};
use domain::{CrawlKind, CrawlState, JobKind, Reason, Unprocessed};
use queue::{JobRow, JobState, QueueError};
use std::collections::HashSet;
use store::crawls::closing::SkippedRows;
use store::crawls::ledger::Ledger;
use store::crawls::{Crawl, CrawlFilter};
use store::{StoreError, Tx, retried};
use uuid::Uuid;

/// Maximum number of jobs, and of rows of each ledger, that one transaction closes. Such a
/// transaction takes about a tenth of a second.
const CHUNK: i64 = 5_000;
/// Maximum number of attempts to cancel a recurring crawl whose next run starts in the meantime.
const MAX_ATTEMPTS: usize = 5;

#[derive(Clone, Debug, Default)]
pub struct Retried {
    /// Number of jobs that are queued again.
    pub retried: u64,
    /// Jobs that cannot be retried, each with the reason.
    pub rejected: Vec<(Uuid, String)>,
}

impl Crawls {
    /// Pauses a crawl. No job starts until [`Self::resume`]; fetches that have begun continue.
    ///
    /// # Errors
    /// Fails with `StoreError::Conflict`, which contains the state, if the crawl is not running.
    pub async fn pause(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        retried("pause_crawl", || async {
            let mut tx = self.store.begin().await?;
            self.queue.groups().hold(tx.conn(), id).await?;
            let (from, to) = ([CrawlState::Running], CrawlState::Paused);
            let crawl = self.store.crawls().set_state(tx.conn(), id, &from, to, None).await?;
            if crawl.kind != CrawlKind::Web {
                let reason = "a scan of local files cannot be paused; stop its command instead";
                return Err(StoreError::Conflict(reason.into()).into());
            }
            tx.commit().await?;
            Ok(crawl)
        })
        .await
    }

    /// Resumes a paused crawl.
    ///
    /// # Errors
    /// Fails with `StoreError::Conflict`, which contains the state, if the crawl is not paused.
    pub async fn resume(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        let crawl = retried("resume_crawl", || async {
            let mut tx = self.store.begin().await?;
            self.queue.groups().release(tx.conn(), id).await?;
            let (from, to) = ([CrawlState::Paused], CrawlState::Running);
            let crawl = self.store.crawls().set_state(tx.conn(), id, &from, to, None).await?;
            tx.commit().await?;
            Ok::<_, CrawlError>(crawl)
        })
        .await?;
        // Without this step, the videos start a little later.
        if let Err(error) = self.make_videos_due(id).await {
            tracing::warn!(crawl = %id, %error, "failed to start the waiting videos of a resumed crawl");
        }
        Ok(crawl)
    }

    /// Makes the jobs of the crawl's waiting videos due. While a crawl is paused, a worker that
    /// claims such a job postpones it.
    async fn make_videos_due(&self, id: Uuid) -> Result<(), CrawlError> {
        let mut after = Uuid::nil();
        loop {
            let videos = self.store.crawled_videos().queued(id, after, CHUNK).await?;
            let Some(last) = videos.last() else { return Ok(()) };
            after = *last;
            let mut tx = self.store.begin().await?;
            self.queue.groups().make_due(tx.conn(), &videos).await?;
            tx.commit().await?;
        }
    }

    /// Cancels a crawl. Queued rows are skipped with the reason `cancelled`, and results of running
    /// fetches are not stored. For a recurring crawl, `id` may be the id of any of its runs. The
    /// current run ends, and no next run starts.
    ///
    /// # Errors
    /// Fails with `StoreError::Conflict`, which contains the state, if crawl and series have ended.
    pub async fn cancel(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        let crawl = self.store.crawls().get(id).await?;
        let Some(series) = crawl.series_id else { return self.cancel_run(id).await };
        // Between two queries a run can end and schedule the next one, or the next one can start.
        for _ in 0..MAX_ATTEMPTS {
            let run = self.store.crawls().live_run(series).await?;
            let ended = match run {
                Some(run) => match self.cancel_run(run).await {
                    Err(CrawlError::Store(StoreError::Conflict(_))) => false,
                    cancelled => cancelled.map(|_| true)?,
                },
                None => {
                    retried("cancel_schedule", || async {
                        let mut tx = self.store.begin().await?;
                        let ended = self.store.crawls().cancel_schedule(tx.conn(), series).await?;
                        tx.commit().await?;
                        Ok::<_, StoreError>(ended)
                    })
                    .await?
                }
            };
            if ended {
                return Ok(self.store.crawls().get(id).await?);
            }
        }
        let reason = format!("the crawl is {}, and no further run is scheduled", crawl.state);
        Err(StoreError::Conflict(reason).into())
    }

    /// Cancels one run. After the change of state, no job of the crawl starts or stores anything.
    /// The same transaction closes the first piece of its rows and jobs, which is sufficient for
    /// most crawls. A task closes the rest piece by piece.
    async fn cancel_run(&self, id: Uuid) -> Result<Crawl, CrawlError> {
        let (crawl, closing) = retried("cancel_crawl", || self.begin_closing(id)).await?;
        if closing {
            let crawls = self.clone();
            // If this process ends before the task, `reconcile` continues.
            tokio::spawn(async move {
                if let Err(error) = crawls.close(id).await {
                    tracing::warn!(crawl = %id, %error, "failed to close a cancelled crawl; reconciliation continues");
                }
            });
        }
        Ok(crawl)
    }

    /// Changes the state and closes the first piece. Returns whether rows or jobs remain to close.
    async fn begin_closing(&self, id: Uuid) -> Result<(Crawl, bool), CrawlError> {
        let mut tx = self.store.begin().await?;
        let jobs = self.queue.groups().cancel(tx.conn(), id, CHUNK).await?;
        self.store.suppressions().lock_for_crawl(tx.conn(), id).await?;
        let (from, to) = (CrawlState::LIVE, CrawlState::Cancelled);
        let crawl = self.store.crawls().set_state(tx.conn(), id, &from, to, None).await?;
        let skipped = self.store.crawls().skip_queued(tx.conn(), id, Reason::Cancelled, CHUNK).await?;
        forget_jobs(&self.queue, &mut tx, &skipped.jobs).await?;
        let closing = jobs.cast_signed() >= CHUNK || skipped.rows >= CHUNK;
        self.store.crawls().set_closing(tx.conn(), id, closing).await?;
        closing::enqueue_followups(&self.store, &self.queue, &mut tx, &crawl).await?;
        tx.commit().await?;
        Ok((crawl, closing))
    }

    /// Closes the remaining rows and jobs of a cancelled crawl. Several processes may call it.
    pub(super) async fn close(&self, id: Uuid) -> Result<(), CrawlError> {
        loop {
            let mut tx = self.store.begin().await?;
            let jobs = self.queue.groups().cancel(tx.conn(), id, CHUNK).await?;
            let skipped = match self.store.crawls().skip_queued(tx.conn(), id, Reason::Cancelled, CHUNK).await
            {
                // The crawl and its rows were deleted. Its jobs must still be cancelled.
                Err(StoreError::NotFound { .. }) => SkippedRows::default(),
                skipped => skipped?,
            };
            forget_jobs(&self.queue, &mut tx, &skipped.jobs).await?;
            let done = jobs.cast_signed() < CHUNK && skipped.rows < CHUNK;
            if done {
                self.store.crawls().set_closing(tx.conn(), id, false).await?;
            }
            tx.commit().await?;
            if done {
                return Ok(());
            }
        }
    }

    /// Returns a discarded or cancelled job to the queue with new attempts, and reopens the ledger
    /// row that its failure settled. The job counts as a job of its collection again.
    ///
    /// # Errors
    /// Fails with `QueueError::NotFound` and `QueueError::Duplicate` like [`queue::Queue::retry`],
    /// and with `StoreError::Conflict` if the job's crawl has ended or was deleted.
    pub async fn retry(&self, job: Uuid) -> Result<JobRow, CrawlError> {
        retried("retry_job", || async {
            let mut tx = self.store.begin().await?;
            let row = self.queue.jobs().retry(tx.conn(), job).await?;
            if let Some(crawl) = row.group_id {
                self.reopen(&mut tx, crawl, &row).await?;
            }
            tx.commit().await?;
            Ok(row)
        })
        .await
    }

    /// Retries the discarded jobs of a kind and a crawl, newest first. `None` means all kinds or
    /// all crawls. Jobs that cannot be retried do not change.
    pub async fn retry_discarded(
        &self,
        kind: Option<&str>,
        crawl: Option<Uuid>,
    ) -> Result<Retried, CrawlError> {
        let mut result = Retried::default();
        let mut before = None;
        loop {
            let rows = self.queue.jobs().list(Some(JobState::Discarded), kind, crawl, before, CHUNK).await?;
            for row in &rows {
                match self.retry(row.id).await {
                    Ok(_) => result.retried += 1,
                    Err(CrawlError::Store(StoreError::Conflict(reason))) => {
                        result.rejected.push((row.id, reason))
                    }
                    Err(CrawlError::Queue(reason @ (QueueError::Duplicate(_) | QueueError::NotFound(_)))) => {
                        result.rejected.push((row.id, reason.to_string()));
                    }
                    Err(error) => return Err(error),
                }
            }
            match rows.last() {
                Some(last) => before = Some(last.id),
                None => return Ok(result),
            }
        }
    }

    /// Cancels a live job. The page or image of the job is skipped with the reason `cancelled`. The
    /// crawl ends if this was its last row.
    ///
    /// # Errors
    /// Fails with `QueueError::NotFound` if the job is not live.
    pub async fn cancel_job(&self, job: Uuid) -> Result<JobRow, CrawlError> {
        let (row, ledger_row) = retried("cancel_job", || async {
            let mut tx = self.store.begin().await?;
            let row = self.queue.jobs().cancel(tx.conn(), job).await?;
            let ledger_row = jobs::ledger_row(&row.kind, &row.payload);
            if let Some((ledger, id)) = ledger_row {
                let (state, reason) = (Unprocessed::Skipped, &Reason::Cancelled);
                let end = RowEnd { state, reason, detail: "its job was cancelled", status: None };
                Row::new(ledger, id).settle(&self.store, &mut tx, end).await?;
            }
            tx.commit().await?;
            Ok::<_, CrawlError>((row, ledger_row))
        })
        .await?;
        if let (Some(crawl), Some(_)) = (row.group_id, ledger_row) {
            closing::end_if_done(&self.store, &self.queue, crawl).await;
        }
        Ok(row)
    }

    async fn reopen(&self, tx: &mut Tx, crawl: Uuid, job: &JobRow) -> Result<(), CrawlError> {
        let conflict = |reason: String| Err(StoreError::Conflict(reason).into());
        let collection = match self.store.crawls().lock(tx.conn(), crawl).await {
            Err(StoreError::NotFound { .. }) => return conflict("the job's crawl has been deleted".into()),
            locked => locked?,
        };
        if let Some(state) = self.store.crawls().state(tx.conn(), crawl).await?
            && !state.is_live()
        {
            return conflict(format!("the job's crawl is {state}; start a new crawl with its URL instead"));
        }
        self.queue.jobs().set_tenant(tx.conn(), job.id, collection).await?;
        if let Some((ledger, row)) = jobs::ledger_row(&job.kind, &job.payload) {
            self.store.crawls().reopen_row(tx.conn(), crawl, ledger, row).await?;
        }
        Ok(())
    }
}

/// Number of rows or crawls that one query reads.
const ROWS_AT_A_TIME: i64 = 1000;

/// The final state of a row whose job was discarded by the queue itself.
const DISCARDED: RowEnd<'static> = RowEnd {
    state: Unprocessed::Failed,
    reason: &Reason::JobDiscarded,
    detail: "in every attempt, the worker ended or the handler panicked",
    status: None,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Number of rows settled as failed with the reason `job_discarded`.
    pub rows: u64,
    /// Number of crawls that ended as a result.
    pub crawls: u64,
    /// Number of cancelled crawls whose last rows and jobs were closed.
    pub closed: u64,
    /// Number of scans that ended because their lease expired.
    pub scans: u64,
}

impl Crawls {
    /// Settles the queued rows without a live job in all live web crawls (`failed`,
    /// `job_discarded`), and ends the crawls without queued rows. Closes the remaining rows and
    /// jobs of cancelled crawls, and ends scans of local files whose lease expired.
    ///
    /// Call it periodically. Several processes may call it concurrently.
    ///
    /// # Errors
    /// Fails if the store or the queue fails. Earlier repairs are kept.
    pub async fn reconcile(&self) -> Result<Reconciled, CrawlError> {
        let mut done = Reconciled {
            scans: crate::crawls::closing::end_expired_scans(&self.store, &self.queue).await?,
            ..Reconciled::default()
        };
        for crawl in self.store.crawls().closing().await? {
            self.close(crawl).await?;
            done.closed += 1;
        }
        for state in CrawlState::LIVE {
            let mut before = None;
            loop {
                let filter = CrawlFilter { state: Some(state), ..CrawlFilter::default() };
                let crawls = self.store.crawls().list(&filter, before, ROWS_AT_A_TIME).await?;
                for crawl in crawls.iter().filter(|crawl| crawl.kind == CrawlKind::Web) {
                    self.reconcile_crawl(crawl, &mut done).await?;
                }
                before = crawls.last().map(|crawl| crawl.id);
                if (crawls.len() as i64) < ROWS_AT_A_TIME {
                    break;
                }
            }
        }
        if done != Reconciled::default() {
            tracing::warn!(
                rows = done.rows,
                crawls = done.crawls,
                closed = done.closed,
                scans = done.scans,
                "reconciled crawls"
            );
        }
        Ok(done)
    }

    async fn reconcile_crawl(&self, crawl: &Crawl, done: &mut Reconciled) -> Result<(), CrawlError> {
        for (ledger, kind) in [(Ledger::Pages, JobKind::ScanPage), (Ledger::ImageUrls, JobKind::ScanImage)] {
            let mut after = None;
            loop {
                let orphans = self.orphans(crawl.id, ledger, kind, &mut after).await?;
                if !orphans.is_empty() {
                    let mut tx = self.store.begin().await?;
                    self.store.crawls().lock(tx.conn(), crawl.id).await?;
                    for id in &orphans {
                        Row::new(ledger, *id).settle(&self.store, &mut tx, DISCARDED).await?;
                    }
                    tx.commit().await?;
                    done.rows += orphans.len() as u64;
                }
                if after.is_none() {
                    break;
                }
            }
        }
        let mut tx = self.store.begin().await?;
        self.store.crawls().lock(tx.conn(), crawl.id).await?;
        if closing::finish_if_done(&self.store, &self.queue, &mut tx, crawl.id).await? {
            done.crawls += 1;
        }
        tx.commit().await?;
        Ok(())
    }

    /// Returns the queued rows without a live job among the next [`ROWS_AT_A_TIME`] rows. Rows are
    /// read before jobs. A row that is settled between these reads is returned as an orphan, and
    /// settling it again is a no-op.
    async fn orphans(
        &self,
        crawl: Uuid,
        ledger: Ledger,
        kind: JobKind,
        after: &mut Option<Uuid>,
    ) -> Result<Vec<Uuid>, CrawlError> {
        let mut tx = self.store.begin().await?;
        let rows = self.store.ledger().queued_rows(tx.conn(), crawl, ledger, *after, ROWS_AT_A_TIME).await?;
        let keys: Vec<String> = rows.iter().map(Uuid::to_string).collect();
        let live: HashSet<String> =
            self.queue.jobs().live_keys(tx.conn(), kind.as_str(), &keys).await?.into_iter().collect();
        *after = ((rows.len() as i64) == ROWS_AT_A_TIME).then(|| rows.last().copied()).flatten();
        Ok(rows.into_iter().filter(|row| !live.contains(&row.to_string())).collect())
    }
}
