//! Changes of faces that a vector index outside the database has not yet applied.
//!
//! Triggers record each change in the transaction that changes the faces
//! (`migrations/0038_index_changes.sql`). The triggers exist only while recording is on. A change
//! contains the id of the face, and the code that applies it reads the current row of the face.
//! Changes can therefore be applied in any order, and more than once.
use crate::StoreError;
use crate::db::Tx;
use crate::index::engine::{FaceSet, SetInfo};
pub use domain::IndexSetState;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// Maximum time to wait for transactions that write faces, when recording is started or stopped.
/// Meanwhile, other transactions that write faces wait too.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '5s'";

#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct IndexChange {
    /// The number of the change.
    pub change: i64,
    pub face_id: Uuid,
    /// The model of the embedding that was stored, changed or deleted.
    pub model_id: i32,
    pub collection_id: Uuid,
    /// Whether the face had no embedding of this model in this collection after the change.
    pub deleted: bool,
}

/// A handle to the change log and the sets; see [`crate::Store::index`].
#[derive(Clone, Copy, Debug)]
pub struct IndexLog<'a>(pub(crate) &'a PgPool);

impl IndexLog<'_> {
    /// Starts recording the changes of faces. Afterwards, a new statement reads every face stored
    /// before, and every later change is recorded. Does nothing if recording is on.
    ///
    /// # Errors
    /// Fails with the database's error, for example if the tables are locked for five seconds. Then
    /// nothing changes.
    pub async fn start_changes(self) -> Result<(), StoreError> {
        self.switch_index_changes("select start_index_changes()").await
    }

    /// Stops recording the changes of faces, and deletes the recorded changes.
    ///
    /// # Errors
    /// Fails like [`Self::start_changes`].
    pub async fn stop_changes(self) -> Result<(), StoreError> {
        self.switch_index_changes("select stop_index_changes()").await
    }

    async fn switch_index_changes(self, statement: &'static str) -> Result<(), StoreError> {
        let mut tx = Tx::begin(self.0).await?;
        sqlx::raw_sql(LOCK_TIMEOUT).execute(tx.conn()).await?;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(tx.conn()).await?;
        tx.commit().await
    }

    /// Returns whether the changes of faces are recorded.
    pub async fn records_changes(self) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select exists(select 1 from pg_trigger
                           where tgrelid = 'faces'::regclass and tgname = 'index_faces_inserted')",
        )
        .fetch_one(self.0)
        .await?)
    }

    /// Returns the next changes, at most `limit`: first those that delete a face, then the others,
    /// each in the order of their numbers.
    pub async fn changes(self, conn: &mut PgConnection, limit: i64) -> Result<Vec<IndexChange>, StoreError> {
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

    /// Deletes changes that the index has stored durably. Returns the number of deleted changes.
    pub async fn delete_applied_changes(
        self,
        conn: &mut PgConnection,
        changes: &[i64],
    ) -> Result<u64, StoreError> {
        let deleted = sqlx::query("delete from index_changes where change = any($1)")
            .bind(changes)
            .execute(conn)
            .await?;
        Ok(deleted.rows_affected())
    }

    /// Returns the number of changes that the index has not yet applied.
    pub async fn count_changes(self) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar("select count(*) from index_changes").fetch_one(self.0).await?)
    }

    /// Returns the time of the change with the lowest number; `None` if the index has applied all
    /// changes. It is the time of its transaction.
    pub async fn oldest_change(self) -> Result<Option<OffsetDateTime>, StoreError> {
        Ok(sqlx::query_scalar("select changed_at from index_changes order by change limit 1")
            .fetch_optional(self.0)
            .await?)
    }
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, sqlx::FromRow)]
pub struct IndexSet {
    /// Its name in the index.
    pub id: Uuid,
    /// The index: a value of `SEARCH_INDEX`.
    pub index_name: String,
    pub model_id: i32,
    pub model: String,
    pub dimensions: i32,
    pub state: IndexSetState,
    /// Faces with ids up to this one were copied.
    pub copied_to: Uuid,
    pub copied: bool,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When searches began to use it.
    #[serde(with = "time::serde::rfc3339::option")]
    pub served_at: Option<OffsetDateTime>,
    /// When the first face was deleted from it. Its files may contain data of deleted faces.
    #[serde(with = "time::serde::rfc3339::option")]
    pub deleted_since: Option<OffsetDateTime>,
    /// When its size was measured.
    #[serde(with = "time::serde::rfc3339::option")]
    pub measured_at: Option<OffsetDateTime>,
    /// Its number of faces at that time.
    pub faces: Option<i64>,
    /// The number of its faces in a graph at that time.
    pub in_graph: Option<i64>,
    /// When a comparison with the rows was requested. `None` after the comparison.
    #[serde(with = "time::serde::rfc3339::option")]
    pub check_requested_at: Option<OffsetDateTime>,
    /// When it was last compared with the rows.
    #[serde(with = "time::serde::rfc3339::option")]
    pub checked_at: Option<OffsetDateTime>,
    /// The result of the last comparison: [`crate::index::external::CheckResult`].
    pub check_result: Option<serde_json::Value>,
}

