//! Looks up the unique keys of live jobs.
use crate::enqueue::stored_key;
use crate::{Queue, QueueError};
use sqlx::PgConnection;
use std::collections::HashSet;

impl Queue {
    /// Returns those of `keys` that are the unique key of a live job of `kind`, in input order.
    /// Callers use it to find the records for which a live job exists.
    pub async fn live_keys(
        &self,
        conn: &mut PgConnection,
        kind: &str,
        keys: &[String],
    ) -> Result<Vec<String>, QueueError> {
        let stored: Vec<String> = keys.iter().map(|key| stored_key(key)).collect();
        let live: Vec<String> =
            sqlx::query_scalar("select unique_key from jobs where kind = $1 and unique_key = any($2)")
                .bind(kind)
                .bind(&stored)
                .fetch_all(conn)
                .await?;
        let live: HashSet<String> = live.into_iter().collect();
        let held = keys.iter().zip(&stored).filter(|(_, stored)| live.contains(*stored));
        Ok(held.map(|(key, _)| key.clone()).collect())
    }
}
