//! Tests that the settings of a search reach the index.
use super::gallery::{DIMENSIONS, brute_force, gallery};
use super::memory::{self, Faults, Faulty};
use crate::fixture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use store::StoreError;
use store::faces::scope::FaceScope;
use store::index::engine::{EngineError, EngineQuery};
use store::index::external::{Config, ExternalIndex};
use store::index::{FaceIndex, Nearest, Neighbours, Pgvector};
use testing::TestDatabase;

/// Records the numbers of candidates, and fails every call while `is_down`.
#[derive(Clone, Debug, Default)]
struct Recorder {
    candidates: Arc<Mutex<Vec<usize>>>,
    is_down: Arc<AtomicBool>,
}

impl Faults for Recorder {
    fn check(&self) -> Result<(), EngineError> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Err(EngineError("down".into())),
            false => Ok(()),
        }
    }

    fn asked(&self, queries: &[EngineQuery]) {
        self.candidates.lock().unwrap().extend(queries.iter().map(|query| query.candidates));
    }
}

#[testing::test]
async fn the_configured_number_of_candidates_reaches_the_engine() {
    let db = TestDatabase::create().await;
    let recorder = Recorder::default();
    let engine = Arc::new(Faulty::new(recorder.clone()));
    let (index, store) = memory::start(&db, engine.clone()).await;
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let gallery = gallery(&store, collection, &model, 60, 5).await;
    memory::catch_up(&index).await;

    let scope = FaceScope::all(collection, model.id);
    let config = |candidates| Config { candidates, ..Config::default() };
    let index_with = |config| ExternalIndex::new(db.store(), engine.clone()).with_config(config);
    let (faces, probe) = ([gallery[0].0, gallery[1].0], &gallery[0].1);
    let nearest = Nearest { scope: &scope, model: &model, probe, threshold: -1.0, limit: 5, exact: false };
    let neighbours =
        Neighbours { faces: &faces, scope: &scope, model: &model, limit: 5, threshold: -1.0, exact: false };
    // Of one search, and of the neighbours of two faces, which have a maximum.
    for (configured, expected) in
        [(None, [128, 128, 128]), (Some(40), [40, 40, 40]), (Some(5_000), [5_000, 512, 512])]
    {
        recorder.candidates.lock().unwrap().clear();
        let index = index_with(config(configured));
        index.nearest(&nearest).await.unwrap();
        index.neighbours(&neighbours).await.unwrap();
        assert_eq!(*recorder.candidates.lock().unwrap(), expected);
    }

    // The index of pgvector answers instead of the engine only if this is allowed.
    Pgvector::new(db.pool().clone()).rebuild(&model).await.unwrap();
    recorder.is_down.store(true, Ordering::SeqCst);
    assert_eq!(index_with(config(None)).nearest(&nearest).await.unwrap().faces.len(), 5);
    let strict = index_with(Config { fall_back: false, ..config(None) });
    assert!(matches!(strict.nearest(&nearest).await, Err(StoreError::IndexUnavailable(_))));
}

#[testing::test]
async fn pgvector_finds_more_of_the_nearest_faces_with_more_candidates() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let gallery = gallery(&store, collection, &model, 1_500, 6).await;
    let pgvector = Pgvector::new(db.pool().clone());
    pgvector.rebuild(&model).await.unwrap();

    let scope = FaceScope::all(collection, model.id);
    let mut rng = fixture::rng(7);
    let probes: Vec<Vec<f32>> = (0..100).map(|_| fixture::direction(&mut rng, DIMENSIONS)).collect();
    let nearest_of = |probe: &Vec<f32>| brute_force(&gallery, probe, -1.0, 1)[0].0;
    let expected: Vec<_> = probes.iter().map(nearest_of).collect();
    let mut found = Vec::new();
    for candidates in [1, 1_000] {
        let index = pgvector.clone().with_candidates(Some(candidates));
        let mut right = 0;
        for (probe, expected) in probes.iter().zip(&expected) {
            let nearest =
                Nearest { scope: &scope, model: &model, probe, threshold: -1.0, limit: 1, exact: false };
            let first = index.nearest(&nearest).await.unwrap().faces[0].id;
            right += usize::from(first == *expected);
        }
        found.push(right);
    }
    assert!(found[0] < 95 && found[1] > found[0], "with few and many candidates: {found:?}");
}
