//! Tests the engine in a Qdrant server, and that an engine builds a graph of each large collection.
use crate::face_index::following::{check_set, differences_are_counted_and_repaired};
use crate::face_index::memory::{catch_up, start};
use crate::face_index::{Implementation, World};
use crate::fixture::{self, DIMENSIONS, assert_same, brute_force, gallery, query};
use qdrant_index::{Config, GRAPH_THRESHOLD, Quantization, Server};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use store::index::engine::{
    EngineFace, EngineFilter, EngineQuery, FaceSet, Update, VectorEngine, search_candidates,
};
use store::index::external::{CheckResult, ExternalIndex, StepOutcome};
use store::{Store, StoreError};
use testing::embeddings::Random;
use testing::{TestDatabase, needs};
use uuid::Uuid;

/// A server with collections that only one test uses. They are deleted with this value.
#[derive(Debug)]
struct Qdrant {
    config: Config,
    server: Arc<Server>,
}

impl Qdrant {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let urls = std::env::var("TEST_QDRANT_URL").expect("run the tests through ./scripts/test");
        let mut config = Config {
            urls: urls.split(',').map(str::to_owned).collect(),
            api_key: std::env::var("TEST_QDRANT_API_KEY").ok().filter(|key| !key.is_empty()),
            prefix: format!("test{}", Uuid::now_v7().simple()),
            replicas: 1,
            quantization: Quantization::None,
            graph_threshold: GRAPH_THRESHOLD,
        };
        change(&mut config);
        let server = Arc::new(Server::new(config.clone()).unwrap());
        Self { config, server }
    }
}

impl Drop for Qdrant {
    fn drop(&mut self) {
        let config = self.config.clone();
        // The runtime of the test may be ending.
        let deletion = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(Server::new(config).unwrap().remove_all()).unwrap();
        });
        // A second panic would end the other tests.
        assert!(deletion.join().is_ok() || std::thread::panicking(), "cannot delete the collections");
    }
}

/// The index that [`crate::face_index::suite`] tests.
pub(crate) struct InServer {
    index: ExternalIndex,
    /// Exists until the test ends.
    _server: Qdrant,
}

impl Implementation for InServer {
    async fn start(db: &TestDatabase) -> (Self, Store) {
        let test = Qdrant::new();
        let (index, store) = start(db, test.server.clone()).await;
        (Self { index, _server: test }, store)
    }

    async fn catch_up(&self) {
        catch_up(&self.index).await;
    }
}

const SET: FaceSet = FaceSet { id: Uuid::from_u128(1), dimensions: 4 };

fn face(number: u128, embedding: [f32; 4]) -> EngineFace {
    EngineFace {
        id: Uuid::from_u128(number),
        collection_id: Uuid::from_u128(9),
        has_subject: true,
        quality: Some(0.25),
        failed_quality: false,
        stored_us: 1_700_000_000_000_000,
        embedding: embedding.to_vec(),
    }
}

fn update_with_face(fence: i64, face: &EngineFace) -> Update {
    Update { fence, stored: vec![face.clone()], deleted: Vec::new() }
}

#[needs(qdrant)]
#[testing::test]
async fn older_update_changes_nothing() {
    let test = Qdrant::new();
    let server = &test.server;
    server.create(&SET).await.unwrap();
    server.create(&SET).await.unwrap();
    let (new, old) = (face(1, [1.0, 0.0, 0.0, 0.0]), face(1, [0.0, 1.0, 0.0, 0.0]));
    server.update(&SET, update_with_face(5, &new)).await.unwrap();
    for fence in [4, 5] {
        server.update(&SET, update_with_face(fence, &old)).await.unwrap();
        let late_deletion = Update { fence, stored: Vec::new(), deleted: vec![new.id] };
        server.update(&SET, late_deletion).await.unwrap();
        assert_eq!(server.page(&SET, Uuid::nil(), 10).await.unwrap(), std::slice::from_ref(&new));
    }
    // A deleted face is not stored again by an older update.
    let deletion = Update { fence: 7, stored: vec![face(2, [0.0, 0.0, 1.0, 0.0])], deleted: vec![new.id] };
    server.update(&SET, deletion).await.unwrap();
    server.update(&SET, update_with_face(6, &new)).await.unwrap();
    let remaining = server.page(&SET, Uuid::nil(), 10).await.unwrap();
    assert_eq!(remaining.iter().map(|face| face.id).collect::<Vec<_>>(), [Uuid::from_u128(2)]);
    assert_eq!(server.info(&SET).await.unwrap().faces, 1);
    // It can be stored again later.
    server.update(&SET, update_with_face(8, &new)).await.unwrap();
    assert_eq!(server.page(&SET, Uuid::nil(), 10).await.unwrap().len(), 2);
    assert_eq!(server.page(&SET, new.id, 10).await.unwrap().len(), 1);
    server.remove(SET.id).await.unwrap();
    server.remove(SET.id).await.unwrap();
    assert!(server.update(&SET, update_with_face(9, &new)).await.is_err(), "the set is deleted");
    assert!(server.sets().await.unwrap().is_empty());
}

