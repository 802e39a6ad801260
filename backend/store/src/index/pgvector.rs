//! The index in Postgres itself: one partial HNSW index of pgvector for each embedding model with
//! many faces. [`crate::index::builds`] decides when it is built. Until then, searches are exact.
//!
//! Similarity is the cosine: 1 minus pgvector's cosine distance. A statement contains the model's
//! id as a literal, because the planner uses a partial index only if it sees the condition.
use super::{AllSimilar, FaceIndex, Nearest, NearestFaces, Neighbours, Pair, Similar};
use crate::db::values::halfvec;
use crate::index::EmbeddingModel;
use crate::index::scope::Access;
use crate::{StoreError, index};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, QueryBuilder, Row, Transaction};
use std::time::{Duration, Instant};

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

    /// Searches the model's index; `None` if it is not built. The scan continues until enough
    /// results pass the filters or the scan limit is reached.
    async fn search(&self, query: &Nearest<'_>) -> Result<Option<Vec<Similar>>, StoreError> {
        let ef_search =
            query.limit.saturating_mul(EF_PER_RESULT).max(self.candidates).min(MAX_CANDIDATES as i64);
        let Some(mut tx) = self.begin_search(query.model, ef_search, MAX_SCAN_TUPLES).await? else {
            return Ok(None);
        };
        let distance = format!("f.embedding::halfvec({}) <=> ", query.model.dimensions);
        let mut sql = QueryBuilder::<Postgres>::new("select f.id, (1 - (");
        sql.push(&distance).push_bind(halfvec(query.probe));
        sql.push("))::real as similarity from faces f where ");
        query.scope.push(&mut sql, Access::EachFace);
        sql.push(" order by ").push(&distance).push_bind(halfvec(query.probe));
        sql.push(" limit ").push_bind(query.limit);
        let faces = sql.build_query_as().fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(Some(faces))
    }

    /// Begins a transaction for a search in the index; `None` if the index is not built. Sorting is
    /// disabled, so that the planner must use an index that returns rows in this order.
    async fn begin_search(
        &self,
        model: &EmbeddingModel,
        ef_search: i64,
        max_scan_tuples: i64,
    ) -> Result<Option<Transaction<'static, Postgres>>, StoreError> {
        let mut tx = self.pool.begin().await?;
        // All statements are sent in one request, and only the first one returns a row. They
        // contain only numbers.
        let statements = format!(
            "select exists (select from pg_index where indexrelid = to_regclass('{}') and indisvalid);
             set local hnsw.iterative_scan = 'relaxed_order'; set local hnsw.ef_search = {ef_search};
             set local hnsw.max_scan_tuples = {max_scan_tuples}; set local enable_sort = off",
            index_name(model.id)
        );
        let row = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(&mut *tx).await?;
        let is_built = row.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false);
        if is_built {
            return Ok(Some(tx));
        }
        tx.rollback().await?;
        Ok(None)
    }
}

#[async_trait::async_trait]
impl FaceIndex for Pgvector {
    fn name(&self) -> &'static str {
        "pgvector"
    }

    async fn nearest(&self, query: &Nearest<'_>) -> Result<NearestFaces, StoreError> {
        if !query.exact
            && let Some(faces) = self.search(query).await?
        {
            return Ok(NearestFaces { faces, exact: false });
        }
        Ok(NearestFaces { faces: index::nearest(&self.pool, query).await?, exact: true })
    }

    async fn neighbours(&self, query: &Neighbours<'_>) -> Result<Vec<Pair>, StoreError> {
        if query.exact {
            return index::neighbours(&self.pool, query).await;
        }
        let search = self.begin_search(query.model, NEIGHBOURS_EF_SEARCH, NEIGHBOURS_MAX_SCAN_TUPLES).await?;
        let Some(mut tx) = search else { return index::neighbours(&self.pool, query).await };
        sqlx::raw_sql("set local statement_timeout = 0").execute(&mut *tx).await?;
        // Postgres can use the index only if the sort expression is the distance alone.
        let mut sql = index::neighbours_statement(query, &index::distance_sql(query));
        let pairs = sql.build_query_as().fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(index::sort_pairs(pairs))
    }

    /// Builds the index if it is missing, because this costs much less than to compare each of many
    /// faces with every face. Does nothing during a bulk load of the model. Waits until no other
    /// process builds or drops an index.
    async fn prepare_neighbours(&self, model: i32) -> Result<(), StoreError> {
        if self.missing(model).await?.is_some() {
            let conn = self.lock().await?;
            self.build_missing_locked(conn, model).await?;
        }
        Ok(())
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

fn index_name(model: i32) -> String {
    format!("faces_embedding_hnsw_{model}")
}

/// The name of the index while it is built.
fn new_index_name(model: i32) -> String {
    format!("{}_new", index_name(model))
}

/// Number of attempts to exchange an index, and the time between two of them.
const MAX_EXCHANGES: u32 = 60;
const EXCHANGE_PAUSE: Duration = Duration::from_secs(5);

/// The advisory lock of the session that builds or drops an index.
const TRY_LOCK: &str = "select pg_try_advisory_lock(hashtextextended('facecrawl.hnsw_index', 0))";
const UNLOCK: &str = "select pg_advisory_unlock(hashtextextended('facecrawl.hnsw_index', 0))";
/// Time between two attempts to get the lock.
const LOCK_PAUSE: Duration = Duration::from_secs(1);

/// Settings of a session that builds or drops an index. The time limit of statements does not apply
/// to it. The server stops a build soon after its process was killed, and releases the lock.
const SESSION: &str = "set statement_timeout = 0; set client_connection_check_interval = '10s'";
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
    pub dimensions: i32,
    /// Its size in bytes; `None` if it does not exist.
    pub bytes: Option<i64>,
    /// Whether searches can use it. An interrupted `drop index concurrently` leaves an index that
    /// they cannot use.
    pub complete: bool,
    /// Whether a build has begun and not ended. It may have been interrupted.
    pub building: bool,
    /// Whether an operator has dropped the index to store many faces.
    pub bulk_load: bool,
}

