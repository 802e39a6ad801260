//! The deletion log contains deletions, suppressions and revoked keys. It must survive the loss of
//! the database, and it takes precedence over backups of the database.
//!
//! The log consists of lines of JSON. It is always complete and it is small, so it can be written
//! often and stored separately from the backups. It contains ids, hashes and sketches, but no
//! deleted content.
use crate::StoreError;
use crate::store::Erasures;
use futures::stream::TryStreamExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

/// Rows per statement.
const BATCH: usize = 1_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", content = "row", rename_all = "snake_case")]
pub enum Entry {
    /// An embedding model to which sketches refer.
    EmbeddingModel {
        /// Identity of the model file and its preprocessing.
        identity: String,
        name: String,
        dimensions: i32,
    },
    Erasure(Value),
    Suppression(Value),
    /// The digest of the id of a deleted or replaced row.
    Tombstone(Value),
    RevokedKey(Value),
}

const SELECT_ENTRIES: &str = "
    select jsonb_build_object('what', 'embedding_model', 'row', jsonb_build_object(
               'identity', identity, 'name', name, 'dimensions', dimensions))::text from embedding_models
    union all select jsonb_build_object('what', 'erasure', 'row', to_jsonb(e))::text from erasures e
    union all select jsonb_build_object('what', 'suppression', 'row',
               to_jsonb(s) - 'model_id' || jsonb_build_object('model', m.identity))::text
        from suppressions s left join embedding_models m on m.id = s.model_id
    union all select jsonb_build_object('what', 'tombstone', 'row', to_jsonb(t))::text from tombstones t
    union all select jsonb_build_object('what', 'revoked_key', 'row', jsonb_build_object(
               'id', id, 'revoked_at', revoked_at))::text from api_keys where revoked_at is not null";

/// Statements that import a batch of each kind; `$1` is an array of rows. Erasures are imported
/// before the suppressions that refer to them. Rows of collections that the backup does not contain
/// are omitted.
const IMPORT_ERASURES: &str = "
    insert into erasures select r.* from jsonb_populate_recordset(null::erasures, $1) r join collections c on c.id = r.collection_id
    on conflict (id) do update set lifted_at = coalesce(erasures.lifted_at, excluded.lifted_at)";
const IMPORT_SUPPRESSIONS: &str = "
    insert into suppressions (id, collection_id, erasure_id, sha256, phash, dhash, ahash, region, url_hash, sketch, sketch_key, model_id,
                              reason, created_at, at_us, whole_image)
    select s.id, s.collection_id, (select id from erasures where id = s.erasure_id), s.sha256, s.phash, s.dhash, s.ahash, s.region,
           s.url_hash, s.sketch, s.sketch_key, (select id from embedding_models where identity = entry ->> 'model'), s.reason, s.created_at, s.at_us,
           coalesce(s.whole_image, false)
    from jsonb_array_elements($1) entry, jsonb_populate_record(null::suppressions, entry) s join collections c on c.id = s.collection_id
    on conflict (id) do nothing";
const IMPORT_TOMBSTONES: &str = "
    insert into tombstones select * from jsonb_populate_recordset(null::tombstones, $1) on conflict (digest) do nothing";
const IMPORT_REVOKED_KEYS: &str = "
    update api_keys k set revoked_at = r.revoked_at from jsonb_populate_recordset(null::api_keys, $1) r
    where k.id = r.id and k.revoked_at is null";

impl Erasures<'_> {
    /// Passes each line of the deletion log, from one snapshot, to `write_line`.
    ///
    /// # Errors
    /// Fails with the errors of the database and with the first error of `write_line`.
    pub async fn deletion_log<E: From<StoreError>>(
        self,
        mut write_line: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut tx = self.0.begin().await?;
        let to_store_error = |error: sqlx::Error| StoreError::from(error);
        sqlx::query("set local statement_timeout = 0").execute(tx.conn()).await.map_err(to_store_error)?;
        let mut lines = sqlx::query_scalar(SELECT_ENTRIES).fetch(tx.conn());
        while let Some(line) = lines.try_next().await.map_err(to_store_error)? {
            let line: String = line;
            write_line(&line)?;
        }
        Ok(())
    }

    /// Imports the entries that are missing from this database, in one transaction.
    /// `store.erasures().reapply` then deletes everything that the log records as deleted.
    ///
    /// # Errors
    /// Fails with `Database` if the tables reject a row, and with `Conflict` if an embedding model
    /// has a different number of dimensions here.
    pub async fn import_deletion_log(self, entries: Vec<Entry>) -> Result<(), StoreError> {
        let (mut erasures, mut suppressions) = (Vec::new(), Vec::new());
        let (mut tombstones, mut keys) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Entry::EmbeddingModel { identity, name, dimensions } => {
                    self.0.models().register(&identity, &name, dimensions).await?;
                }
                Entry::Erasure(row) => erasures.push(row),
                Entry::Suppression(row) => suppressions.push(row),
                Entry::Tombstone(row) => tombstones.push(row),
                Entry::RevokedKey(row) => keys.push(row),
            }
        }
        let mut tx = self.0.begin().await?;
        import_rows(tx.conn(), IMPORT_ERASURES, erasures).await?;
        import_rows(tx.conn(), IMPORT_SUPPRESSIONS, suppressions).await?;
        import_rows(tx.conn(), IMPORT_TOMBSTONES, tombstones).await?;
        import_rows(tx.conn(), IMPORT_REVOKED_KEYS, keys).await?;
        // Webhook secrets that were replaced after the backup must no longer sign messages.
        sqlx::query(
            "delete from webhook_secrets w using tombstones t where t.digest = sha256(uuid_send(w.id))",
        )
        .execute(tx.conn())
        .await?;
        sqlx::query("delete from watchlists w using tombstones t where t.digest = sha256(uuid_send(w.id))")
            .execute(tx.conn())
            .await?;
        sqlx::query("delete from suppressions s using erasures e where e.id = s.erasure_id and e.lifted_at is not null")
            .execute(tx.conn())
            .await?;
        tx.commit().await
    }
}

async fn import_rows(
    conn: &mut PgConnection,
    statement: &'static str,
    rows: Vec<Value>,
) -> Result<(), StoreError> {
    for batch in rows.chunks(BATCH) {
        sqlx::query(statement).bind(Value::from(batch)).execute(&mut *conn).await?;
    }
    Ok(())
}

impl Erasures<'_> {
    /// Returns collections with tombstones that exist again because of a restored backup.
    pub async fn restored_deleted_collections(self) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select c.id from collections c join tombstones t on t.digest = sha256(uuid_send(c.id))
             where c.deleting_at is null order by c.id",
        )
        .fetch_all(&self.0.pool)
        .await?)
    }
}
