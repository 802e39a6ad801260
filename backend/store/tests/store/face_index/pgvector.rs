//! Tests behaviour that only the index of pgvector has, and that the settings of a search reach the
//! index.
use crate::face_index::memory::{self, Engine, Faults};
use crate::fixture::{self, DIMENSIONS, assert_same, brute_force, gallery, query};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use store::StoreError;
use store::index::engine::{EngineError, EngineQuery};
use store::index::external::{Config, ExternalIndex};
use store::index::scope::FaceScope;
use store::index::{FaceIndex, Nearest, Neighbours, Pgvector};
use testing::TestDatabase;

#[testing::test]
async fn search_above_exact_limit_uses_hnsw_index() {
    let db = TestDatabase::create().await;
    let store = db.store().with_exact_limit(100);
    let (default, model) = fixture::default_and_model(&store, DIMENSIONS as i32).await;
    let gallery = gallery(&store, default, &model, 600, 3).await;
    fixture::build_index(&store, &model).await;
    // A session reports its statistics when it is idle, so the query runs in the same sessions as
    // the scans.
    let scans = "select coalesce(sum(idx_scan), 0)::bigint from pg_stat_user_indexes
                 where indexrelname like 'faces_embedding_hnsw_%'";
    for (_, probe) in gallery.iter().step_by(60) {
        assert!(!store.faces().search(&query(default, model.id, probe.clone())).await.unwrap().1);
    }
    // The scans are counted, so the results did not come from an exact plan.
    let deadline = std::time::Instant::now() + testing::MAX_WAIT;
    while db.number(scans).await < 10 {
        assert!(std::time::Instant::now() < deadline, "the index was not used");
        sqlx::query("select pg_stat_force_next_flush()").execute(db.pool()).await.unwrap();
    }
}

#[testing::test]
async fn generated_probes_have_fixed_similarity_to_stored_face() {
    let (db, store) = fixture::database().await;
    let [first, second] = fixture::collections(&store, ["first", "second"]).await;
    let (model, other) = (
        fixture::model(&store, "m", DIMENSIONS as i32).await,
        fixture::model(&store, "other", DIMENSIONS as i32).await,
    );
    assert!(store.faces().probes(&model, 10).await.unwrap().is_empty());
    gallery(&store, first, &other, 50, 1).await;
    let gallery = gallery(&store, second, &model, 400, 2).await;
    sqlx::query("analyze faces").execute(db.pool()).await.unwrap();
    let mut probes = store.faces().probes(&model, 100).await.unwrap();
    for count in [1, 3] {
        probes.extend(store.faces().probes(&model, count).await.unwrap());
    }
    assert_eq!(probes.len(), 104);
    for probe in &probes {
        assert_eq!(probe.collection_id, second);
        let length: f32 = probe.embedding.iter().map(|component| component * component).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
        // One of the faces has exactly this similarity, except for rounding to half precision.
        let is_source = |similarity: f64| (similarity - 0.7).abs() < 2e-3;
        assert!(brute_force(&gallery, &probe.embedding, -1.0, 400).iter().any(|hit| is_source(hit.1)));
    }
    assert_eq!(store.faces().probes(&model, 1_000).await.unwrap().len(), 400);
}

#[testing::test]
async fn incomplete_pgvector_result_leads_to_exact_search() {
    let db = TestDatabase::create().await;
    let store = db.store().with_exact_limit(10);
    let (default, model) = fixture::default_and_model(&store, DIMENSIONS as i32).await;
    let gallery = gallery(&store, default, &model, 60, 5).await;
    // An index that misses rows simulates a scan that stops before it has found enough.
    let sql = format!(
        "create index faces_embedding_hnsw_{0} on faces using hnsw ((embedding::halfvec({DIMENSIONS})) halfvec_cosine_ops) where model_id = {0} and det_score > 2",
        model.id
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(db.pool()).await.unwrap();
    let probe = gallery[7].1.clone();
    let (hits, _) = store.faces().search(&query(default, model.id, probe.clone())).await.unwrap();
    assert_same(&hits, &brute_force(&gallery, &probe, -1.0, 10));
}

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

    fn record_queries(&self, queries: &[EngineQuery]) {
        self.candidates.lock().unwrap().extend(queries.iter().map(|query| query.candidates));
    }
}

