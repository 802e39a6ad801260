//! The index in Postgres itself: one partial HNSW index of pgvector for each embedding model.
//! Similarity is the cosine: 1 minus pgvector's cosine distance. A statement contains the model's
//! id as a literal, because the planner uses a partial index only if it sees the condition.
use super::{AllSimilar, FaceIndex, Nearest, NearestFaces, Neighbours, Pair, Similar};
use crate::db::values::halfvec;
use crate::index::EmbeddingModel;
use crate::index::scope::Access;
use crate::{StoreError, index};
use sqlx::{AssertSqlSafe, PgConnection, PgExecutor, PgPool, Postgres, QueryBuilder, Row};
use std::time::Duration;

/// Parameters of the HNSW index: the number of links per face and layer, and the number of
/// candidates considered when a face is added. They are pgvector's `m` and `ef_construction`, by
/// default 16 and 64. With 64 candidates and a million faces, one new face in thirty is linked only
/// to faces of other people, so later searches do not find it.
const HNSW_LINKS: i32 = 16;
const BUILD_CANDIDATES: i32 = 128;

/// Maximum number of candidates of a search (`hnsw.ef_search`) that pgvector allows.
pub const MAX_CANDIDATES: usize = 1_000;
/// Default minimum number of candidates of a search, and the number for each requested face.
const EF_SEARCH: i64 = 100;
const EF_PER_RESULT: i64 = 4;
/// Maximum number of index entries that a filtered search visits. If this is not enough, the search
/// returns fewer faces than requested.
const MAX_SCAN_TUPLES: i64 = 100_000;
/// The same limits for the neighbours of one face.
const NEIGHBOURS_EF_SEARCH: i64 = 100;
const NEIGHBOURS_MAX_SCAN_TUPLES: i64 = 20_000;

/// The HNSW indexes of pgvector.
#[derive(Clone, Debug)]
pub struct Pgvector {
    pool: PgPool,
    candidates: i64,
}

impl Pgvector {
    pub fn new(pool: PgPool) -> Self {
        Self { pool, candidates: EF_SEARCH }
    }

    /// Returns the same index with another minimum number of candidates of a search. A number above
    /// 1,000 becomes 1,000. With `None`, the minimum is 100.
    #[must_use]
    pub fn with_candidates(mut self, candidates: Option<usize>) -> Self {
        self.candidates = candidates.map_or(EF_SEARCH, |count| count.clamp(1, MAX_CANDIDATES) as i64);
        self
    }

    /// Searches the model's index. The scan continues until enough results pass the filters or the
    /// scan limit is reached.
    async fn search(&self, query: &Nearest<'_>) -> Result<Vec<Similar>, StoreError> {
        let ef_search =
            query.limit.saturating_mul(EF_PER_RESULT).max(self.candidates).min(MAX_CANDIDATES as i64);
        let mut tx = self.pool.begin().await?;
        use_index(&mut tx, query.model, ef_search, MAX_SCAN_TUPLES).await?;
        let distance = format!("f.embedding::halfvec({}) <=> ", query.model.dimensions);
        let mut sql = QueryBuilder::<Postgres>::new("select f.id, (1 - (");
        sql.push(&distance).push_bind(halfvec(query.probe));
        sql.push("))::real as similarity from faces f where ");
        query.scope.push(&mut sql, Access::EachFace);
        sql.push(" order by ").push(&distance).push_bind(halfvec(query.probe));
        sql.push(" limit ").push_bind(query.limit);
        let faces = sql.build_query_as().fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(faces)
    }
}

