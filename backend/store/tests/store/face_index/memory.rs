//! Engines in memory: one that compares with every stored face, and one that returns wrong
//! candidates.
use crate::face_index::Implementation;
use domain::IndexSetState;
use sqlx::PgPool;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use store::Store;
use store::index::changes::IndexSet;
use store::index::engine::{
    EngineError, EngineFace, EngineFilter, EngineHit, EngineQuery, FaceSet, SetInfo, Update, VectorEngine,
};
use store::index::external::{ExternalIndex, StepOutcome};
use testing::TestDatabase;
use uuid::Uuid;

/// The index that [`crate::face_index::suite`] tests.
pub(crate) struct Memory(ExternalIndex);

impl Implementation for Memory {
    async fn start(db: &TestDatabase) -> (Self, Store) {
        let (index, store) = start(db, Arc::new(Engine::default())).await;
        (Self(index), store)
    }

    async fn catch_up(&self) {
        catch_up(&self.0).await;
    }
}

/// Starts to record changes, and returns the index of the engine and a store that uses it.
pub(crate) async fn start(db: &TestDatabase, engine: Arc<dyn VectorEngine>) -> (ExternalIndex, Store) {
    let index = ExternalIndex::new(db.store().pool().clone(), engine);
    index.take_over().await.unwrap();
    (index.clone(), db.store().with_index(Arc::new(index)))
}

/// Applies all changes, in small steps, until searches use the engine for every model.
pub(crate) async fn catch_up(index: &ExternalIndex) {
    let mut idle = 0;
    // After the last copy, one step lets searches use a set, and the next one deletes the old set.
    while idle < 3 {
        match index.step(70).await.unwrap() {
            StepOutcome::Applied(0) => idle += 1,
            _ => idle = 0,
        }
    }
}

/// Returns the set that searches use for a model; if there is none, the set that is being built.
pub(crate) async fn set_of(store: &Store, model: i32) -> Option<IndexSet> {
    let mut conn = store.pool().acquire().await.unwrap();
    let mut sets = store.index().sets(&mut conn).await.unwrap();
    sets.retain(|set| set.model_id == model && set.state != IndexSetState::Retired);
    sets.sort_by_key(|set| set.state == IndexSetState::Serving);
    sets.pop()
}

/// An engine in memory: its faces by set. `faults` changes or fails its calls.
#[derive(Debug)]
pub(crate) struct Engine<F = ()> {
    id: Uuid,
    faces: Mutex<HashMap<Uuid, BTreeMap<Uuid, EngineFace>>>,
    pub(crate) faults: F,
}

impl Default for Engine {
    fn default() -> Self {
        Self::with(())
    }
}

impl<F> Engine<F> {
    pub(crate) fn with(faults: F) -> Self {
        Self { id: Uuid::now_v7(), faces: Mutex::default(), faults }
    }

    pub(crate) async fn faces(&self, store: &Store, model: i32) -> BTreeMap<Uuid, EngineFace> {
        match set_of(store, model).await {
            Some(set) => self.faces_of_set(set.id).unwrap_or_default(),
            None => BTreeMap::new(),
        }
    }

    fn faces_of_set(&self, set: Uuid) -> Result<BTreeMap<Uuid, EngineFace>, EngineError> {
        let sets = self.faces.lock().unwrap();
        sets.get(&set).cloned().ok_or_else(|| EngineError(format!("there is no set {set}")))
    }
}

fn passes(face: &EngineFace, filter: &EngineFilter) -> bool {
    face.collection_id == filter.collection_id
        && filter.min_quality.is_none_or(|minimum| face.quality.is_some_and(|quality| quality >= minimum))
        && !(filter.omit_failed && face.failed_quality)
        && (!filter.with_subject || face.has_subject)
        && filter.since_us.is_none_or(|since| face.stored_us >= since)
        && filter.until_us.is_none_or(|until| face.stored_us < until)
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}

#[async_trait::async_trait]
impl<F: Faults> VectorEngine for Engine<F> {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn server_ids(&self) -> Result<Vec<Uuid>, EngineError> {
        Ok(vec![self.id])
    }

    async fn claim(&self, _: Option<Uuid>) -> Result<Uuid, EngineError> {
        Ok(self.id)
    }

    async fn store_server_id(&self, _: Uuid) -> Result<(), EngineError> {
        Ok(())
    }

    async fn sets(&self) -> Result<Vec<Uuid>, EngineError> {
        self.faults.check()?;
        Ok(self.faces.lock().unwrap().keys().copied().collect())
    }