#[testing::test]
async fn engine_receives_configured_number_of_candidates() {
    let db = TestDatabase::create().await;
    let recorder = Recorder::default();
    let engine = Arc::new(Engine::with(recorder.clone()));
    let (index, store) = memory::start(&db, engine.clone()).await;
    let (collection, model) = fixture::default_and_model(&store, DIMENSIONS as i32).await;
    let gallery = gallery(&store, collection, &model, 60, 5).await;
    memory::catch_up(&index).await;

    let scope = FaceScope::all(collection, model.id);
    let config = |candidates| Config { candidates, ..Config::default() };
    let index_with =
        |config| ExternalIndex::new(db.store().pool().clone(), engine.clone()).with_config(config);
    let (faces, probe) = ([gallery[0].0, gallery[1].0], &gallery[0].1);
    let nearest = Nearest { scope: &scope, model: &model, probe, threshold: -1.0, limit: 5, exact: false };
    let neighbours =
        Neighbours { faces: &faces, scope: &scope, model: &model, limit: 5, threshold: -1.0, exact: false };
    // The numbers of one search, and of the neighbours of two faces, which have a maximum.
    for (configured, expected) in
        [(None, [128, 128, 128]), (Some(40), [40, 40, 40]), (Some(5_000), [5_000, 512, 512])]
    {
        recorder.candidates.lock().unwrap().clear();
        let index = index_with(config(configured));
        index.nearest(&nearest).await.unwrap();
        index.neighbours(&neighbours).await.unwrap();
        assert_eq!(*recorder.candidates.lock().unwrap(), expected);
    }

    // The index of pgvector replaces the engine only if this is allowed.
    fixture::build_index(&store, &model).await;
    recorder.is_down.store(true, Ordering::SeqCst);
    assert_eq!(index_with(config(None)).nearest(&nearest).await.unwrap().faces.len(), 5);
    let strict = index_with(Config { allow_fallback: false, ..config(None) });
    assert!(matches!(strict.nearest(&nearest).await, Err(StoreError::IndexUnavailable(_))));
}

#[testing::test]
async fn pgvector_recall_grows_with_candidates() {
    let (db, store, collection, model) = fixture::with_model(DIMENSIONS as i32).await;
    let gallery = gallery(&store, collection, &model, 1_500, 6).await;
    let pgvector = Pgvector::new(db.pool().clone());
    fixture::build_index(&store, &model).await;

    let scope = FaceScope::all(collection, model.id);
    let mut rng = fixture::rng(7);
    let probes: Vec<Vec<f32>> = (0..100).map(|_| fixture::random_unit_vector(&mut rng, DIMENSIONS)).collect();
    let nearest_of = |probe: &Vec<f32>| brute_force(&gallery, probe, -1.0, 1)[0].0;
    let expected: Vec<_> = probes.iter().map(nearest_of).collect();
    let mut counts = Vec::new();
    for candidates in [1, 1_000] {
        let index = pgvector.clone().with_candidates(Some(candidates));
        let mut matches = 0;
        for (probe, expected) in probes.iter().zip(&expected) {
            let nearest =
                Nearest { scope: &scope, model: &model, probe, threshold: -1.0, limit: 1, exact: false };
            let first = index.nearest(&nearest).await.unwrap().faces[0].id;
            matches += usize::from(first == *expected);
        }
        counts.push(matches);
    }
    assert!(counts[0] < 95 && counts[1] > counts[0], "with few and many candidates: {counts:?}");
}