impl IndexSet {
    pub fn face_set(&self) -> FaceSet {
        FaceSet { id: self.id, dimensions: usize::try_from(self.dimensions).unwrap_or_default() }
    }
}

impl IndexLog<'_> {
    /// Returns the sets of all indexes, in the order of the index, the model and the time.
    pub async fn sets(self, conn: &mut PgConnection) -> Result<Vec<IndexSet>, StoreError> {
        Ok(sqlx::query_as(
            "select s.id, s.index_name, s.model_id, m.name as model, m.dimensions, s.state, s.copied_to, s.copied,
                    s.created_at, s.served_at, s.deleted_since, s.measured_at, s.faces, s.in_graph, s.check_requested_at, s.checked_at, s.check_result
             from index_sets s join embedding_models m on m.id = s.model_id
             order by s.index_name, s.model_id, s.created_at, s.id",
        )
        .fetch_all(conn)
        .await?)
    }

    /// Requests a new set for each model whose set is in use. The process that applies the changes
    /// builds the sets. Searches use the old ones until the new ones are complete. Returns the
    /// number of sets that were requested; a model whose set is being built is not counted.
    pub async fn request_rebuild(self, index: &str) -> Result<u64, StoreError> {
        let requested = sqlx::query(
            "insert into index_sets (index_name, model_id)
             select index_name, model_id from index_sets where index_name = $1 and state = 'serving'
             on conflict (index_name, model_id) where state = 'building' do nothing",
        )
        .bind(index)
        .execute(self.0)
        .await?;
        Ok(requested.rows_affected())
    }

    /// Requests a comparison of the sets in use with the rows. Returns the number of these sets.
    pub async fn request_check(self, index: &str) -> Result<u64, StoreError> {
        let requested = sqlx::query(
            "update index_sets set check_requested_at = now() where index_name = $1 and state = 'serving'",
        )
        .bind(index)
        .execute(self.0)
        .await?;
        Ok(requested.rows_affected())
    }

    /// Deletes the records of an index. Returns whether there were any. Afterwards, every step of a
    /// process that still uses the index fails with `IndexUnavailable`.
    pub async fn delete_records(self, index: &str) -> Result<bool, StoreError> {
        let deleted = sqlx::query(
            "with sets as (delete from index_sets where index_name = $1)
             delete from index_folders where index_name = $1",
        )
        .bind(index)
        .execute(self.0)
        .await?;
        Ok(deleted.rows_affected() > 0)
    }

    /// Deletes the records of all sets. The next process that applies changes builds the sets
    /// again. This is necessary after a restore, because the index may lack faces of the backup.
    pub async fn delete_set_records(self) -> Result<u64, StoreError> {
        Ok(sqlx::query("delete from index_sets").execute(self.0).await?.rows_affected())
    }
}

pub(crate) async fn insert(conn: &mut PgConnection, index: &str, model: i32) -> Result<(), StoreError> {
    sqlx::query("insert into index_sets (index_name, model_id) values ($1, $2) on conflict do nothing")
        .bind(index)
        .bind(model)
        .execute(conn)
        .await?;
    Ok(())
}

pub(crate) async fn delete(conn: &mut PgConnection, set: Uuid) -> Result<(), StoreError> {
    sqlx::query("delete from index_sets where id = $1").bind(set).execute(conn).await?;
    Ok(())
}

pub(crate) async fn record_copy(
    conn: &mut PgConnection,
    set: Uuid,
    copied_to: Uuid,
    copied: bool,
) -> Result<(), StoreError> {
    sqlx::query("update index_sets set copied_to = $2, copied = $3 where id = $1")
        .bind(set)
        .bind(copied_to)
        .bind(copied)
        .execute(conn)
        .await?;
    Ok(())
}

/// Lets searches use the set instead of the earlier one.
pub(crate) async fn start_serving(conn: &mut PgConnection, set: &IndexSet) -> Result<(), StoreError> {
    sqlx::query(
        "update index_sets set state = 'retired' where index_name = $1 and model_id = $2 and state = 'serving'",
    )
    .bind(&set.index_name)
    .bind(set.model_id)
    .execute(&mut *conn)
    .await?;
    sqlx::query("update index_sets set state = 'serving', served_at = now() where id = $1")
        .bind(set.id)
        .execute(conn)
        .await?;
    Ok(())
}

