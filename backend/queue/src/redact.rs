//! Clears the contents that must not be kept from the records of jobs that have ended.

use crate::{Queue, QueueError};
use sqlx::PgConnection;
use uuid::Uuid;

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

impl Queue {
    /// Clears the payload and the error of jobs that have ended, and keeps their records. Live jobs
    /// do not change. Returns the number of cleared records.
    pub async fn redact(&self, conn: &mut PgConnection, jobs: &[Uuid]) -> Result<u64, QueueError> {
        Ok(sqlx::query(REDACT).bind(jobs).execute(conn).await?.rows_affected())
    }

    /// Does the same as [`Self::redact`] for jobs of the groups whose unique key is among the given
    /// keys, and clears the errors of live ones. Reads every job of the groups.
    pub async fn redact_keyed(
        &self,
        conn: &mut PgConnection,
        groups: &[Uuid],
        keys: &[String],
    ) -> Result<u64, QueueError> {
        let mut redacted = 0;
        if groups.is_empty() || keys.is_empty() {
            return Ok(redacted);
        }
        for statement in REDACT_KEYED {
            let done = sqlx::query(statement).bind(groups).bind(keys).execute(&mut *conn).await?;
            redacted += done.rows_affected();
        }
        sqlx::query(REDACT_LIVE).bind(groups).bind(keys).execute(conn).await?;
        Ok(redacted)
    }

    /// Does the same as [`Self::redact_keyed`] for all jobs of the groups.
    pub async fn redact_groups(&self, conn: &mut PgConnection, groups: &[Uuid]) -> Result<(), QueueError> {
        if groups.is_empty() {
            return Ok(());
        }
        for statement in REDACT_GROUPS {
            sqlx::query(statement).bind(groups).execute(&mut *conn).await?;
        }
        Ok(())
    }
}
