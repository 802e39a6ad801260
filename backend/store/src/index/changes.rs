//! Changes of faces that a vector index outside the database has yet to follow.
//!
//! Triggers record each change in the transaction that changes the faces
//! (`migrations/0038_index_changes.sql`). The triggers exist only while recording is on. A change
//! names the face, and the code that applies it reads the current row of the face. Changes can
//! therefore be applied in any order, and more than once.
use crate::{Store, StoreError};
use sqlx::{AssertSqlSafe, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

/// Maximum time to wait for transactions that write faces, when recording is started or stopped.
/// Meanwhile, other transactions that write faces wait too.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '5s'";

#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct IndexChange {
    /// Its number.
    pub change: i64,
    pub face_id: Uuid,
    /// The model of the embedding that was stored, changed or deleted.
    pub model_id: i32,
    pub collection_id: Uuid,
    /// Whether the face had no embedding of this model in this collection after the change.
    pub deleted: bool,
}

impl Store {
    /// Starts recording the changes of faces. Afterwards, a new statement reads every face stored
    /// before, and every later change is recorded. Does nothing if recording is on.
    ///
    /// # Errors
    /// Fails with the database's error, for example if the tables are locked for five seconds. Then
    /// nothing changes.
    pub async fn start_index_changes(&self) -> Result<(), StoreError> {
        self.switch_index_changes("select start_index_changes()").await
    }

    /// Stops recording the changes of faces, and deletes the recorded changes.
    ///
    /// # Errors
    /// Fails like [`Self::start_index_changes`].
    pub async fn stop_index_changes(&self) -> Result<(), StoreError> {
        self.switch_index_changes("select stop_index_changes()").await
    }

    async fn switch_index_changes(&self, switch: &'static str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::raw_sql(LOCK_TIMEOUT).execute(tx.conn()).await?;
        sqlx::raw_sql(AssertSqlSafe(switch)).execute(tx.conn()).await?;
        tx.commit().await
    }

    /// Returns whether the changes of faces are recorded.
    pub async fn records_index_changes(&self) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select exists(select 1 from pg_trigger
                           where tgrelid = 'faces'::regclass and tgname = 'index_faces_inserted')",
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Returns the next changes, at most `limit`: first those that delete a face, then the others,
    /// each in the order of their numbers.
    pub async fn index_changes(
        &self,
        conn: &mut PgConnection,
        limit: i64,
    ) -> Result<Vec<IndexChange>, StoreError> {
        Ok(sqlx::query_as(
            "(select change, face_id, model_id, collection_id, deleted from index_changes
              where deleted order by change limit $1)
             union all
             (select change, face_id, model_id, collection_id, deleted from index_changes
              where not deleted order by change limit $1)
             limit $1",
        )
        .bind(limit)
        .fetch_all(conn)
        .await?)
    }

    /// Deletes changes that the index has stored durably. Returns how many of them there were.
    pub async fn settle_index_changes(
        &self,
        conn: &mut PgConnection,
        changes: &[i64],
    ) -> Result<u64, StoreError> {
        let settled = sqlx::query("delete from index_changes where change = any($1)")
            .bind(changes)
            .execute(conn)
            .await?;
        Ok(settled.rows_affected())
    }

    /// Returns the number of changes that the index has yet to follow.
    pub async fn count_index_changes(&self) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar("select count(*) from index_changes").fetch_one(&self.pool).await?)
    }

    /// Returns the time of the change with the lowest number; `None` if the index has followed all
    /// changes. It is the time of its transaction.
    pub async fn oldest_index_change(&self) -> Result<Option<OffsetDateTime>, StoreError> {
        Ok(sqlx::query_scalar("select changed_at from index_changes order by change limit 1")
            .fetch_optional(&self.pool)
            .await?)
    }
}