#[needs(qdrant)]
#[testing::test]
async fn request_uses_another_node_if_one_fails() {
    // Nothing listens on port 1.
    let test = Qdrant::with(|config| config.urls.insert(0, "http://127.0.0.1:1".into()));
    test.server.create(&SET).await.unwrap();
    let stored = face(1, [1.0, 0.0, 0.0, 0.0]);
    test.server.update(&SET, update_with_face(1, &stored)).await.unwrap();
    assert_eq!(test.server.page(&SET, Uuid::nil(), 10).await.unwrap(), [stored]);
    assert_eq!(test.server.sets().await.unwrap(), [SET.id]);

    let dead = Config { urls: vec!["http://127.0.0.1:1".into()], ..test.config.clone() };
    let error = Server::new(dead).unwrap().sets().await.unwrap_err();
    assert!(error.0.contains("127.0.0.1:1"), "{error}");

    // This server accepts connections and never responds.
    let silent_server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let test = Qdrant::with(|config| {
        config.urls.insert(0, format!("http://{}", silent_server.local_addr().unwrap()))
    });
    test.server.create(&SET).await.unwrap();
    assert_eq!(test.server.sets().await.unwrap(), [SET.id]);
    assert_eq!(test.server.info(&SET).await.unwrap().faces, 0);
    let invalid = Config { urls: vec!["http://[".into()], ..test.config.clone() };
    assert!(Server::new(invalid).unwrap_err().to_string().contains("http://["));
}

#[needs(qdrant)]
#[testing::test]
async fn prefixes_separate_installations_on_one_server() {
    let (ours, theirs) = (Qdrant::new(), Qdrant::new());
    ours.server.create(&SET).await.unwrap();
    assert!(theirs.server.sets().await.unwrap().is_empty());
    let id = ours.server.claim(None).await.unwrap();
    // An interrupted start is continued.
    assert_eq!(ours.server.claim(Some(id)).await.unwrap(), id);
    ours.server.store_server_id(id).await.unwrap();
    let restarted = Server::new(ours.config.clone()).unwrap();
    assert_eq!(restarted.claim(Some(id)).await.unwrap(), id);
    assert_eq!(restarted.server_ids().await.unwrap(), [id]);
    assert_ne!(theirs.server.claim(None).await.unwrap(), id);
    // Another database with the same prefix.
    for recorded in [None, Some(Uuid::now_v7())] {
        let error = restarted.claim(recorded).await.unwrap_err();
        assert!(error.0.contains("another QDRANT_PREFIX"), "{error}");
    }
    assert_eq!(
        ours.server.sets().await.unwrap(),
        [SET.id],
        "the collection with the server's id is not a set"
    );
}

