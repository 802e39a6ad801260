//! A vector index in an engine outside the database. The engine returns candidates, which are
//! checked against the rows.
//!
//! Each candidate is compared again with its row, in the scope of the request, so a face that was
//! erased or moved is never returned, and similarities are those of the rows. The faces of the
//! latest changes are candidates too, so a new face is found before the engine contains it. Exact
//! searches compare in Postgres. A look-up of all similar faces also compares in Postgres, because
//! an erasure must not omit a face.
//!
//! [`ExternalIndex::step`] applies changes of rows to the engine. While the engine is not available
//! or a set is not complete, searches use the index of pgvector if it exists.
mod follow;
use crate::db::values::floats;
use crate::index::EmbeddingModel;
use crate::index::changes::{IndexLog, IndexSet};
use crate::index::engine::{
    EngineError, EngineFace, EngineFilter, EngineHit, EngineQuery, FaceSet, VectorEngine, search_candidates,
};
use crate::index::external::follow::{Row, read_rows};
use crate::index::scope::{Assignment, FaceFilter, FaceScope};
use crate::index::{
    AllSimilar, FaceIndex, Nearest, NearestFaces, Neighbours, Pair, Pgvector, Similar, changes,
};
use crate::{StoreError, db, index};
use follow::Progress;
pub use follow::StepOutcome;
use pgvector::HalfVector;
use sqlx::{PgConnection, PgPool};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use uuid::Uuid;

/// Number of candidates that are requested beyond the limit of a query: a percentage of the limit,
/// and the minimum. The engine may still contain deleted faces.
const EXTRA_PERCENT: i64 = 10;
const MIN_EXTRA: i64 = 10;
/// Number of candidates per requested face of a search in a crawl or on a site. The engine does not
/// store the crawls and sites of a face, so the rows of the candidates decide. This is enough if
/// about a tenth of the collection's faces are in the crawl or on the site.
const CANDIDATES_TO_CHECK: i64 = 20;
/// Maximum limit with which a search in a crawl or on a site uses the engine. With a higher limit,
/// it costs too much to check the candidates.
const MAX_LIMIT_TO_CHECK: i64 = 100;
/// Maximum number of candidates of a look-up of neighbours, unless its limit needs more. One
/// request contains many such look-ups, and its time is limited.
const NEIGHBOURS_CANDIDATES: usize = 512;
/// Number of the latest changes of a collection whose faces are candidates of every search in it. A
/// comparison with this many faces takes a few milliseconds.
const LATEST_CHANGES: i64 = 4_000;
/// Maximum time that a look-up of neighbours waits until the engine contains the queried faces.
const NEIGHBOURS_WAIT: Duration = Duration::from_secs(30);
/// Time between two reads of the recorded changes by a caller that waits for them.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct ExternalIndex {
    pool: PgPool,
    engine: Arc<dyn VectorEngine>,
    pgvector: Pgvector,
    config: Config,
    progress: Arc<Mutex<Progress>>,
}

#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Age of a deletion after which a set is built again, so that its files contain no data of the
    /// deleted face.
    pub rebuild_age: Duration,
    /// Number of candidates that a search in a graph keeps. `None`: the number depends on the size
    /// of the set; see [`search_candidates`].
    pub candidates: Option<usize>,
    /// Whether searches use the index of pgvector while the engine is not available.
    pub allow_fallback: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { rebuild_age: Duration::from_secs(24 * 3600), candidates: None, allow_fallback: true }
    }
}

/// The state in the database that a search of the engine needs.
#[derive(sqlx::FromRow)]
struct SearchState {
    /// The set that searches use.
    set: Option<Uuid>,
    /// The number of its faces when it was last measured.
    faces: i64,
    /// The faces of the latest changes.
    latest: Vec<Uuid>,
}

impl ExternalIndex {
    pub fn new(pool: PgPool, engine: Arc<dyn VectorEngine>) -> Self {
        let pgvector = Pgvector::new(pool.clone());
        Self { pool, engine, pgvector, config: Config::default(), progress: Arc::default() }
    }

