//! Closes crawls without a client: cancelled large crawls, and scans whose command died.
//!
//! A cancellation only changes the crawl's state. The rows that are still queued at that time are
//! closed later, in batches. Until then, the crawl has the mark `closing`, which survives a crash.
//! Users do not see a difference, because progress counts queued rows of a cancelled crawl as
//! skipped (`Store::crawl_progress`).
use crate::crawls::ledger::Ledger;
use crate::crawls::pages::lock_crawl;
use crate::erasures::traces::LedgerJobs;
use crate::videos::crawled::cancel_videos_of_crawl;
use crate::{Store, StoreError};
use domain::Reason;
use sqlx::PgConnection;
use std::time::Duration;
use uuid::Uuid;

/// What [`Store::skip_queued`] did.
#[derive(Clone, Debug, Default)]
pub struct Skipped {
    /// Number of rows and videos. A number below the limit means that no such rows remain.
    pub rows: i64,
    /// Jobs whose records contain an erased URL. Clear these records in the same transaction.
    pub jobs: LedgerJobs,
}

impl Store {
    /// Settles at most `most` `queued` rows as skipped with `reason`, and cancels live videos.
    /// Removes the addresses of skipped rows that were erased while they waited. A transaction that
    /// locks the crawl's row earlier calls [`Store::lock_suppressions_of_crawl`] before it does.
    pub async fn skip_queued(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        reason: Reason,
        most: i64,
    ) -> Result<Skipped, StoreError> {
        // An erasure finds the row skipped, or this transaction finds the suppression.
        let collection = self.lock_suppressions_of_crawl(conn, crawl).await?;
        lock_crawl(conn, crawl).await?;
        let mut skipped = 0;
        for close in [SKIP_PAGES, SKIP_IMAGE_URLS] {
            let done = sqlx::query(close).bind(crawl).bind(&reason).bind(most - skipped).execute(&mut *conn);
            skipped += done.await?.rows_affected().cast_signed();
        }
        let videos = cancel_videos_of_crawl(conn, crawl, &reason, most - skipped).await?;
        let mut jobs = self.erase_skipped(conn, collection, crawl).await?;
        for video in &videos {
            jobs.extend(self.erase_emptied_video(conn, *video).await?);
        }
        Ok(Skipped { rows: skipped + videos.len() as i64, jobs })
    }

    /// Sets or clears the mark `closing` of a cancelled crawl. The crawl's row must be locked, or
    /// must have been changed in this transaction.
    pub async fn set_closing(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        closing: bool,
    ) -> Result<(), StoreError> {
        let set = "update crawls set closing = $2 where id = $1 and closing <> $2";
        sqlx::query(set).bind(crawl).bind(closing).execute(conn).await?;
        Ok(())
    }

    /// Returns cancelled crawls with the mark `closing`, oldest first, at most 1,000.
    pub async fn closing_crawls(&self) -> Result<Vec<Uuid>, StoreError> {
        let closing = "select id from crawls where closing order by id limit 1000";
        Ok(sqlx::query_scalar(closing).fetch_all(&self.pool).await?)
    }

    /// Extends the lease of a scan whose command is alive. Returns `false` if the scan has ended.
    pub async fn renew_scan(
        &self,
        conn: &mut PgConnection,
        scan: Uuid,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let renewed = sqlx::query(
            "update crawls set lease_until = clock_timestamp() + make_interval(secs => $2)
             where id = $1 and kind = 'scan' and state = 'running'",
        )
        .bind(scan)
        .bind(lease.as_secs_f64())
        .execute(conn)
        .await?;
        Ok(renewed.rows_affected() == 1)
    }

    /// Returns the running scans whose lease expired.
    pub async fn lapsed_scans(&self) -> Result<Vec<Uuid>, StoreError> {
        let lapsed = "select id from crawls where state = 'running' and kind = 'scan' and lease_until < clock_timestamp()";
        Ok(sqlx::query_scalar(lapsed).fetch_all(&self.pool).await?)
    }

    /// Ends a scan whose lease expired as `failed`, with `error`. Returns `false` if its command
    /// renewed the lease or the scan has ended.
    pub async fn end_lapsed_scan(
        &self,
        conn: &mut PgConnection,
        scan: Uuid,
        error: &str,
    ) -> Result<bool, StoreError> {
        let ended = sqlx::query(
            "update crawls set state = 'failed', error = $2, finished_at = now()
             where id = $1 and state = 'running' and kind = 'scan' and lease_until < clock_timestamp()",
        )
        .bind(scan)
        .bind(error)
        .execute(conn)
        .await?;
        Ok(ended.rows_affected() == 1)
    }

    /// Resets a row in the state `failed` or `skipped` to `queued`, so that it can be settled
    /// again. Leaves any other row unchanged and returns `false`. The crawl's row must be locked.
    pub async fn reopen_row(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        ledger: Ledger,
        row: Uuid,
    ) -> Result<bool, StoreError> {
        let reopen = match ledger {
            Ledger::Pages => {
                "update pages set state = 'queued', reason = null, detail = null, status = null, finished_at = null
                 where id = $2 and crawl_id = $1 and state in ('failed', 'skipped')"
            }
            Ledger::ImageUrls => {
                "update image_urls set state = 'queued', reason = null, detail = null, finished_at = null
                 where id = $2 and crawl_id = $1 and state in ('failed', 'skipped')"
            }
        };
        Ok(sqlx::query(reopen).bind(crawl).bind(row).execute(conn).await?.rows_affected() == 1)
    }
}

const SKIP_PAGES: &str = "
update pages set state = 'skipped', reason = $2, finished_at = now()
where id = any(array(select id from pages where crawl_id = $1 and state = 'queued' order by id limit $3))
  and state = 'queued'";

const SKIP_IMAGE_URLS: &str = "
update image_urls set state = 'skipped', reason = $2, finished_at = now()
where id = any(array(select id from image_urls where crawl_id = $1 and state = 'queued' order by id limit $3))
  and state = 'queued'";
