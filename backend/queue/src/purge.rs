//! Deletes the records of jobs that have ended. Completed and cancelled jobs are deleted once they
//! are older than the retention time. One process at a time does this, in small statements with
//! pauses in between. Discarded jobs are kept until they are retried or explicitly deleted.
use crate::claim::interval;
use crate::runner::backoff::with_time_limit;
use crate::{Queue, QueueError};
use std::time::{Duration, Instant};

/// Rows per statement. One statement takes some tens of milliseconds.
const BATCH: i64 = 5_000;
/// Key of the advisory lock that the purging process holds.
const LOCK: i64 = 0x7075_7267_6500;

impl Queue {
    /// Deletes completed and cancelled jobs older than `keep_finished`. Returns the number deleted.
    ///
    /// Pauses after each statement for as long as that statement took. Does nothing while another
    /// process purges. The call can be interrupted at any time: finished statements are not undone,
    /// and the next call continues.
    pub async fn purge(&self) -> Result<u64, QueueError> {
        let mut purged = 0;
        loop {
            let begun = Instant::now();
            let deleted = with_time_limit(self.config.lease, self.purge_some()).await?;
            purged += deleted.unsigned_abs();
            if deleted < BATCH {
                return Ok(purged);
            }
            tokio::time::sleep(begun.elapsed()).await;
        }
    }

    /// Runs one purge statement. Returns the number deleted.
    async fn purge_some(&self) -> Result<i64, QueueError> {
        let keep = interval(self.config.keep_finished);
        Ok(sqlx::query_scalar(PURGE).bind(keep).bind(BATCH).bind(LOCK).fetch_one(&self.pool).await?)
    }

    /// Deletes discarded jobs that ended at least `age` ago by the clock of the database, in
    /// batches. Returns the number deleted. Nothing else deletes discarded jobs.
    pub async fn purge_discarded(&self, age: Duration) -> Result<u64, QueueError> {
        let mut purged = 0;
        loop {
            let deleted = sqlx::query(PURGE_DISCARDED).bind(interval(age)).bind(BATCH);
            let deleted = deleted.execute(&self.pool).await?.rows_affected();
            purged += deleted;
            if deleted < BATCH.unsigned_abs() {
                return Ok(purged);
            }
        }
    }
}

/// Deletes the oldest jobs first, along the index `finished_jobs_purge`. Skips rows that are being
/// retried.
const PURGE: &str = "
with gate as materialized (
    select pg_try_advisory_xact_lock($3) as mine
), old as materialized (
    select j.id from gate cross join lateral (
        select id from finished_jobs
        where mine and state <> 'discarded' and finished_at < now() - $1::interval
        order by finished_at limit $2 for update skip locked
    ) j
), gone as (
    delete from finished_jobs where id = any(array(select id from old)) returning 1
)
select count(*) from gone";

/// Skips rows that are being retried.
const PURGE_DISCARDED: &str = "
delete from finished_jobs where id = any(array(
    select id from finished_jobs where state = 'discarded' and finished_at <= now() - $1::interval
    order by finished_at limit $2 for update skip locked))";