    #[must_use]
    pub fn with_config(mut self, config: Config) -> Self {
        self.config = config;
        self.pgvector = self.pgvector.with_candidates(config.candidates);
        self
    }

    fn unavailable(&self, reason: impl std::fmt::Display) -> StoreError {
        StoreError::IndexUnavailable(format!("{}: {reason}", self.engine.name()))
    }

    /// Returns the set that searches use, and the faces of the latest changes. The caller searches
    /// the engine afterwards, so it misses no change that is applied in between.
    async fn search_state(&self, scope: &FaceScope) -> Result<SearchState, StoreError> {
        Ok(sqlx::query_as(
            "select s.id as set, coalesce(s.faces, 0) as faces,
                    array(select face_id from index_changes
                          where model_id = $2 and collection_id = $3 and not deleted
                          order by change desc limit $4) as latest
             from (select) one left join index_sets s
                 on s.index_name = $1 and s.model_id = $2 and s.state = 'serving' and not (s.outdated and $5)",
        )
        .bind(self.engine.name())
        .bind(scope.model_id)
        .bind(scope.collection_id)
        .bind(LATEST_CHANGES)
        // A search in a period cannot use an outdated set, because most of its faces lack the time
        // at which they were stored.
        .bind(engine_filter(scope).has_period())
        .fetch_one(&self.pool)
        .await?)
    }

    /// Returns the engine's faces that are most similar to each of the probes, and the faces of the
    /// latest changes. If the set was replaced meanwhile, searches the new set.
    async fn candidates(
        &self,
        scope: &FaceScope,
        model: &EmbeddingModel,
        probes: Vec<Vec<f32>>,
        limit: usize,
        max_candidates: usize,
    ) -> Result<(Vec<Vec<EngineHit>>, Vec<Uuid>), StoreError> {
        let mut state = self.search_state(scope).await?;
        loop {
            let id = state.set.ok_or_else(|| self.unavailable("the index is being built"))?;
            let set = FaceSet { id, dimensions: usize::try_from(model.dimensions).unwrap_or_default() };
            let faces = usize::try_from(state.faces).unwrap_or_default();
            let candidates = search_candidates(self.config.candidates, limit, faces, max_candidates);
            let query = |probe: &Vec<f32>| EngineQuery {
                filter: engine_filter(scope),
                probe: probe.clone(),
                limit,
                candidates,
            };
            match self.engine.search(&set, probes.iter().map(query).collect()).await {
                Ok(hits) => return Ok((hits, state.latest)),
                Err(EngineError(reason)) => {
                    state = self.search_state(scope).await?;
                    if state.set == Some(id) {
                        return Err(self.unavailable(reason));
                    }
                }
            }
        }
    }

    /// Returns fewer faces than requested if too few of the engine's candidates are in scope.
    async fn nearest_by_engine(&self, query: &Nearest<'_>) -> Result<NearestFaces, StoreError> {
        let candidates = match requires_rows(query.scope) {
            true => query.limit.saturating_mul(CANDIDATES_TO_CHECK),
            false => query.limit.saturating_add((query.limit / (100 / EXTRA_PERCENT)).max(MIN_EXTRA)),
        };
        let limit = usize::try_from(candidates).unwrap_or_default();
        let probes = vec![query.probe.to_vec()];
        let (found, latest) = self.candidates(query.scope, query.model, probes, limit, usize::MAX).await?;
        let found: HashSet<Uuid> = found.into_iter().flatten().map(|face| face.id).collect();
        let ids: Vec<Uuid> = latest.into_iter().chain(found.iter().copied()).collect();
        let mut faces = index::check_candidates(&self.pool, query, &ids).await?;
        // If too few of the engine's candidates remain, the latest faces could hide that the result
        // is incomplete. Without these faces it is too short, so the caller searches in another
        // way.
        if (faces.iter().filter(|face| found.contains(&face.id)).count() as i64) < query.limit {
            faces.retain(|face| found.contains(&face.id));
        }
        Ok(NearestFaces { faces, exact: false })
    }