    async fn create(&self, set: &FaceSet) -> Result<(), EngineError> {
        self.faults.check()?;
        self.faces.lock().unwrap().entry(set.id).or_default();
        Ok(())
    }

    async fn remove(&self, set: Uuid) -> Result<(), EngineError> {
        self.faults.check()?;
        self.faces.lock().unwrap().remove(&set);
        Ok(())
    }

    async fn search(
        &self,
        set: &FaceSet,
        queries: Vec<EngineQuery>,
    ) -> Result<Vec<Vec<EngineHit>>, EngineError> {
        self.faults.check()?;
        self.faults.record_queries(&queries);
        let faces = self.faces_of_set(set.id)?;
        let run_query = |query: EngineQuery| {
            let mut found: Vec<EngineHit> = faces
                .values()
                .filter(|face| passes(face, &query.filter))
                .map(|face| EngineHit { id: face.id, similarity: cosine(&face.embedding, &query.probe) })
                .collect();
            found.sort_by(|a, b| b.similarity.total_cmp(&a.similarity).then(a.id.cmp(&b.id)));
            found.truncate(query.limit);
            found
        };
        let mut results: Vec<Vec<EngineHit>> = queries.into_iter().map(run_query).collect();
        self.faults.change_hits(&mut results).await;
        Ok(results)
    }

    /// Ignores [`Update::fence`]: no update arrives late.
    async fn update(&self, set: &FaceSet, mut update: Update) -> Result<(), EngineError> {
        self.faults.check()?;
        let result = self.faults.update(&mut update.stored, &mut update.deleted);
        let mut sets = self.faces.lock().unwrap();
        let faces = sets.get_mut(&set.id).ok_or_else(|| EngineError("there is no such set".into()))?;
        faces.retain(|id, _| !update.deleted.contains(id));
        faces.extend(update.stored.into_iter().map(|face| (face.id, face)));
        result
    }

    async fn page(&self, set: &FaceSet, after: Uuid, limit: usize) -> Result<Vec<EngineFace>, EngineError> {
        self.faults.check()?;
        Ok(self.faces_of_set(set.id)?.into_values().filter(|face| face.id > after).take(limit).collect())
    }

    async fn info(&self, set: &FaceSet) -> Result<SetInfo, EngineError> {
        self.faults.check()?;
        let faces = self.faces_of_set(set.id)?.len() as u64;
        Ok(SetInfo { faces, in_graph: faces, settled: true })
    }
}

/// The faults of an [`Engine`].
#[async_trait::async_trait]
pub(crate) trait Faults: std::fmt::Debug + Send + Sync {
    /// Returns an error if every call must fail.
    fn check(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Receives the queries of a search.
    fn record_queries(&self, _: &[EngineQuery]) {}

    /// Changes the hits of a search.
    async fn change_hits(&self, _: &mut [Vec<EngineHit>]) {}

    /// Changes the stored and deleted faces of an update. An error is returned after the update.
    fn update(&self, _: &mut Vec<EngineFace>, _: &mut Vec<Uuid>) -> Result<(), EngineError> {
        Ok(())
    }
}

impl Faults for () {}

/// Maximum number of wrong candidates in a result.
const MAX_WRONG_HITS: i64 = 200;

/// The index that [`crate::face_index::suite`] tests.
pub(crate) struct Untrusted(ExternalIndex);

impl Implementation for Untrusted {
    async fn start(db: &TestDatabase) -> (Self, Store) {
        let wrong = WrongHits { pool: db.pool().clone() };
        let (index, store) = start(db, Arc::new(Engine::with(wrong))).await;
        (Self(index), store)
    }

    async fn catch_up(&self) {
        catch_up(&self.0).await;
    }
}

/// Adds wrong candidates to the results.
#[derive(Debug)]
struct WrongHits {
    pool: PgPool,
}

#[async_trait::async_trait]
impl Faults for WrongHits {
    async fn change_hits(&self, results: &mut [Vec<EngineHit>]) {
        // Faces of all collections and models, and one that does not exist.
        let mut wrong: Vec<Uuid> = sqlx::query_scalar("select id from faces order by md5(id::text) limit $1")
            .bind(MAX_WRONG_HITS)
            .fetch_all(&self.pool)
            .await
            .unwrap();
        wrong.push(Uuid::now_v7());
        for hits in results {
            hits.extend(wrong.iter().map(|id| EngineHit { id: *id, similarity: 1.0 }));
            hits.iter_mut().for_each(|face| face.similarity = 1.0);
            hits.sort_by_key(|face| face.id);
        }
    }
}
