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

impl Queue {
    /// Clears the payload and the error of jobs that have ended, and keeps their records. Live jobs
    /// do not change. Returns the number of cleared records.
    pub async fn redact(&self, conn: &mut PgConnection, jobs: &[Uuid]) -> Result<u64, QueueError> {
        Ok(sqlx::query(REDACT).bind(jobs).execute(conn).await?.rows_affected())
    }

    /// Does the same as [`Self::redact`] for jobs of the groups whose unique key is among the given
    /// keys. Reads every ended job of the groups.
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
        Ok(redacted)
    }
}
