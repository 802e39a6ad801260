//! The end of ended jobs.
//!
//! Jobs that were completed or cancelled are deleted when they have been kept long enough, in small statements with rests in between, by one process at a
//! time. Discarded ones stay until they are retried or somebody says otherwise.
use crate::claim::interval;
use crate::runner::backoff::within;
use crate::{Queue, QueueError};
use std::time::Instant;
use time::OffsetDateTime;

/// Rows per statement: some tens of milliseconds.
const BATCH: i64 = 5_000;
/// The advisory lock of whoever purges.
const LOCK: i64 = 0x7075_7267_6500;

impl Queue {
    /// Deletes completed and cancelled jobs older than `keep_finished`; the number deleted. It rests as long as it works, and does nothing
    /// while another process is at it. It can be broken off anywhere: what was deleted until then stays so, and the next call goes on.
    pub async fn purge(&self) -> Result<u64, QueueError> {
        let mut purged = 0;
        loop {
            let begun = Instant::now();
            let deleted = within(self.config.lease, self.purge_some()).await?;
            purged += deleted.unsigned_abs();
            if deleted < BATCH {
                return Ok(purged);
            }
            tokio::time::sleep(begun.elapsed()).await;
        }
    }

    /// One statement of a purge; the number deleted.
    async fn purge_some(&self) -> Result<i64, QueueError> {
        let keep = interval(self.config.keep_finished);
        Ok(sqlx::query_scalar(PURGE).bind(keep).bind(BATCH).bind(LOCK).fetch_one(&self.pool).await?)
    }

    /// Deletes discarded jobs that ended before a time; the number deleted. Nothing else ever deletes them.
    pub async fn purge_discarded(&self, ended_before: OffsetDateTime) -> Result<u64, QueueError> {
        Ok(sqlx::query("delete from finished_jobs where state = 'discarded' and finished_at < $1")
            .bind(ended_before)
            .execute(&self.pool)
            .await?
            .rows_affected())
    }
}

/// Oldest first, along `finished_jobs_purge`. Passes over a row that is being retried at this moment.
const PURGE: &str = "
with gate as materialized (
    select pg_try_advisory_xact_lock($3) as mine
), old as materialized (
    select j.id from gate cross join lateral (
        select id from finished_jobs
        where mine and state <> 'discarded' and finished_at < now() - $1
        order by finished_at limit $2 for update skip locked
    ) j
), gone as (
    delete from finished_jobs where id = any(array(select id from old)) returning 1
)
select count(*) from gone";
