//! Recurring crawls: a schedule is a series of runs. The column `next_run_at` of the last run
//! contains the time at which the next run is due. The transaction that starts that run clears the
//! column, and so does a cancellation of the schedule, so only one of them succeeds.
use crate::crawls::{Crawl, crawl_row};
use crate::{Store, StoreError};
use sqlx::PgConnection;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

impl Store {
    /// Turns a crawl into the first run of a schedule. The schedule's id is the crawl's id.
    pub async fn begin_schedule(&self, conn: &mut PgConnection, crawl: Uuid) -> Result<Crawl, StoreError> {
        sqlx::query("update crawls set series_id = id where id = $1").bind(crawl).execute(&mut *conn).await?;
        crawl_row(conn, crawl).await
    }

    /// Sets the time of the next run when a run has ended: `every` after the start of that run,
    /// but not in the past. Returns that time.
    ///
    /// # Errors
    /// Fails with `NotFound` if the crawl is gone or belongs to no schedule.
    pub async fn schedule_next_run(
        &self,
        conn: &mut PgConnection,
        crawl: Uuid,
        every: Duration,
    ) -> Result<OffsetDateTime, StoreError> {
        sqlx::query_scalar(
            "update crawls set next_run_at = greatest(created_at + make_interval(secs => $2), clock_timestamp())
             where id = $1 and series_id is not null returning next_run_at",
        )
        .bind(crawl)
        .bind(every.as_secs_f64())
        .fetch_optional(conn)
        .await?
        .ok_or_else(|| StoreError::not_found("crawl of a series", crawl))
    }

    /// Clears the time of the next run; `false` if it was cleared. Locks the crawl's row.
    pub async fn claim_next_run(&self, conn: &mut PgConnection, crawl: Uuid) -> Result<bool, StoreError> {
        let taken =
            sqlx::query("update crawls set next_run_at = null where id = $1 and next_run_at is not null")
                .bind(crawl)
                .execute(conn)
                .await?;
        Ok(taken.rows_affected() == 1)
    }

    /// Inserts the next run of a schedule: running, with the same collection, seeds and options.
    pub async fn insert_next_run(
        &self,
        conn: &mut PgConnection,
        previous: &Crawl,
    ) -> Result<Crawl, StoreError> {
        let next = self
            .insert_crawl(conn, previous.collection_id, previous.kind, &previous.seeds, &previous.options)
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
    pub async fn cancel_schedule(&self, conn: &mut PgConnection, series: Uuid) -> Result<bool, StoreError> {
        let ended = sqlx::query(
            "update crawls set next_run_at = null where series_id = $1 and next_run_at is not null",
        )
        .bind(series)
        .execute(conn)
        .await?;
        Ok(ended.rows_affected() > 0)
    }

    /// Returns the running or paused run of a schedule, if there is one.
    pub async fn live_run(&self, series: Uuid) -> Result<Option<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from crawls where series_id = $1 and state in ('running', 'paused') order by id desc limit 1",
        )
        .bind(series)
        .fetch_optional(&self.pool)
        .await?)
    }
}
