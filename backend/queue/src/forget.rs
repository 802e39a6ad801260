//! Removing what the records of ended jobs say, where that must not be kept.

use crate::{Queue, QueueError};
use sqlx::PgConnection;
use uuid::Uuid;

/// A record without a payload can be listed and counted, and not be run again.
const FORGET: &str = "update finished_jobs set payload = '{}', last_error = null where id = any($1)";

/// Each condition on the state has an index of groups of its own.
const FORGET_KEYED: [&str; 2] = [
    "update finished_jobs set payload = '{}', last_error = null
     where group_id = any($1) and state = 'completed' and unique_key = any($2)",
    "update finished_jobs set payload = '{}', last_error = null
     where group_id = any($1) and state <> 'completed' and unique_key = any($2)",
];

impl Queue {
    /// Empties the payload and the error of ended jobs; the records stay. Jobs that are still to run are left alone.
    pub async fn forget(&self, conn: &mut PgConnection, jobs: &[Uuid]) -> Result<u64, QueueError> {
        Ok(sqlx::query(FORGET).bind(jobs).execute(conn).await?.rows_affected())
    }

    /// The same of those jobs of the groups that have one of the unique keys. Reads every ended job of the groups.
    pub async fn forget_keyed(
        &self,
        conn: &mut PgConnection,
        groups: &[Uuid],
        keys: &[String],
    ) -> Result<u64, QueueError> {
        let mut forgotten = 0;
        if groups.is_empty() || keys.is_empty() {
            return Ok(forgotten);
        }
        for statement in FORGET_KEYED {
            let done = sqlx::query(statement).bind(groups).bind(keys).execute(&mut *conn).await?;
            forgotten += done.rows_affected();
        }
        Ok(forgotten)
    }
}
