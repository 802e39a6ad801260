//! An engine that compares with every face that it was given, in memory.
use super::Implementation;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use store::Store;
use store::external_index::{ExternalIndex, Followed};
use store::models::EmbeddingModel;
use store::vector_engine::{
    EngineError, EngineFace, EngineFilter, EngineQuery, Similar, VectorEngine, Wanted,
};
use testing::TestDatabase;
use uuid::Uuid;

/// The index that [`super::suite`] tests.
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
    db.store().start_index_changes().await.unwrap();
    let index = ExternalIndex::new(db.store(), engine);
    (index.clone(), db.store().with_index(Arc::new(index)))
}

/// Applies all changes, in small steps.
pub(crate) async fn catch_up(index: &ExternalIndex) {
    while index.follow(70).await.unwrap() != Followed::Applied(0) {}
}

/// An engine in memory: its faces by model.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    faces: Mutex<HashMap<i32, HashMap<Uuid, EngineFace>>>,
}

impl Engine {
    /// Returns the faces of a model.
    pub(crate) fn faces(&self, model: i32) -> HashMap<Uuid, EngineFace> {
        self.faces.lock().unwrap().get(&model).cloned().unwrap_or_default()
    }
}

fn passes(face: &EngineFace, filter: &EngineFilter) -> bool {
    face.collection_id == filter.collection_id
        && filter.min_quality.is_none_or(|least| face.quality_overall.is_some_and(|quality| quality >= least))
        && !(filter.omit_failed && face.quality_passed == Some(false))
        && !(filter.with_subject && face.subject_id.is_none())
        && filter.exclude_face != Some(face.id)
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}

#[async_trait::async_trait]
impl VectorEngine for Engine {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn prepare(&self, model: &EmbeddingModel) -> Result<(), EngineError> {
        self.faces.lock().unwrap().entry(model.id).or_default();
        Ok(())
    }

    async fn search(
        &self,
        model: &EmbeddingModel,
        queries: Vec<EngineQuery>,
    ) -> Result<Vec<Vec<Similar>>, EngineError> {
        let faces = self.faces(model.id);
        let answer = |query: EngineQuery| {
            let mut found: Vec<Similar> = faces
                .values()
                .filter(|face| passes(face, &query.filter))
                .map(|face| Similar { id: face.id, similarity: cosine(&face.embedding, &query.probe) })
                .collect();
            match query.wanted {
                Wanted::Nearest(limit) => {
                    found.sort_by(|a, b| b.similarity.total_cmp(&a.similarity).then(a.id.cmp(&b.id)));
                    found.truncate(limit);
                }
                Wanted::All(least) => found.retain(|face| face.similarity >= least),
            }
            found
        };
        Ok(queries.into_iter().map(answer).collect())
    }

    async fn update(
        &self,
        model: &EmbeddingModel,
        stored: Vec<EngineFace>,
        deleted: Vec<Uuid>,
    ) -> Result<(), EngineError> {
        let mut all = self.faces.lock().unwrap();
        let faces = all.get_mut(&model.id).ok_or_else(|| EngineError("the model is not prepared".into()))?;
        faces.retain(|id, _| !deleted.contains(id));
        faces.extend(stored.into_iter().map(|face| (face.id, face)));
        Ok(())
    }
}