impl Pgvector {
    /// Returns the index of each model, in the order of the models.
    pub async fn indexes(&self) -> Result<Vec<HnswIndex>, StoreError> {
        Ok(sqlx::query_as(
            "select m.id as model_id, m.name as model, m.dimensions, pg_relation_size(i.indexrelid) as bytes,
                    coalesce(i.indisvalid, false) as complete,
                    to_regclass('faces_embedding_hnsw_' || m.id || '_new') is not null as building, m.bulk_load
             from embedding_models m
             left join pg_index i on i.indexrelid = to_regclass('faces_embedding_hnsw_' || m.id)
             order by m.id",
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Returns the number of faces with embeddings of the model, in all collections, or `max` if it
    /// is greater. Stops counting there.
    pub async fn count_faces(&self, model: i32, max: i64) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar(
            "select count(*) from (select from faces where model_id = $1 limit $2) counted",
        )
        .bind(model)
        .bind(max)
        .fetch_one(&self.pool)
        .await?)
    }

    /// Returns whether searches can use the index of the model.
    pub async fn is_built(&self, model: &EmbeddingModel) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select exists (select from pg_index where indexrelid = to_regclass($1) and indisvalid)",
        )
        .bind(index_name(model.id))
        .fetch_one(&self.pool)
        .await?)
    }

    /// Builds the index of a model again, or for the first time, and ends a bulk load of the model.
    /// Faces can be stored and searched meanwhile. May take hours. Waits until no other process
    /// builds or drops an index.
    ///
    /// # Errors
    /// Fails with the database's error. The earlier index, if it exists, remains.
    pub async fn rebuild(&self, model: &EmbeddingModel) -> Result<(), StoreError> {
        let mut conn = self.lock().await?;
        build(&mut conn, model.id, model.dimensions).await?;
        set_bulk_load(&mut conn, model.id, false).await?;
        unlock(conn).await
    }

    /// Builds the index of a model if it is missing. Does nothing during a bulk load of the model,
    /// or while another process builds or drops an index. Returns whether the index was built.
    ///
    /// # Errors
    /// Fails with the database's error. The next call builds the index.
    pub(crate) async fn build_missing(&self, model: i32) -> Result<bool, StoreError> {
        match self.try_lock().await? {
            Some(conn) => self.build_missing_locked(conn, model).await,
            None => Ok(false),
        }
    }

    /// Builds the index of a model in a session with the lock, and releases the lock.
    async fn build_missing_locked(&self, mut conn: PgConnection, model: i32) -> Result<bool, StoreError> {
        // Another process may have built the index, or begun the bulk load, before this one got the
        // lock.
        let index = self.missing(model).await?;
        if let Some(index) = &index {
            let started = Instant::now();
            build(&mut conn, model, index.dimensions).await?;
            let seconds = started.elapsed().as_secs_f64();
            tracing::info!(model = index.model, seconds, "built the search index");
        }
        unlock(conn).await?;
        Ok(index.is_some())
    }

    /// Returns the entry of a model in [`Self::indexes`] if searches cannot use its index, and no
    /// bulk load of the model has begun.
    async fn missing(&self, model: i32) -> Result<Option<HnswIndex>, StoreError> {
        let mut indexes = self.indexes().await?.into_iter();
        Ok(indexes.find(|index| index.model_id == model && !index.complete && !index.bulk_load))
    }

    /// Drops what an interrupted build of a model has left. Does nothing while a process builds or
    /// drops an index.
    pub(crate) async fn drop_interrupted(&self, model: i32) -> Result<(), StoreError> {
        let Some(mut conn) = self.try_lock().await? else { return Ok(()) };
        drop_concurrently(&mut conn, &new_index_name(model)).await?;
        unlock(conn).await
    }

    /// Drops the index of a model, because many faces are about to be stored. Only
    /// [`Self::rebuild`] builds it again.
    pub async fn drop_for_bulk_load(&self, model: i32) -> Result<(), StoreError> {
        let mut conn = self.lock().await?;
        set_bulk_load(&mut conn, model, true).await?;
        drop_indexes(&mut conn, model).await?;
        unlock(conn).await
    }

    /// Drops the index of a model. Does nothing if it does not exist. Waits until no other process
    /// builds or drops an index.
    pub async fn drop_index(&self, model: i32) -> Result<(), StoreError> {
        let mut conn = self.lock().await?;
        drop_indexes(&mut conn, model).await?;
        unlock(conn).await
    }

    /// Opens a session with the lock. Repeats the attempt instead of waiting in a statement,
    /// because `create index concurrently` waits for the end of every older statement.
    async fn lock(&self) -> Result<PgConnection, StoreError> {
        let mut is_waiting = false;
        loop {
            if let Some(conn) = self.try_lock().await? {
                return Ok(conn);
            }
            if !std::mem::replace(&mut is_waiting, true) {
                tracing::info!("waiting for another process that builds or drops a search index");
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
    }

    /// Opens a session with the lock; `None` if another session has it.
    async fn try_lock(&self) -> Result<Option<PgConnection>, StoreError> {
        // The session does not return to the pool, not even if this call is cancelled, so the lock
        // ends with it.
        let mut conn = self.pool.acquire().await?.detach();
        if !sqlx::query_scalar(TRY_LOCK).fetch_one(&mut conn).await? {
            conn.close().await?;
            return Ok(None);
        }
        sqlx::raw_sql(SESSION).execute(&mut conn).await?;
        Ok(Some(conn))
    }
}

/// Releases the lock, so that it is free when this call returns. The server also releases it some
/// time after a session ended.
async fn unlock(mut conn: PgConnection) -> Result<(), StoreError> {
    sqlx::raw_sql(UNLOCK).execute(&mut conn).await?;
    Ok(conn.close().await?)
}

/// Builds the index of a model beside an earlier one, which it then replaces.
async fn build(conn: &mut PgConnection, model: i32, dimensions: i32) -> Result<(), StoreError> {
    let (name, new_name) = (index_name(model), new_index_name(model));
    sqlx::raw_sql(BUILD_MEMORY).execute(&mut *conn).await?;
    // The statements contain only numbers, so nothing in them comes from a caller.
    let create_new = format!(
        "create index concurrently {new_name} on faces using hnsw ((embedding::halfvec({dimensions})) halfvec_cosine_ops)
             with (m = {HNSW_LINKS}, ef_construction = {BUILD_CANDIDATES}) where model_id = {model}"
    );
    // An interrupted build leaves an incomplete index.
    drop_concurrently(&mut *conn, &new_name).await?;
    if let Err(error) = sqlx::raw_sql(AssertSqlSafe(create_new.clone())).execute(&mut *conn).await {
        // Several processes build the index in shared memory, which is small in a container.
        if error.as_database_error().and_then(|error| error.code()).as_deref() != Some(DISK_FULL) {
            return Err(error.into());
        }
        tracing::warn!(%error, "building the index with one process");
        sqlx::raw_sql("set max_parallel_maintenance_workers = 0").execute(&mut *conn).await?;
        drop_concurrently(&mut *conn, &new_name).await?;
        sqlx::raw_sql(AssertSqlSafe(create_new)).execute(&mut *conn).await?;
    }
    // Statistics would keep samples of erased embeddings.
    let statistics = format!("alter index {new_name} alter column 1 set statistics 0");
    sqlx::raw_sql(AssertSqlSafe(statistics)).execute(&mut *conn).await?;
    // The exchange waits for a lock, and every other statement on the table waits behind it.
    let exchange = format!(
        "begin; set local lock_timeout = '1s'; drop index if exists {name}; alter index {new_name} rename to {name}; commit"
    );
    for attempt in 1.. {
        let result = sqlx::raw_sql(AssertSqlSafe(exchange.clone())).execute(&mut *conn).await;
        match result {
            Ok(_) => break,
            Err(_) if attempt < MAX_EXCHANGES => {
                sqlx::raw_sql("rollback").execute(&mut *conn).await?;
                tokio::time::sleep(EXCHANGE_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Drops the index of a model, and what an interrupted build has left.
async fn drop_indexes(conn: &mut PgConnection, model: i32) -> Result<(), StoreError> {
    drop_concurrently(&mut *conn, &index_name(model)).await?;
    drop_concurrently(conn, &new_index_name(model)).await
}

/// Drops an index if it exists. Waits for older transactions, such as a backup.
async fn drop_concurrently(conn: &mut PgConnection, name: &str) -> Result<(), StoreError> {
    let statement = format!("drop index concurrently if exists {name}");
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(conn).await?;
    Ok(())
}

async fn set_bulk_load(conn: &mut PgConnection, model: i32, bulk_load: bool) -> Result<(), StoreError> {
    sqlx::query("update embedding_models set bulk_load = $2 where id = $1 and bulk_load <> $2")
        .bind(model)
        .bind(bulk_load)
        .execute(conn)
        .await?;
    Ok(())
}