#[needs(qdrant)]
#[testing::test(flavor = "multi_thread")]
async fn two_processes_apply_index_changes_alternately() {
    let (db, test) = (TestDatabase::create().await, Qdrant::new());
    let (first, store) = start(&db, test.server.clone()).await;
    let (second, _) = start(&db, Arc::new(Server::new(test.config.clone()).unwrap())).await;
    let (collection, model) = fixture::default_and_model(&store, DIMENSIONS as i32).await;
    let done = Arc::new(AtomicBool::new(false));
    let apply_changes = |index: ExternalIndex| {
        let done = done.clone();
        tokio::spawn(async move {
            let mut applied = 0;
            while !done.load(Ordering::SeqCst) {
                match index.step(20).await.unwrap() {
                    StepOutcome::Applied(changes) => applied += changes,
                    // Lets the other process continue.
                    StepOutcome::Busy => tokio::task::yield_now().await,
                }
            }
            applied
        })
    };
    let tasks = [apply_changes(first.clone()), apply_changes(second.clone())];
    for round in 0..20 {
        let faces = gallery(&store, collection, &model, 50, round).await;
        fixture::delete_faces(&store, faces.iter().step_by(3)).await;
    }
    while store.index().oldest_change().await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    done.store(true, Ordering::SeqCst);
    for task in tasks {
        assert!(task.await.unwrap() > 0, "both processes have applied changes");
    }
    // Lets searches use the set.
    catch_up(&second).await;
    let equal = CheckResult { rows: 20 * 33, faces: 20 * 33, ..CheckResult::default() };
    assert_eq!(check_set(&second, &store, model.id).await, equal);

    // A third process deletes the index. No step creates a set again.
    let id = ExternalIndex::release(store.pool(), "qdrant").await.unwrap();
    assert!(test.server.server_ids().await.unwrap().contains(&id.unwrap()));
    for index in [&first, &second] {
        let result = index.step(20).await;
        assert!(matches!(result, Err(StoreError::IndexUnavailable(_))), "{result:?}");
    }
    test.server.remove_all().await.unwrap();
    assert!(test.server.server_ids().await.unwrap().is_empty());
}

#[needs(qdrant)]
#[testing::test]
async fn qdrant_check_counts_and_repairs_differences() {
    let test = Qdrant::new();
    differences_are_counted_and_repaired(test.server.clone()).await;
}

/// The index with compressed embeddings.
struct Compressed(InServer);

impl Implementation for Compressed {
    async fn start(db: &TestDatabase) -> (Self, Store) {
        let test = Qdrant::with(|config| config.quantization = Quantization::Int8);
        let (index, store) = start(db, test.server.clone()).await;
        (Self(InServer { index, _server: test }), store)
    }

    async fn catch_up(&self) {
        self.0.catch_up().await;
    }
}

#[needs(qdrant)]
#[testing::test]
async fn compressed_embeddings_give_same_top_hits() {
    let world = World::<Compressed>::create().await.with_exact_limit(10);
    let store = &world.store;
    let (collection, model) = fixture::default_and_model(store, DIMENSIONS as i32).await;
    let faces = gallery(store, collection, &model, 300, 1).await;
    world.catch_up().await;
    for (_, probe) in faces.iter().step_by(50) {
        let (hits, exact) = store.faces().search(&query(collection, model.id, probe.clone())).await.unwrap();
        assert!(!exact);
        assert_same(&hits, &brute_force(&faces, probe, -1.0, 10));
    }
}

#[needs(qdrant)]
#[testing::test]
async fn large_collection_has_hnsw_graph() {
    for mode in [Quantization::None, Quantization::Int8] {
        // 100 kB are 390 embeddings of 128 components. The server divides the faces among at most
        // eight segments.
        let test = Qdrant::with(|config| (config.quantization, config.graph_threshold) = (mode, 100));
        graphs_are_built_and_searched(test.server.as_ref()).await;
    }
}