    /// Searches the engine for faces of the collection, and keeps those of the crawl and the site.
    /// If they are too few, searches the index of pgvector, which continues until it has enough
    /// faces or reaches its limit of entries. Without that index, compares with all faces in scope.
    async fn nearest_by_rows(&self, query: &Nearest<'_>) -> Result<NearestFaces, StoreError> {
        if query.limit <= MAX_LIMIT_TO_CHECK {
            match self.nearest_by_engine(query).await {
                Ok(found) if found.faces.len() as i64 >= query.limit => return Ok(found),
                Ok(_) => {}
                Err(error) if self.can_fall_back(&error, query.model).await? => {}
                Err(error) => return Err(error),
            }
        }
        match self.pgvector.is_built(query.model).await? {
            true => self.pgvector.nearest(query).await,
            false => self.nearest(&Nearest { exact: true, ..query.clone() }).await,
        }
    }

    async fn neighbours_by_engine(&self, query: &Neighbours<'_>) -> Result<Vec<Pair>, StoreError> {
        // Fails at once if the engine is not available, instead of waiting for its changes.
        self.call(self.engine.sets()).await?;
        // Waits until the engine contains the queried faces. Of two new similar faces, at least one
        // query then finds the other.
        self.wait_for(query.faces).await?;
        let (faces, probes): (Vec<Uuid>, Vec<Vec<f32>>) =
            self.embeddings(query.scope, query.faces).await?.into_iter().unzip();
        // The engine returns the queried face too.
        let limit = usize::try_from(query.limit.saturating_add(1)).unwrap_or_default();
        let (hits, _) =
            self.candidates(query.scope, query.model, probes, limit, NEIGHBOURS_CANDIDATES).await?;
        let pairs: Vec<(Uuid, Uuid)> = faces
            .iter()
            .zip(hits)
            .flat_map(|(face, hits)| hits.into_iter().map(|neighbour| (*face, neighbour.id)))
            .collect();
        index::check_pairs(&self.pool, query, &pairs).await
    }