pub(crate) async fn record_deletion(conn: &mut PgConnection, set: Uuid) -> Result<(), StoreError> {
    sqlx::query("update index_sets set deleted_since = coalesce(deleted_since, now()) where id = $1")
        .bind(set)
        .execute(conn)
        .await?;
    Ok(())
}

pub(crate) async fn record_size(
    conn: &mut PgConnection,
    set: Uuid,
    info: &SetInfo,
) -> Result<(), StoreError> {
    let to_i64 = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    sqlx::query("update index_sets set measured_at = now(), faces = $2, in_graph = $3 where id = $1")
        .bind(set)
        .bind(to_i64(info.faces))
        .bind(to_i64(info.in_graph))
        .execute(conn)
        .await?;
    Ok(())
}

/// Returns the id of the last copied face; `None` if the set is not being built, or all faces were
/// copied.
pub(crate) async fn last_copied_face(conn: &mut PgConnection, set: Uuid) -> Result<Option<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "select copied_to from index_sets where id = $1 and state = 'building' and not copied",
    )
    .bind(set)
    .fetch_optional(conn)
    .await?)
}

/// The server whose sets are recorded. The table is named after the folders of an index that
/// earlier versions kept in files.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub(crate) struct RecordedServer {
    pub(crate) id: Uuid,
    /// Whether a process has begun to delete it.
    pub(crate) released: bool,
}

pub(crate) async fn recorded_server(
    conn: &mut PgConnection,
    index: &str,
) -> Result<Option<RecordedServer>, StoreError> {
    Ok(sqlx::query_as("select folder_id as id, released from index_folders where index_name = $1")
        .bind(index)
        .fetch_optional(conn)
        .await?)
}

/// Records the server of the sets. Deletes the records of the sets of another server.
pub(crate) async fn record_server(
    conn: &mut PgConnection,
    index: &str,
    claimed: Uuid,
) -> Result<(), StoreError> {
    let recorded = recorded_server(&mut *conn, index).await?;
    if recorded.is_some_and(|recorded| recorded.id == claimed) {
        return Ok(());
    }
    if let Some(previous) = recorded {
        tracing::warn!(index, earlier = %previous.id, "the search index is in another server now; delete the earlier one, which contains embeddings of faces");
    }
    sqlx::query("delete from index_sets where index_name = $1").bind(index).execute(&mut *conn).await?;
    sqlx::query(
        "insert into index_folders (index_name, folder_id) values ($1, $2)
         on conflict (index_name) do update set folder_id = excluded.folder_id, released = false",
    )
    .bind(index)
    .bind(claimed)
    .execute(conn)
    .await?;
    Ok(())
}

/// Records that the index will not be deleted.
pub(crate) async fn cancel_release(conn: &mut PgConnection, index: &str) -> Result<(), StoreError> {
    sqlx::query("update index_folders set released = false where index_name = $1")
        .bind(index)
        .execute(conn)
        .await?;
    Ok(())
}

/// Records that the index will be deleted. Returns the recorded id of its server.
pub(crate) async fn release(conn: &mut PgConnection, index: &str) -> Result<Option<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "update index_folders set released = true where index_name = $1 returning folder_id",
    )
    .bind(index)
    .fetch_optional(conn)
    .await?)
}

/// Requests a new set for each set in use that lacks data of its faces, or whose first deletion is
/// at least `age` old.
pub(crate) async fn replace_old_sets(
    conn: &mut PgConnection,
    index: &str,
    age: Duration,
) -> Result<(), StoreError> {
    sqlx::query(
        "insert into index_sets (index_name, model_id)
         select index_name, model_id from index_sets
         where index_name = $1 and state = 'serving'
           and (outdated or deleted_since <= now() - make_interval(secs => $2))
         on conflict (index_name, model_id) where state = 'building' do nothing",
    )
    .bind(index)
    .bind(age.as_secs_f64())
    .execute(conn)
    .await?;
    Ok(())
}

pub(crate) async fn record_check(
    conn: &mut PgConnection,
    set: Uuid,
    requested: OffsetDateTime,
    result: &serde_json::Value,
) -> Result<(), StoreError> {
    // Keeps a request that was made after `requested`.
    sqlx::query(
        "update index_sets set checked_at = now(), check_result = $2,
                check_requested_at = nullif(check_requested_at, $3)
         where id = $1",
    )
    .bind(set)
    .bind(result)
    .bind(requested)
    .execute(conn)
    .await?;
    Ok(())
}