#[async_trait::async_trait]
impl FaceIndex for Pgvector {
    fn name(&self) -> &'static str {
        "pgvector"
    }

    async fn is_prepared(&self, model: &EmbeddingModel) -> Result<bool, StoreError> {
        is_valid(&self.pool, model).await
    }

    /// The build waits for writers of `faces` and can take long for a large table.
    async fn prepare(&self, conn: &mut PgConnection, model: &EmbeddingModel) -> Result<(), StoreError> {
        // The statements contain only numbers, so nothing in them comes from a caller. Statistics
        // are disabled, because they would keep samples of erased embeddings.
        if is_valid(&mut *conn, model).await? {
            return Ok(());
        }
        let index = format!(
            "drop index if exists {0};
             create index {0} on faces using hnsw ((embedding::halfvec({1})) halfvec_cosine_ops)
                 with (m = {HNSW_LINKS}, ef_construction = {BUILD_CANDIDATES}) where model_id = {2};
             alter index {0} alter column 1 set statistics 0",
            index_name(model.id),
            model.dimensions,
            model.id
        );
        sqlx::raw_sql(AssertSqlSafe(index)).execute(conn).await?;
        Ok(())
    }

    async fn nearest(&self, query: &Nearest<'_>) -> Result<NearestFaces, StoreError> {
        let faces = match query.exact {
            true => index::nearest(&self.pool, query).await?,
            false => self.search(query).await?,
        };
        Ok(NearestFaces { faces, exact: query.exact })
    }

    async fn neighbours(&self, query: &Neighbours<'_>) -> Result<Vec<Pair>, StoreError> {
        if query.exact {
            return index::neighbours(&self.pool, query).await;
        }
        let mut tx = self.pool.begin().await?;
        use_index(&mut tx, query.model, NEIGHBOURS_EF_SEARCH, NEIGHBOURS_MAX_SCAN_TUPLES).await?;
        sqlx::raw_sql("set local statement_timeout = 0").execute(&mut *tx).await?;
        // Postgres can use the index only if the sort expression is the distance alone.
        let mut sql = index::neighbours_statement(query, &index::distance_sql(query));
        let pairs = sql.build_query_as().fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(index::sort_pairs(pairs))
    }

    /// Compares with every face, because the HNSW index is approximate.
    async fn all_similar(
        &self,
        conn: &mut PgConnection,
        query: &AllSimilar<'_>,
    ) -> Result<Vec<Similar>, StoreError> {
        index::all_similar(conn, query).await
    }
}

/// Prepares a transaction for a search in the index. Sorting is disabled, so that the planner must
/// use an index that returns rows in this order.
///
/// # Errors
/// Fails with `IndexUnavailable` if the index does not exist, or with the database's error.
async fn use_index(
    conn: &mut PgConnection,
    model: &EmbeddingModel,
    ef_search: i64,
    max_scan_tuples: i64,
) -> Result<(), StoreError> {
    // All statements are sent in one request, and only the first one returns a row. They contain
    // only numbers.
    let statements = format!(
        "select exists (select from pg_index where indexrelid = to_regclass('{}') and indisvalid);
         set local hnsw.iterative_scan = 'relaxed_order'; set local hnsw.ef_search = {ef_search};
         set local hnsw.max_scan_tuples = {max_scan_tuples}; set local enable_sort = off",
        index_name(model.id)
    );
    let row = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(conn).await?;
    let exists = row.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false);
    if !exists {
        let name = &model.name;
        return Err(StoreError::IndexUnavailable(format!(
            "pgvector: the index of {name} does not exist; `facecrawl index rebuild --index pgvector` builds it"
        )));
    }
    Ok(())
}

/// Returns whether the index exists and is valid. An interrupted `drop index concurrently` leaves
/// an index that is not valid, which no search uses.
async fn is_valid(db: impl PgExecutor<'_>, model: &EmbeddingModel) -> Result<bool, StoreError> {
    Ok(sqlx::query_scalar(
        "select exists (select from pg_index where indexrelid = to_regclass($1) and indisvalid)",
    )
    .bind(index_name(model.id))
    .fetch_one(db)
    .await?)
}

fn index_name(model: i32) -> String {
    format!("faces_embedding_hnsw_{model}")
}

