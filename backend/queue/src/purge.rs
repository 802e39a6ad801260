//! Deletes the records of ended jobs, and clears their contents. Discarded jobs are kept until they
//! are retried or explicitly deleted.
//!
//! Completed and cancelled jobs are deleted once they are older than the retention time. One
//! process at a time does this, in small statements with pauses in between.
use crate::claim::interval;
use crate::queue::with_time_limit;
use crate::{Groups, Jobs, Queue, QueueError};
use sqlx::PgConnection;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Rows per statement. One statement takes some tens of milliseconds.
const BATCH: i64 = 5_000;
/// Key of the advisory lock that the purging process holds.
const PURGE_LOCK: i64 = 0x7075_7267_6500;

impl Queue {
    /// Deletes completed and cancelled jobs older than `keep_finished`. Returns the number deleted.
    ///
    /// Each pause is as long as the statement before it. Does nothing while another process purges.
    /// The call can be interrupted at any time: finished statements are not undone, and the next
    /// call continues.
    pub async fn purge(&self) -> Result<u64, QueueError> {
        let mut purged = 0;
        loop {
            let start = Instant::now();
            let deleted = with_time_limit(self.config.lease, self.purge_batch()).await?;
            purged += deleted.unsigned_abs();
            if deleted < BATCH {
                return Ok(purged);
            }
            tokio::time::sleep(start.elapsed()).await;
        }
    }

    /// Runs one purge statement. Returns the number deleted.
    async fn purge_batch(&self) -> Result<i64, QueueError> {
        let keep = interval(self.config.keep_finished);
        Ok(sqlx::query_scalar(PURGE).bind(keep).bind(BATCH).bind(PURGE_LOCK).fetch_one(&self.pool).await?)
    }
}

impl Jobs<'_> {
    /// Deletes discarded jobs that ended at least `age` ago by the clock of the database, in
    /// batches. Returns the number deleted. Nothing else deletes discarded jobs.
    pub async fn purge_discarded(self, age: Duration) -> Result<u64, QueueError> {
        let mut purged = 0;
        loop {
            let deleted = sqlx::query(PURGE_DISCARDED).bind(interval(age)).bind(BATCH);
            let deleted = deleted.execute(&self.0.pool).await?.rows_affected();
            purged += deleted;
            if deleted < BATCH.unsigned_abs() {
                return Ok(purged);
            }
        }
    }

    /// Clears the payload and the error of jobs that have ended, and keeps their records. Live jobs
    /// do not change. Returns the number of cleared records.
    pub async fn redact(self, conn: &mut PgConnection, jobs: &[Uuid]) -> Result<u64, QueueError> {
        Ok(sqlx::query(REDACT).bind(jobs).execute(conn).await?.rows_affected())
    }
}

impl Groups {
    /// Does the same as [`Jobs::redact`] for jobs of the groups whose unique key is among the given
    /// keys, and clears the errors of live ones. Reads every job of the groups.
    pub async fn redact_keyed(
        self,
        conn: &mut PgConnection,
        groups: &[Uuid],
        keys: &[String],
    ) -> Result<u64, QueueError> {
        let mut redacted = 0;
        if groups.is_empty() || keys.is_empty() {
            return Ok(redacted);
        }
        for statement in REDACT_KEYED {
            let result = sqlx::query(statement).bind(groups).bind(keys).execute(&mut *conn).await?;
            redacted += result.rows_affected();
        }
        sqlx::query(REDACT_LIVE).bind(groups).bind(keys).execute(conn).await?;
        Ok(redacted)
    }

    /// Does the same as [`Self::redact_keyed`] for all jobs of the groups.
    pub async fn redact(self, conn: &mut PgConnection, groups: &[Uuid]) -> Result<(), QueueError> {
        if groups.is_empty() {
            return Ok(());
        }
        for statement in REDACT_GROUPS {
            sqlx::query(statement).bind(groups).execute(&mut *conn).await?;
        }
        Ok(())
    }
}

/// Deletes the oldest jobs first (index `finished_jobs_purge`). Skips rows that are being retried.
const PURGE: &str = "
with lock as materialized (
    select pg_try_advisory_xact_lock($3) as acquired
), old as materialized (
    select j.id from lock cross join lateral (
        select id from finished_jobs
        where acquired and state <> 'discarded' and finished_at < now() - $1::interval
        order by finished_at limit $2 for update skip locked
    ) j
), deleted as (
    delete from finished_jobs where id = any(array(select id from old)) returning 1
)
select count(*) from deleted";

/// Skips rows that are being retried.
const PURGE_DISCARDED: &str = "
delete from finished_jobs where id = any(array(
    select id from finished_jobs where state = 'discarded' and finished_at <= now() - $1::interval
    order by finished_at limit $2 for update skip locked))";

/// A record without a payload can be listed and counted, but not retried.
const REDACT: &str = "update finished_jobs set payload = '{}', last_error = null where id = any($1)";

/// There are two statements, because each condition on the state has its own index by group.
const REDACT_KEYED: [&str; 2] = [
    "update finished_jobs set payload = '{}', last_error = null
     where group_id = any($1) and state = 'completed' and unique_key = any($2)",
    "update finished_jobs set payload = '{}', last_error = null
     where group_id = any($1) and state <> 'completed' and unique_key = any($2)",
];

/// Clears the errors of earlier attempts. The payload is needed for the next one. A transaction
/// that has locked a row is ending its run.
const REDACT_LIVE: &str = "
    update jobs set last_error = null where id in (
        select id from jobs where group_id = any($1) and unique_key = any($2) and last_error is not null
        for update skip locked)";

const REDACT_GROUPS: [&str; 3] = [
    "update finished_jobs set payload = '{}', last_error = null where group_id = any($1) and state = 'completed'",
    "update finished_jobs set payload = '{}', last_error = null where group_id = any($1) and state <> 'completed'",
    "update jobs set last_error = null where id in (
        select id from jobs where group_id = any($1) and last_error is not null for update skip locked)",
];
