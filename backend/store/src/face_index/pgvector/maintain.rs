//! Builds, measures and drops the HNSW indexes while faces are stored and searched.
use super::{CANDIDATES, NEIGHBOURS, Pgvector, index_name};
use crate::StoreError;
use crate::embeddings::EmbeddingModel;
use sqlx::AssertSqlSafe;
use std::time::Duration;

/// Number of attempts to exchange an index, and the time between two of them.
const EXCHANGES: u32 = 60;
const EXCHANGE_PAUSE: Duration = Duration::from_secs(5);

/// The index of a model.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, sqlx::FromRow)]
pub struct HnswIndex {
    /// The model of its embeddings.
    pub model_id: i32,
    /// The name of the model.
    pub model: String,
    /// Its size in bytes; `None` if it does not exist.
    pub bytes: Option<i64>,
    /// Whether it is complete. A build that failed leaves an index that is not.
    pub complete: bool,
}

impl Pgvector {
    /// Returns the index of each model, in the order of the models.
    ///
    /// # Errors
    /// Fails with the database's error.
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
        // The statements contain only numbers, so nothing in them comes from a caller.
        for statement in [
            format!("drop index concurrently if exists {new}"),
            format!(
                "create index concurrently {new} on faces using hnsw ((embedding::halfvec({})) halfvec_cosine_ops)
                     with (m = {NEIGHBOURS}, ef_construction = {CANDIDATES}) where model_id = {}",
                model.dimensions, model.id
            ),
            format!("alter index {new} alter column 1 set statistics 0"),
        ] {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut conn).await?;
        }
        // The exchange waits for a lock, and every other statement on the table waits behind it.
        let exchange = format!(
            "begin; set local lock_timeout = '1s'; drop index if exists {name}; alter index {new} rename to {name}; commit"
        );
        for attempt in 1.. {
            let exchanged = sqlx::raw_sql(AssertSqlSafe(exchange.clone())).execute(&mut conn).await;
            match exchanged {
                Ok(_) => break,
                Err(_) if attempt < EXCHANGES => {
                    sqlx::raw_sql("rollback").execute(&mut conn).await?;
                    tokio::time::sleep(EXCHANGE_PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Drops the index of a model. Does nothing if it does not exist.
    ///
    /// # Errors
    /// Fails with the database's error.
    pub async fn drop_index(&self, model: i32) -> Result<(), StoreError> {
        // `new` is the index of an interrupted build.
        let (name, new) = (index_name(model), format!("{}_new", index_name(model)));
        for statement in [
            format!("drop index concurrently if exists {name}"),
            format!("drop index concurrently if exists {new}"),
        ] {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&self.pool).await?;
        }
        Ok(())
    }
}