const GRAPH_DIMENSIONS: usize = 128;
/// Number of faces of each collection. Only the first one is large enough for a graph.
const FACES: [usize; 2] = [20_000, 60];
/// Minimum quality of the filtered searches. Searches with a period start at the same fraction of
/// the time in which the faces were stored. Each filter keeps fewer than 40 % of the faces, but too
/// many for a search without a graph.
const MIN_QUALITY: f32 = 0.8;
const FACES_PER_PERSON: usize = 10;
const SPREAD: f64 = 0.5;
/// Minimum similarity of a match. Two faces of one person have a mean similarity of 0.8.
const MATCH_THRESHOLD: f32 = 0.5;
/// Number of faces of one update.
const FACES_PER_UPDATE: usize = 6_250;
/// Maximum time until the graphs are built. It is only reached if the test fails.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Returns the time at this fraction of the faces' period, in microseconds since 1970.
fn time_at_share(share: f64) -> i64 {
    1_700_000_000_000_000 + (share * 1e12) as i64
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns the ids of the matches that a query must find.
fn exact_matches(faces: &[EngineFace], query: &EngineQuery) -> HashSet<Uuid> {
    let mut matches: Vec<(f32, Uuid)> = faces
        .iter()
        .filter(|face| face.collection_id == query.filter.collection_id)
        .filter(|face| face.quality >= query.filter.min_quality)
        .filter(|face| query.filter.since_us.is_none_or(|since| face.stored_us >= since))
        .filter(|face| query.filter.until_us.is_none_or(|until| face.stored_us < until))
        .map(|face| (cosine(&face.embedding, &query.probe), face.id))
        .filter(|(similarity, _)| *similarity >= MATCH_THRESHOLD)
        .collect();
    matches.sort_by(|a, b| b.0.total_cmp(&a.0));
    matches.into_iter().take(query.limit).map(|(_, id)| id).collect()
}

/// Builds the graphs of a new set and searches it.
async fn graphs_are_built_and_searched(engine: &dyn VectorEngine) {
    let set = FaceSet { id: Uuid::from_u128(7), dimensions: GRAPH_DIMENSIONS };
    let mut random = Random(1);
    let mut faces = Vec::new();
    for (collection, count) in FACES.into_iter().enumerate() {
        let mut centre = Vec::new();
        for number in 0..count {
            if number % FACES_PER_PERSON == 0 {
                centre = random.unit_vector(GRAPH_DIMENSIONS);
            }
            faces.push(EngineFace {
                id: Uuid::from_u128((collection * 1_000_000 + number + 1) as u128),
                collection_id: Uuid::from_u128(collection as u128 + 1),
                has_subject: number % 2 == 0,
                quality: Some(random.uniform() as f32),
                failed_quality: false,
                stored_us: time_at_share(random.uniform()),
                embedding: random.vector_near(&centre, SPREAD),
            });
        }
    }
    engine.create(&set).await.unwrap();
    for (batch, stored) in faces.chunks(FACES_PER_UPDATE).enumerate() {
        let update = Update { fence: batch as i64 + 1, stored: stored.to_vec(), deleted: Vec::new() };
        engine.update(&set, update).await.unwrap();
    }
    let before = engine.info(&set).await.unwrap();
    assert_eq!(
        (before.faces, before.in_graph),
        (faces.len() as u64, 0),
        "no graph is built before all faces are stored"
    );

    engine.start_graphs(&set).await.unwrap();
    engine.start_graphs(&set).await.unwrap();
    let started = Instant::now();
    loop {
        let info = engine.info(&set).await.unwrap();
        // A segment may be too small for a graph.
        if info.settled && info.in_graph * 2 > faces.len() as u64 {
            break;
        }
        assert!(started.elapsed() < MAX_WAIT, "the graphs are not built: {info:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let (good, late) = (Some(MIN_QUALITY), Some(time_at_share(MIN_QUALITY.into())));
    for (min_quality, since_us) in [(None, None), (good, None), (None, late)] {
        let mut queries = Vec::new();
        for (number, face) in faces.iter().enumerate().step_by(faces.len() / 15) {
            queries.push(EngineQuery {
                filter: EngineFilter {
                    collection_id: face.collection_id,
                    min_quality,
                    omit_failed: number % 2 == 0,
                    with_subject: false,
                    since_us,
                    until_us: since_us.map(|_| time_at_share(1.0)),
                },
                probe: random.vector_near(&face.embedding, SPREAD),
                limit: FACES_PER_PERSON,
                candidates: search_candidates(None, FACES_PER_PERSON, faces.len(), usize::MAX),
            });
        }
        let results = engine.search(&set, queries.clone()).await.unwrap();
        let (mut found, mut total) = (0, 0);
        for (query, hits) in queries.iter().zip(results) {
            let expected = exact_matches(&faces, query);
            total += expected.len();
            found += hits.iter().filter(|face| expected.contains(&face.id)).count();
            assert!(hits.len() <= query.limit);
        }
        assert!(
            total > 15 && found * 100 >= total * 95,
            "found {found} of {total}, filter: {min_quality:?}, {since_us:?}"
        );
    }
}

#[test]
fn search_candidates_grow_with_set_size() {
    for (limit, faces, candidates) in [
        (10, 0, 128),
        (10, 500_000, 128),
        (10, 1_000_000, 256),
        (10, 4_000_000, 1_024),
        (10, 1_000_000_000, 2_048),
        (100, 0, 200),
        (1_000, 1_000_000, 2_000),
    ] {
        assert_eq!(search_candidates(None, limit, faces, usize::MAX), candidates, "{limit} of {faces}");
    }
    for (configured, limit, max, candidates) in
        [(64, 10, 512, 64), (64, 100, 512, 200), (10_000, 10, 512, 512), (10_000, 300, 512, 600)]
    {
        assert_eq!(search_candidates(Some(configured), limit, 1_000_000, max), candidates);
    }
}