/// Number of attempts to exchange an index, and the time between two of them.
const MAX_EXCHANGES: u32 = 60;
const EXCHANGE_PAUSE: Duration = Duration::from_secs(5);

/// Lets a build use three quarters of the memory that Postgres has for its pages. A build that
/// needs more memory continues on disk and is much slower. The default of Postgres, 64 MB, is
/// enough for 100,000 faces with 128 dimensions.
const BUILD_MEMORY: &str = "select set_config('maintenance_work_mem', greatest(
    pg_size_bytes(current_setting('maintenance_work_mem')), pg_size_bytes(current_setting('shared_buffers')) * 3 / 4) / 1024 || 'kB',
    false)";
/// The error code for a full disk, or for full shared memory of a container.
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
    /// Fails with the database's error. The earlier index, if it exists, remains.
    pub async fn rebuild(&self, model: &EmbeddingModel) -> Result<(), StoreError> {
        let (name, new_name) = (index_name(model.id), format!("{}_new", index_name(model.id)));
        // `concurrently` is not possible in a transaction, and the limit must not apply to it.
        let mut conn = self.pool.acquire().await?.detach();
        sqlx::raw_sql("set statement_timeout = 0").execute(&mut conn).await?;
        sqlx::raw_sql(BUILD_MEMORY).execute(&mut conn).await?;
        // The statements contain only numbers, so nothing in them comes from a caller.
        let drop_new = format!("drop index concurrently if exists {new_name}");
        let create_new = format!(
            "create index concurrently {new_name} on faces using hnsw ((embedding::halfvec({})) halfvec_cosine_ops)
                 with (m = {HNSW_LINKS}, ef_construction = {BUILD_CANDIDATES}) where model_id = {}",
            model.dimensions, model.id
        );
        sqlx::raw_sql(AssertSqlSafe(drop_new.clone())).execute(&mut conn).await?;
        if let Err(error) = sqlx::raw_sql(AssertSqlSafe(create_new.clone())).execute(&mut conn).await {
            // Several processes build the index in shared memory, which is small in a container.
            if error.as_database_error().and_then(|error| error.code()).as_deref() != Some(DISK_FULL) {
                return Err(error.into());
            }
            tracing::warn!(%error, "building the index with one process");
            sqlx::raw_sql("set max_parallel_maintenance_workers = 0").execute(&mut conn).await?;
            sqlx::raw_sql(AssertSqlSafe(drop_new)).execute(&mut conn).await?;
            sqlx::raw_sql(AssertSqlSafe(create_new)).execute(&mut conn).await?;
        }
        let statistics = format!("alter index {new_name} alter column 1 set statistics 0");
        sqlx::raw_sql(AssertSqlSafe(statistics)).execute(&mut conn).await?;
        // The exchange waits for a lock, and every other statement on the table waits behind it.
        let exchange = format!(
            "begin; set local lock_timeout = '1s'; drop index if exists {name}; alter index {new_name} rename to {name}; commit"
        );
        for attempt in 1.. {
            let result = sqlx::raw_sql(AssertSqlSafe(exchange.clone())).execute(&mut conn).await;
            match result {
                Ok(_) => return self.set_bulk_load(model.id, false).await,
                Err(_) if attempt < MAX_EXCHANGES => {
                    sqlx::raw_sql("rollback").execute(&mut conn).await?;
                    tokio::time::sleep(EXCHANGE_PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Drops the index of a model, because many faces are about to be stored. Only
    /// [`Self::rebuild`] builds it again.
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
        // `new_name` is the index of an interrupted build.
        let (name, new_name) = (index_name(model), format!("{}_new", index_name(model)));
        // `concurrently` waits for older transactions, such as a backup.
        let mut conn = self.pool.acquire().await?.detach();
        for statement in [
            "set statement_timeout = 0".to_owned(),
            format!("drop index concurrently if exists {name}"),
            format!("drop index concurrently if exists {new_name}"),
        ] {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut conn).await?;
        }
        Ok(())
    }
}
