//! Ends large cancelled crawls and abandoned scans, starts the next runs of schedules, and deletes
//! crawls.
//!
//! A cancellation only changes the crawl's state. The rows that are still queued at that time are
//! closed later, in batches. Until then, the crawl has the mark `closing`, which survives a crash.
//! Users do not see a difference, because progress counts queued rows of a cancelled crawl as
//! skipped (`store.crawls().progress`).
//!
//! A recurring crawl is a series of runs. The column `next_run_at` of the last run contains the
//! time at which the next run is due. The transaction that starts that run clears the column, and
//! so does a cancellation of the schedule, so only one of them succeeds.
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::crawls::ledger::Ledger;
use crate::crawls::pages::lock_crawl;
use crate::crawls::{Crawl, crawl_row};
use crate::db::deletions::{ErasureOutcome, LedgerJobs, set_tombstones};
use crate::images::delete_images;
use crate::store::Crawls;
use crate::videos::crawled::cancel_videos_of_crawl;
use crate::videos::delete_videos;
use domain::Reason;
use sqlx::PgConnection;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug, Default)]
pub struct SkippedRows {
    /// Number of rows and videos. A number below the limit means that no such rows remain.
    pub rows: i64,
    /// Jobs whose records contain an erased URL. Clear these records in the same transaction.
    pub jobs: LedgerJobs,
}

