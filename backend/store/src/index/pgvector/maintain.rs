//! Builds, measures and drops the HNSW indexes while faces are stored and searched.
use super::{CANDIDATES, NEIGHBOURS, Pgvector, index_name};
use crate::StoreError;
use crate::faces::embeddings::EmbeddingModel;
use sqlx::AssertSqlSafe;
use std::time::Duration;

/// Number of attempts to exchange an index, and the time between two of them.
const EXCHANGES: u32 = 60;
const EXCHANGE_PAUSE: Duration = Duration::from_secs(5);

/// Lets a build use three quarters of the memory that Postgres has for its pages. A build that
/// needs more continues on disk, much slower. The default of Postgres, 64 MB, is enough for 100,000
/// faces with 128 dimensions.
const BUILD_MEMORY: &str = "select set_config('maintenance_work_mem', greatest(
    pg_size_bytes(current_setting('maintenance_work_mem')), pg_size_bytes(current_setting('shared_buffers')) * 3 / 4) / 1024 || 'kB',
    false)";
/// The error code of a disk, or of the shared memory of a container, that is full.
const DISK_FULL: &str = "53100";

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, sqlx::FromRow)]
pub struct HnswIndex {
    pub model_id: i32,
    pub model: String,
    /// Its size in bytes; `None` if it does not exist.
    pub bytes: Option<i64>,
    /// Whether searches can use it. An interrupted `drop index concurrently` leaves an index that
    /// they cannot use.
    pub complete: bool,
}

impl Pgvector {
    /// Returns the index of each model, in the order of the models.
    pub async fn indexes(&self) -> Result<Vec<HnswIndex>, StoreError> {
        Ok(sqlx::query_as(
            "select m.id as model_id, m.name as model, pg_relation_size(i.indexrelid) as bytes,
                    coalesce(i.indisvalid, false) as complete
             from embedding_models m
             left join pg_index i on i.indexrelid = to_regclass('faces_embedding_hnsw_' || m.id)
             order by m.id",
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Builds the index of a model again, or for the first time. Faces can be stored and searched
    /// meanwhile. May take hours.
    ///
    /// # Errors
    /// Fails with the database's error. The earlier index, if there is one, stays.
    pub async fn rebuild(&self, model: &EmbeddingModel) -> Result<(), StoreError> {
        let (name, new) = (index_name(model.id), format!("{}_new", index_name(model.id)));
        // `concurrently` is not possible in a transaction, and the limit must not apply to it.
        let mut conn = self.pool.acquire().await?.detach();
        sqlx::raw_sql("set statement_timeout = 0").execute(&mut conn).await?;
        sqlx::raw_sql(BUILD_MEMORY).execute(&mut conn).await?;
        // The statements contain only numbers, so nothing in them comes from a caller.
        let drop = format!("drop index concurrently if exists {new}");
        let create = format!(
            "create index concurrently {new} on faces using hnsw ((embedding::halfvec({})) halfvec_cosine_ops)
                 with (m = {NEIGHBOURS}, ef_construction = {CANDIDATES}) where model_id = {}",
            model.dimensions, model.id
        );
        sqlx::raw_sql(AssertSqlSafe(drop.clone())).execute(&mut conn).await?;
        if let Err(error) = sqlx::raw_sql(AssertSqlSafe(create.clone())).execute(&mut conn).await {
            // Several processes build the index in shared memory, of which a container has little.
            if error.as_database_error().and_then(|error| error.code()).as_deref() != Some(DISK_FULL) {
                return Err(error.into());
            }
            tracing::warn!(%error, "building the index with one process");
            sqlx::raw_sql("set max_parallel_maintenance_workers = 0").execute(&mut conn).await?;
            sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut conn).await?;
            sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut conn).await?;
        }
        let statistics = format!("alter index {new} alter column 1 set statistics 0");
        sqlx::raw_sql(AssertSqlSafe(statistics)).execute(&mut conn).await?;
        // The exchange waits for a lock, and every other statement on the table waits behind it.
        let exchange = format!(
            "begin; set local lock_timeout = '1s'; drop index if exists {name}; alter index {new} rename to {name}; commit"
        );
        for attempt in 1.. {
            let exchanged = sqlx::raw_sql(AssertSqlSafe(exchange.clone())).execute(&mut conn).await;
            match exchanged {
                Ok(_) => return self.set_bulk_load(model.id, false).await,
                Err(_) if attempt < EXCHANGES => {
                    sqlx::raw_sql("rollback").execute(&mut conn).await?;
                    tokio::time::sleep(EXCHANGE_PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Drops the index of a model, because many faces are about to be stored. Neither a start nor a
    /// registration builds it again, only [`Self::rebuild`].
    pub async fn drop_for_bulk_load(&self, model: i32) -> Result<(), StoreError> {
        self.set_bulk_load(model, true).await?;
        self.drop_index(model).await
    }

    async fn set_bulk_load(&self, model: i32, bulk_load: bool) -> Result<(), StoreError> {
        sqlx::query("update embedding_models set bulk_load = $2 where id = $1 and bulk_load <> $2")
            .bind(model)
            .bind(bulk_load)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Drops the index of a model. Does nothing if it does not exist.
    pub async fn drop_index(&self, model: i32) -> Result<(), StoreError> {
        // `new` is the index of an interrupted build.
        let (name, new) = (index_name(model), format!("{}_new", index_name(model)));
        // `concurrently` waits for older transactions, such as a backup.
        let mut conn = self.pool.acquire().await?.detach();
        for statement in [
            "set statement_timeout = 0".to_owned(),
            format!("drop index concurrently if exists {name}"),
            format!("drop index concurrently if exists {new}"),
        ] {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut conn).await?;
        }
        Ok(())
    }
}
