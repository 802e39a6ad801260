//! Periodically repairs rows whose job is missing, ends crawls without queued rows, closes
//! cancelled crawls, and ends scans whose lease expired. Retention is in the module `maintenance`.
//!
//! A job normally ends in the transaction that settles its row. The exception is a job that the
//! queue itself discards, because its worker died or its handler panicked at every attempt. Without
//! the repair, its row would remain queued, and the crawl would never end. A crawl would also never
//! end if its last worker stopped after the commit of the last row.

use super::Crawls;
use crate::crawls::closing;
use crate::domain::{CrawlError, Row, RowEnd};
use crate::scan;
use domain::{CrawlKind, CrawlState, JobKind, Reason, Unprocessed};
use std::collections::HashSet;
use store::crawls::ledger::Ledger;
use store::crawls::{Crawl, CrawlFilter};
use uuid::Uuid;

/// Number of rows or crawls that one query reads.
const CHUNK: i64 = 1000;

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
            scans: scan::end_lapsed(self.store(), self.queue()).await?,
            ..Reconciled::default()
        };
        for crawl in self.store().closing_crawls().await? {
            self.close(crawl).await?;
            done.closed += 1;
        }
        for state in CrawlState::LIVE {
            let mut before = None;
            loop {
                let filter = CrawlFilter { state: Some(state), ..CrawlFilter::default() };
                let crawls = self.store().crawls(&filter, before, CHUNK).await?;
                for crawl in crawls.iter().filter(|crawl| crawl.kind == CrawlKind::Web) {
                    self.reconcile_crawl(crawl, &mut done).await?;
                }
                before = crawls.last().map(|crawl| crawl.id);
                if (crawls.len() as i64) < CHUNK {
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
                    let mut tx = self.store().begin().await?;
                    self.store().lock_crawl(tx.conn(), crawl.id).await?;
                    for id in &orphans {
                        Row::new(ledger, *id).settle(self.store(), &mut tx, DISCARDED).await?;
                    }
                    tx.commit().await?;
                    done.rows += orphans.len() as u64;
                }
                if after.is_none() {
                    break;
                }
            }
        }
        let mut tx = self.store().begin().await?;
        self.store().lock_crawl(tx.conn(), crawl.id).await?;
        if closing::finish_if_done(self.store(), self.queue(), &mut tx, crawl.id).await? {
            done.crawls += 1;
        }
        tx.commit().await?;
        Ok(())
    }

    /// Returns the queued rows without a live job among the next [`CHUNK`] rows. Rows are read
    /// before jobs. A row that is settled in between is still returned as an orphan, and settling
    /// it again is a no-op.
    async fn orphans(
        &self,
        crawl: Uuid,
        ledger: Ledger,
        kind: JobKind,
        after: &mut Option<Uuid>,
    ) -> Result<Vec<Uuid>, CrawlError> {
        let mut tx = self.store().begin().await?;
        let rows = self.store().queued_rows(tx.conn(), crawl, ledger, *after, CHUNK).await?;
        let keys: Vec<String> = rows.iter().map(Uuid::to_string).collect();
        let live: HashSet<String> =
            self.queue().live_keys(tx.conn(), kind.as_str(), &keys).await?.into_iter().collect();
        *after = ((rows.len() as i64) == CHUNK).then(|| rows.last().copied()).flatten();
        Ok(rows.into_iter().filter(|row| !live.contains(&row.to_string())).collect())
    }
}