impl Crawls<'_> {
    /// Skips at most `limit` queued rows with `reason`, and cancels live videos. Removes the
    /// addresses of skipped rows that were erased while they waited. A transaction that locks the
    /// crawl's row earlier calls `store.suppressions().lock_for_crawl` before it does.
    pub async fn skip_queued(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        reason: Reason,
        limit: i64,
    ) -> Result<SkippedRows, StoreError> {
        // Either an erasure sees the skipped rows, or this transaction sees the suppression.
        let collection = self.0.suppressions().lock_for_crawl(conn, crawl).await?;
        lock_crawl(conn, crawl).await?;
        let mut skipped = 0;
        for sql in [SKIP_PAGES, SKIP_IMAGE_URLS] {
            let result = sqlx::query(sql).bind(crawl).bind(&reason).bind(limit - skipped).execute(&mut *conn);
            skipped += result.await?.rows_affected().cast_signed();
        }
        let videos = cancel_videos_of_crawl(conn, crawl, &reason, limit - skipped).await?;
        let mut jobs = self.0.erasures().erase_skipped(conn, collection, crawl).await?;
        jobs.extend(self.0.erasures().erase_videos_if_empty(conn, &videos).await?);
        Ok(SkippedRows { rows: skipped + videos.len() as i64, jobs })
    }

    /// Sets or clears the mark `closing` of a cancelled crawl. The crawl's row must be locked, or
    /// must have been changed in this transaction.
    pub async fn set_closing(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        closing: bool,
    ) -> Result<(), StoreError> {
        let statement = "update crawls set closing = $2 where id = $1 and closing <> $2";
        sqlx::query(statement).bind(crawl).bind(closing).execute(conn).await?;
        Ok(())
    }

    /// Returns cancelled crawls with the mark `closing`, oldest first, at most 1,000.
    pub async fn closing(self) -> Result<Vec<Uuid>, StoreError> {
        let query = "select id from crawls where closing order by id limit 1000";
        Ok(sqlx::query_scalar(query).fetch_all(&self.0.pool).await?)
    }

    /// Extends the lease of a scan whose command is alive. Returns `false` if the scan has ended.
    pub async fn renew_scan(
        self,
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

    pub async fn expired_scans(self) -> Result<Vec<Uuid>, StoreError> {
        let query = "select id from crawls where state = 'running' and kind = 'scan' and lease_until < clock_timestamp()";
        Ok(sqlx::query_scalar(query).fetch_all(&self.0.pool).await?)
    }

    /// Ends a scan whose lease expired as `failed`, with `error`. Returns `false` if its command
    /// renewed the lease or the scan has ended.
    pub async fn end_expired_scan(
        self,
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
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        ledger: Ledger,
        row: Uuid,
    ) -> Result<bool, StoreError> {
        let statement = match ledger {
            Ledger::Pages => {
                "update pages set state = 'queued', reason = null, detail = null, status = null, finished_at = null
                 where id = $2 and crawl_id = $1 and state in ('failed', 'skipped')"
            }
            Ledger::ImageUrls => {
                "update image_urls set state = 'queued', reason = null, detail = null, finished_at = null
                 where id = $2 and crawl_id = $1 and state in ('failed', 'skipped')"
            }
        };
        Ok(sqlx::query(statement).bind(crawl).bind(row).execute(conn).await?.rows_affected() == 1)
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

impl Crawls<'_> {
    /// Turns a crawl into the first run of a schedule. The schedule's id is the crawl's id.
    pub async fn begin_schedule(self, conn: &mut PgConnection, crawl: Uuid) -> Result<Crawl, StoreError> {
        sqlx::query("update crawls set series_id = id where id = $1").bind(crawl).execute(&mut *conn).await?;
        crawl_row(conn, crawl).await
    }

    /// Sets the time of the next run when a run has ended: `interval` after the start of that run,
    /// but not in the past.
    ///
    /// # Errors
    /// Fails with `NotFound` if the crawl was deleted or belongs to no schedule.
    pub async fn schedule_next_run(
        self,
        conn: &mut PgConnection,
        crawl: Uuid,
        interval: Duration,
    ) -> Result<OffsetDateTime, StoreError> {
        sqlx::query_scalar(
            "update crawls set next_run_at = greatest(created_at + make_interval(secs => $2), clock_timestamp())
             where id = $1 and series_id is not null returning next_run_at",
        )
        .bind(crawl)
        .bind(interval.as_secs_f64())
        .fetch_optional(conn)
        .await?
        .ok_or_else(|| StoreError::not_found("crawl of a series", crawl))
    }

    /// Clears the time of the next run. Returns `false` if it was cleared before. Locks the crawl's
    /// row.
    pub async fn claim_next_run(self, conn: &mut PgConnection, crawl: Uuid) -> Result<bool, StoreError> {
        let cleared =
            sqlx::query("update crawls set next_run_at = null where id = $1 and next_run_at is not null")
                .bind(crawl)
                .execute(conn)
                .await?;
        Ok(cleared.rows_affected() == 1)
    }

    /// Inserts the next run of a schedule: running, with the same collection, seeds and options.
    pub async fn insert_next_run(
        self,
        conn: &mut PgConnection,
        previous: &Crawl,
    ) -> Result<Crawl, StoreError> {
        let next = self
            .insert(conn, previous.collection_id, previous.kind, &previous.seeds, &previous.options)
            .await?;
        sqlx::query("update crawls set series_id = $2 where id = $1")
            .bind(next.id)
            .bind(previous.series_id)
            .execute(conn)
            .await?;
        Ok(Crawl { series_id: previous.series_id, ..next })
    }

    /// Cancels the next run of a schedule. Returns `true` if there was one. Waits for a transaction
    /// that is starting that run.
    pub async fn cancel_schedule(self, conn: &mut PgConnection, series: Uuid) -> Result<bool, StoreError> {
        let ended = sqlx::query(
            "update crawls set next_run_at = null where series_id = $1 and next_run_at is not null",
        )
        .bind(series)
        .execute(conn)
        .await?;
        Ok(ended.rows_affected() > 0)
    }

    /// Returns the running or paused run of a schedule, if there is one.
    pub async fn live_run(self, series: Uuid) -> Result<Option<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from crawls where series_id = $1 and state in ('running', 'paused') order by id desc limit 1",
        )
        .bind(series)
        .fetch_optional(&self.0.pool)
        .await?)
    }

    /// Deletes a crawl with its pages and ledger rows. Returns the blob keys to delete after the
    /// commit, and the jobs of its videos that have no data left. The crawl's images, their sources
    /// and its videos are kept; live videos are cancelled. With `with_images`, images and videos
    /// that no other crawl found are deleted too.
    pub async fn delete(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        with_images: bool,
    ) -> Result<ErasureOutcome, StoreError> {
        self.get_in(conn, id).await?;
        // Either an erasure sees the ended videos, or this transaction sees the erasure.
        self.0.suppressions().lock_for_crawl(conn, id).await?;
        lock_crawl(conn, id).await?;
        let mut keys = Vec::new();
        if with_images {
            let images = images_found_only_by(conn, id).await?;
            set_tombstones(conn, &images, &images).await?;
            keys = delete_images(conn, &images).await?.1;
            let videos = videos_found_only_by(conn, id).await?;
            keys.extend(delete_videos(conn, &videos).await?);
        }
        // After the deletion, a worker would fetch these videos without the crawl's rules.
        let cancelled = cancel_videos_of_crawl(conn, id, &Reason::Cancelled, i64::MAX).await?;
        let jobs = self.0.erasures().erase_videos_if_empty(conn, &cancelled).await?;
        // Sightings without an image are useless without their ledger row.
        sqlx::query("delete from image_sources where crawl_id = $1 and image_id is null")
            .bind(id)
            .execute(&mut *conn)
            .await?;
        sqlx::query("delete from crawls where id = $1").bind(id).execute(&mut *conn).await?;
        Ok(ErasureOutcome { blobs: enqueue_blob_deletions(conn, keys).await?, jobs })
    }
}

/// Returns the images that no other crawl found, in the order of their ids.
pub(crate) async fn images_found_only_by(
    conn: &mut PgConnection,
    crawl: Uuid,
) -> Result<Vec<Uuid>, StoreError> {
    // A source without a crawl belongs to a deleted crawl whose images were kept.
    Ok(sqlx::query_scalar(
        "select distinct u.image_id from image_urls u
         where u.crawl_id = $1 and u.image_id is not null
           and not exists (select 1 from image_urls o where o.image_id = u.image_id and o.crawl_id <> $1)
           and not exists (select 1 from image_sources s
                           where s.image_id = u.image_id and s.crawl_id is distinct from $1)
         order by 1",
    )
    .bind(crawl)
    .fetch_all(conn)
    .await?)
}

/// Locks and returns the videos of a crawl or a scan, except videos whose file another crawl or
/// scan found too.
pub(crate) async fn videos_found_only_by(
    conn: &mut PgConnection,
    crawl: Uuid,
) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "select v.id from videos v
         where (v.crawl_id = $1 or v.scan_id = $1)
           and not exists (select 1 from videos o where o.original_id = v.id
                           and o.crawl_id is distinct from $1 and o.scan_id is distinct from $1)
         order by v.id for update",
    )
    .bind(crawl)
    .fetch_all(conn)
    .await?)
}
