//! Series of crawls: runs that follow one another.
//!
//! The promise of a next run is one column, `next_run_at`, on the last run. Whoever starts the run takes the promise, and whoever cancels the
//! series takes it too: only one of them finds it.
use crate::crawls::{Crawl, crawl_row};
use crate::{Store, StoreError};
use sqlx::PgConnection;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

impl Store {
    /// Makes a crawl the first run of a series that bears its id.
    pub async fn begin_series(&self, conn: &mut PgConnection, crawl: Uuid) -> Result<Crawl, StoreError> {
        sqlx::query("update crawls set series_id = id where id = $1").bind(crawl).execute(&mut *conn).await?;
        crawl_row(conn, crawl).await
    }

    /// Promises the next run of an ended run's series: `every` after this one began, at the earliest now.
    ///
    /// # Errors
    /// `NotFound` when the crawl is gone or of no series.
    pub async fn promise_next_run(
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

    /// Takes the promise of a run; `false` when it is not there any more. Locks the crawl's row.
    pub async fn take_next_run(&self, conn: &mut PgConnection, crawl: Uuid) -> Result<bool, StoreError> {
        let taken =
            sqlx::query("update crawls set next_run_at = null where id = $1 and next_run_at is not null")
                .bind(crawl)
                .execute(conn)
                .await?;
        Ok(taken.rows_affected() == 1)
    }

    /// Inserts the next run of a series: running, with the same collection, seeds and options.
    pub async fn insert_next_run(
        &self,
        conn: &mut PgConnection,
        previous: &Crawl,
    ) -> Result<Crawl, StoreError> {
        let next = self
            .insert_crawl(conn, previous.collection_id, &previous.kind, &previous.seeds, &previous.options)
            .await?;
        sqlx::query("update crawls set series_id = $2 where id = $1")
            .bind(next.id)
            .bind(previous.series_id)
            .execute(conn)
            .await?;
        Ok(Crawl { series_id: previous.series_id, ..next })
    }

    /// Takes back the promise of a next run, if there is one; says whether there was. Waits for whoever is starting that run.
    pub async fn end_series(&self, conn: &mut PgConnection, series: Uuid) -> Result<bool, StoreError> {
        let ended = sqlx::query(
            "update crawls set next_run_at = null where series_id = $1 and next_run_at is not null",
        )
        .bind(series)
        .execute(conn)
        .await?;
        Ok(ended.rows_affected() > 0)
    }

    /// The run of a series that is running or paused, if there is one.
    pub async fn live_run(&self, series: Uuid) -> Result<Option<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from crawls where series_id = $1 and state in ('running', 'paused') order by id desc limit 1",
        )
        .bind(series)
        .fetch_optional(&self.pool)
        .await?)
    }
}