    /// Returns the embeddings of the faces that the collection and the model still have.
    async fn embeddings(
        &self,
        scope: &FaceScope,
        faces: &[Uuid],
    ) -> Result<HashMap<Uuid, Vec<f32>>, StoreError> {
        let rows: Vec<(Uuid, HalfVector)> = sqlx::query_as(
            "select id, embedding from faces where id = any($1) and model_id = $2 and collection_id = $3",
        )
        .bind(faces)
        .bind(scope.model_id)
        .bind(scope.collection_id)
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|(id, embedding)| (id, floats(&embedding))).collect())
    }

    /// Waits until the engine has applied every change of the faces.
    async fn wait_for(&self, faces: &[Uuid]) -> Result<(), StoreError> {
        let query = "select exists (select from index_changes where face_id = any($1))";
        let started = Instant::now();
        while sqlx::query_scalar(query).bind(faces).fetch_one(&self.pool).await? {
            if started.elapsed() > NEIGHBOURS_WAIT {
                return Err(self.unavailable("the index lacks the faces whose neighbours were requested"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Returns whether a query that the engine could not answer can use the index of pgvector.
    async fn can_fall_back(&self, error: &StoreError, model: &EmbeddingModel) -> Result<bool, StoreError> {
        let StoreError::IndexUnavailable(reason) = error else { return Ok(false) };
        let is_possible = self.config.allow_fallback && self.pgvector.is_built(model).await?;
        if is_possible {
            tracing::warn!(reason, "search index not available; using the index of pgvector");
        }
        Ok(is_possible)
    }
}

#[async_trait::async_trait]
impl FaceIndex for ExternalIndex {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    async fn nearest(&self, query: &Nearest<'_>) -> Result<NearestFaces, StoreError> {
        if query.exact {
            let faces = index::nearest(&self.pool, query).await?;
            return Ok(NearestFaces { faces, exact: true });
        }
        if requires_rows(query.scope) {
            return self.nearest_by_rows(query).await;
        }
        match self.nearest_by_engine(query).await {
            Err(error) if self.can_fall_back(&error, query.model).await? => {
                self.pgvector.nearest(query).await
            }
            result => result,
        }
    }

    async fn neighbours(&self, query: &Neighbours<'_>) -> Result<Vec<Pair>, StoreError> {
        if query.exact {
            return index::neighbours(&self.pool, query).await;
        }
        match self.neighbours_by_engine(query).await {
            Err(error) if self.can_fall_back(&error, query.model).await? => {
                self.pgvector.neighbours(query).await
            }
            result => result,
        }
    }

    /// Compares in Postgres. The engine can lack faces even if all recorded changes are applied,
    /// for example while older faces are copied.
    async fn all_similar(
        &self,
        conn: &mut PgConnection,
        query: &AllSimilar<'_>,
    ) -> Result<Vec<Similar>, StoreError> {
        index::all_similar(conn, query).await
    }

    async fn lag(&self) -> Result<Duration, StoreError> {
        let Some(oldest) = IndexLog(&self.pool).oldest_change().await? else { return Ok(Duration::ZERO) };
        Ok((db::clock(&self.pool).await? - oldest).try_into().unwrap_or(Duration::ZERO))
    }

    async fn wait_for_changes(&self, within: Duration) -> Result<(), StoreError> {
        // A caller learns of a change after its commit. The changes that are visible now therefore
        // include every change that the caller knows.
        let last: Option<i64> =
            sqlx::query_scalar("select max(change) from index_changes").fetch_one(&self.pool).await?;
        let started = Instant::now();
        while let Some(last) = last {
            let is_pending: bool =
                sqlx::query_scalar("select exists (select from index_changes where change <= $1)")
                    .bind(last)
                    .fetch_one(&self.pool)
                    .await?;
            if !is_pending {
                break;
            }
            if started.elapsed() > within {
                return Err(self.unavailable("the index is behind the changes of faces"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

/// Returns the filters of the scope that an engine can apply.
fn engine_filter(scope: &FaceScope) -> EngineFilter {
    EngineFilter {
        collection_id: scope.collection_id,
        min_quality: scope.filter.min_quality,
        omit_failed: scope.omit_failed,
        with_subject: scope.assignment != Assignment::Any,
        since_us: scope.filter.since.map(to_microseconds),
        until_us: scope.filter.until.map(to_microseconds),
    }
}

/// Returns the time in microseconds since 1970, as precise as Postgres stores it.
fn to_microseconds(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos().div_euclid(1_000)).unwrap_or(i64::MAX)
}

/// Returns whether a part of the scope can be applied only to the rows.
fn requires_rows(scope: &FaceScope) -> bool {
    let FaceFilter { crawl_id, site, .. } = &scope.filter;
    let is_in_engine = matches!(scope.assignment, Assignment::Any | Assignment::Subject);
    crawl_id.is_some() || site.is_some() || !is_in_engine
}

/// Number of faces that are compared in one step.
const FACES_PER_PAGE: usize = 2_000;
/// Maximum difference of a component of an embedding. The engine normalises embeddings and rounds
/// them to half precision.
const ROUNDING: f32 = 2e-3;

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CheckResult {
    pub rows: u64,
    /// Number of faces in the engine.
    pub faces: u64,
    /// Number of rows that the engine lacks.
    pub missing: u64,
    /// Number of faces in the engine without a row.
    pub surplus: u64,
    /// Number of faces whose collection, subject, quality, time or embedding differs from the row.
    pub different: u64,
}

impl CheckResult {
    /// Returns whether the engine contains exactly the faces of the rows.
    pub fn is_equal(&self) -> bool {
        self.missing == 0 && self.surplus == 0 && self.different == 0
    }
}

impl ExternalIndex {
    /// Compares the next faces of a set with their rows, and records the result after the last
    /// ones. Faces with a change that the engine has not yet applied are not differences. Returns
    /// the number of rows that were compared.
    async fn check_page(&self, set: &IndexSet, progress: &mut Progress) -> Result<StepOutcome, StoreError> {
        let Some(requested) = set.check_requested_at else { return Ok(StepOutcome::Applied(0)) };
        let previous = progress.checks.get(&set.id).filter(|(at, _, _)| *at == requested);
        let (mut after, mut checked) =
            previous.map(|(_, after, checked)| (*after, checked.clone())).unwrap_or_default();
        // No change is applied to the engine during this transaction.
        let Some(mut tx) = self.begin_exclusive().await? else { return Ok(StepOutcome::Busy) };
        let mut page = self.call(self.engine.page(&set.face_set(), after, FACES_PER_PAGE)).await?;
        let ids: Vec<Uuid> =
            sqlx::query_scalar("select id from faces where id > $1 and model_id = $2 order by id limit $3")
                .bind(after)
                .bind(set.model_id)
                .bind(FACES_PER_PAGE as i64)
                .fetch_all(tx.conn())
                .await?;
        // Cuts both pages at the smaller last id, so that they cover the same range of ids.
        let page_end = page.last().filter(|_| page.len() == FACES_PER_PAGE).map(|face| face.id);
        let rows_end = ids.last().filter(|_| ids.len() == FACES_PER_PAGE).copied();
        let end = page_end.into_iter().chain(rows_end).min();
        page.retain(|face| end.is_none_or(|end| face.id <= end));
        let ids: Vec<Uuid> = ids.into_iter().filter(|id| end.is_none_or(|end| *id <= end)).collect();
        let rows = read_rows(tx.conn(), &ids).await?;
        let stored: Vec<EngineFace> =
            rows.into_iter().filter(|row| row.model_id == set.model_id).map(Row::into_engine_face).collect();
        // This statement runs last, so it includes the changes made meanwhile.
        let pending: HashSet<Uuid> = sqlx::query_scalar(
            "select face_id from index_changes where model_id = $1 and face_id > $2 and ($3::uuid is null or face_id <= $3)",
        )
        .bind(set.model_id)
        .bind(after)
        .bind(end)
        .fetch_all(tx.conn())
        .await?
        .into_iter()
        .collect();
        let compared = stored.len();
        compare(&mut checked, page, stored, &pending);
        if let Some(end) = end {
            after = end;
            progress.checks.insert(set.id, (requested, after, checked));
        } else {
            progress.checks.remove(&set.id);
            let result = serde_json::to_value(&checked).unwrap_or_default();
            changes::record_check(tx.conn(), set.id, requested, &result).await?;
        }
        tx.commit().await?;
        Ok(StepOutcome::Applied(compared))
    }
}

fn compare(
    checked: &mut CheckResult,
    page: Vec<EngineFace>,
    stored: Vec<EngineFace>,
    pending: &HashSet<Uuid>,
) {
    checked.rows += stored.len() as u64;
    checked.faces += page.len() as u64;
    let mut faces: BTreeMap<Uuid, EngineFace> = page.into_iter().map(|face| (face.id, face)).collect();
    for row in stored {
        let face = faces.remove(&row.id);
        if pending.contains(&row.id) {
            continue;
        }
        match face {
            None => checked.missing += 1,
            Some(face) if !equals(&face, &row) => checked.different += 1,
            Some(_) => {}
        }
    }
    checked.surplus += faces.keys().filter(|id| !pending.contains(id)).count() as u64;
}

/// Returns whether the engine's face equals the row. The length of the embedding is ignored.
fn equals(face: &EngineFace, row: &EngineFace) -> bool {
    let length = row.embedding.iter().map(|x| x * x).sum::<f32>().sqrt();
    face.collection_id == row.collection_id
        && (face.has_subject, face.failed_quality) == (row.has_subject, row.failed_quality)
        && (face.quality, face.stored_us) == (row.quality, row.stored_us)
        && face.embedding.len() == row.embedding.len()
        && face.embedding.iter().zip(&row.embedding).all(|(a, b)| (a - b / length).abs() <= ROUNDING)
}
