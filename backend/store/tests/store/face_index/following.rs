//! Tests how an engine applies the changes of faces, the comparison of a set with the rows, and
//! when a set is built again.
use crate::face_index::memory::{self, Engine, catch_up, set_of, start};
use crate::fixture::{self, DIMENSIONS, gallery, query};
use domain::IndexSetState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use store::erasures::Target;
use store::faces::search::SearchQuery;
use store::index::EmbeddingModel;
use store::index::changes::IndexSet;
use store::index::engine::{EngineFace, FaceSet, Update, VectorEngine};
use store::index::external::{CheckResult, Config, ExternalIndex, StepOutcome};
use store::{Store, StoreError};
use testing::TestDatabase;
use uuid::Uuid;

struct World {
    db: TestDatabase,
    store: Store,
    engine: Arc<Engine>,
    index: ExternalIndex,
    collection: Uuid,
    model: EmbeddingModel,
}

impl World {
    async fn create() -> Self {
        let db = TestDatabase::create().await;
        let engine = Arc::new(Engine::default());
        let index = ExternalIndex::new(db.store().pool().clone(), engine.clone());
        let store = db.store().with_index(Arc::new(index.clone()));
        let (collection, model) = fixture::default_and_model(&store, 8).await;
        Self { db, store, engine, index, collection, model }
    }

    /// Works like [`World::create`], with an engine that has `count` faces.
    async fn with_faces(count: usize) -> (Self, Vec<Uuid>) {
        let world = Self::create().await;
        world.index.take_over().await.unwrap();
        let faces = world.faces(1, count).await;
        memory::catch_up(&world.index).await;
        (world, faces)
    }

    async fn set(&self) -> IndexSet {
        memory::set_of(&self.store, self.model.id).await.unwrap()
    }

    /// Returns the faces that the engine has.
    async fn indexed_faces(&self) -> BTreeMap<Uuid, EngineFace> {
        self.engine.faces(&self.store, self.model.id).await
    }

    /// Returns a search for a stored face, through the index, and the store that runs it.
    async fn search_for(&self, face: Uuid) -> (Store, SearchQuery) {
        let store = self.store.clone().with_exact_limit(0);
        let embedding = store.faces().embedding(face).await.unwrap().1;
        (store, query(self.collection, self.model.id, embedding))
    }

    async fn faces(&self, seed: u64, count: usize) -> Vec<Uuid> {
        fixture::faces(&self.store, self.collection, &self.model, seed, count).await
    }

    async fn delete(&self, face: Uuid) {
        let mut conn = self.store.pool().acquire().await.unwrap();
        self.store.faces().delete(&mut conn, face).await.unwrap();
    }

    /// Asserts that the engine contains exactly the stored faces, as they are stored.
    async fn assert_equal(&self) {
        let rows: Vec<Uuid> =
            sqlx::query_scalar("select id from faces").fetch_all(self.db.pool()).await.unwrap();
        let indexed_faces = self.indexed_faces().await;
        assert_eq!(indexed_faces.len(), rows.len());
        for id in rows {
            let face = &indexed_faces[&id];
            assert_eq!(face.embedding, self.store.faces().embedding(id).await.unwrap().1);
            assert_eq!(face.collection_id, self.collection);
        }
    }
}

#[testing::test]
async fn copies_existing_faces_during_concurrent_changes() {
    let world = World::create().await;
    let existing = world.faces(1, 10).await;
    world.index.take_over().await.unwrap();
    // Changes of a face that is copied in the first step, and of two that are copied later.
    for face in [existing[0], existing[9]] {
        world.delete(face).await;
    }
    assert_eq!(world.index.step(4).await.unwrap(), StepOutcome::Applied(6), "two changes and four faces");
    world.delete(existing[1]).await;
    let added = world.faces(2, 3).await;
    assert_eq!(world.index.step(4).await.unwrap(), StepOutcome::Applied(8), "four changes and four faces");
    world.delete(added[0]).await;
    let set = world.set().await;
    assert_eq!((set.state, set.copied), (IndexSetState::Building, false));
    memory::catch_up(&world.index).await;
    world.assert_equal().await;
    assert_eq!(world.store.index().oldest_change().await.unwrap(), None);
    let set = world.set().await;
    assert_eq!(set.state, IndexSetState::Serving);
}

#[testing::test]
async fn engine_receives_current_row_of_each_face() {
    let world = World::create().await;
    world.index.take_over().await.unwrap();
    memory::catch_up(&world.index).await;
    let faces = world.faces(1, 2).await;
    for _ in 0..2 {
        fixture::person(&world.store, world.collection, &fixture::unnamed_subject(), &faces[..1]).await;
    }
    world.delete(faces[1]).await;
    // The deletion of the second face is the first change, and its insertion comes later.
    let mut steps = 0;
    while world.index.step(1).await.unwrap() == StepOutcome::Applied(1) {
        steps += 1;
        assert!(!world.indexed_faces().await.contains_key(&faces[1]), "a deleted face is stored again");
    }
    assert_eq!(steps, 5);
    world.assert_equal().await;
    let face = &world.indexed_faces().await[&faces[0]];
    assert_eq!((face.has_subject, face.quality), (true, Some(0.5)));
}

#[testing::test]
async fn only_one_process_updates_engine() {
    let world = World::create().await;
    world.index.take_over().await.unwrap();
    world.faces(1, 2).await;
    // The advisory lock of `store::index::external`, held by another process.
    let lock = world.db.execute_in_open_transaction("select pg_advisory_xact_lock(439720568067)").await;
    assert_eq!(world.index.step(10).await.unwrap(), StepOutcome::Busy);
    drop(lock);
    memory::catch_up(&world.index).await;
    world.assert_equal().await;
}

#[testing::test]
async fn erasure_finds_faces_missing_in_engine() {
    let world = World::create().await;
    let mut stored = Vec::new();
    for is_stopped in [false, true] {
        // The engine does not receive this face: no change is recorded, and nothing is copied.
        stored.extend(world.faces(1 + u64::from(is_stopped), 1).await);
        world.store.index().start_changes().await.unwrap();
        assert_eq!(world.store.index().oldest_change().await.unwrap(), None);
        for face in &stored {
            assert!(!world.indexed_faces().await.contains_key(face));
            let embedding = world.store.faces().embedding(*face).await.unwrap().1;
            let target = Target::Likeness { embedding, model_id: world.model.id, threshold: 0.99 };
            let mut tx = world.store.begin().await.unwrap();
            let plan = world.store.erasures().plan(tx.conn(), world.collection, &target).await.unwrap();
            assert_eq!(plan.faces.iter().map(|face| face.id).collect::<Vec<_>>(), [*face]);
        }
        // The change of the next face is recorded, and lost before the engine has applied it.
        stored.extend(world.faces(3 + u64::from(is_stopped), 1).await);
        world.store.index().stop_changes().await.unwrap();
    }
}

#[testing::test]
async fn search_finds_new_face_before_engine_has_it() {
    let (world, _) = World::with_faces(30).await;
    let store = world.store.clone().with_exact_limit(0);
    assert_eq!(store.faces().index_lag().await.unwrap(), Duration::ZERO);
    store.faces().wait_for_index(Duration::ZERO).await.unwrap();

    let new = world.faces(2, 1).await[0];
    let (_, mut search) = world.search_for(new).await;
    search.limit = 3;
    let (hits, exact) = store.faces().search(&search).await.unwrap();
    assert_eq!((hits[0].face.id, exact), (new, false));
    assert!(!world.indexed_faces().await.contains_key(&new));
    assert!(store.faces().index_lag().await.unwrap() > Duration::ZERO);
    let result = store.faces().wait_for_index(Duration::ZERO).await;
    assert!(matches!(result, Err(StoreError::IndexUnavailable(_))), "{result:?}");

    let wait_task = tokio::spawn(async move { store.faces().wait_for_index(Duration::from_secs(60)).await });
    memory::catch_up(&world.index).await;
    wait_task.await.unwrap().unwrap();
}

#[testing::test]
async fn another_engine_replaces_index_only_after_claiming_it() {
    let (world, _) = World::with_faces(5).await;
    let set = world.set().await;

    // A command beside the service does not claim the index, so it changes nothing.
    let engine = Arc::new(Engine::default());
    let other = ExternalIndex::new(world.db.store().pool().clone(), engine.clone());
    let result = other.step(10).await;
    assert!(matches!(result, Err(StoreError::IndexUnavailable(_))), "{result:?}");
    assert_eq!(world.set().await.id, set.id);
    memory::catch_up(&world.index).await;

    other.take_over().await.unwrap();
    memory::catch_up(&other).await;
    assert_eq!(engine.faces(&world.store, world.model.id).await.len(), 5);
    let result = world.index.step(10).await;
    assert!(matches!(result, Err(StoreError::IndexUnavailable(_))), "{result:?}");
}

#[testing::test]
async fn outdated_set_serves_until_replacement_is_complete() {
    let (world, faces) = World::with_faces(20).await;
    let serving = async || {
        let set = world.set().await;
        (set.id, set.state)
    };
    let before = serving().await;
    // A migration does this when a new version stores an additional field of each face.
    sqlx::query("update index_sets set outdated = true").execute(world.db.pool()).await.unwrap();
    let set = world.set().await.face_set();
    let mut indexed_faces = world.indexed_faces().await;
    let old = EngineFace { stored_us: 0, ..indexed_faces.remove(&faces[3]).unwrap() };
    let mut search = query(world.collection, world.model.id, old.embedding.clone());
    world.engine.update(&set, Update { fence: 1, stored: vec![old], deleted: Vec::new() }).await.unwrap();
    (search.limit, search.filter.since) =
        (5, Some(time::OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1)));
    let store = world.store.clone().with_exact_limit(0);
    let (hits, _) = store.faces().search(&search).await.unwrap();
    assert_eq!(hits[0].face.id, faces[3], "the set lacks the time of this face");

    world.index.step(10).await.unwrap();
    assert_eq!(serving().await, before);
    memory::catch_up(&world.index).await;
    let after = serving().await;
    assert!(after.0 != before.0 && after.1 == IndexSetState::Serving);
    world.assert_equal().await;
    memory::catch_up(&world.index).await;
    assert_eq!(serving().await, after, "the set is built once");
}

#[testing::test]
async fn search_in_crawl_without_faces_is_exact() {
    let (world, _) = World::with_faces(40).await;
    let latest = world.faces(2, 30).await;
    let (store, mut search) = world.search_for(latest[0]).await;
    search.filter.crawl_id = Some(Uuid::now_v7());
    let (hits, exact) = store.faces().search(&search).await.unwrap();
    assert_eq!((hits.len(), exact), (0, true), "no face was found by this crawl");
}

#[testing::test]
async fn incomplete_engine_result_leads_to_exact_search() {
    let (world, _) = World::with_faces(40).await;
    let latest = world.faces(2, 30).await;
    let (store, mut search) = world.search_for(latest[0]).await;
    search.limit = 60;
    let (hits, exact) = store.faces().search(&search).await.unwrap();
    assert_eq!((hits.len(), exact), (60, true), "the engine has only 40 of the 70 faces");
}

#[testing::test]
async fn update_fence_grows_after_sequence_reset() {
    let world = World::create().await;
    let next_fence = async || {
        sqlx::query_scalar::<_, i64>("select next_index_fence()").fetch_one(world.db.pool()).await.unwrap()
    };
    let mut last = next_fence().await;
    for is_reset in [false, true, false, true] {
        if is_reset {
            sqlx::query("select setval('index_fence', 1)").execute(world.db.pool()).await.unwrap();
        }
        let new = next_fence().await;
        assert!(new > last, "{new} after {last}");
        last = new;
    }
    assert!(last < 1 << 53, "an engine may compare them as floating-point numbers");
}

#[testing::test]
async fn set_copy_completes_while_faces_are_added() {
    let world = World::create().await;
    world.faces(1, 10).await;
    world.index.take_over().await.unwrap();
    for seed in 2..8 {
        world.faces(seed, 1).await;
        world.index.step(4).await.unwrap();
    }
    let set = world.set().await;
    assert_eq!(set.state, IndexSetState::Serving);
    memory::catch_up(&world.index).await;
    world.assert_equal().await;
}

/// Compares the set of a model with the rows.
pub(crate) async fn check_set(index: &ExternalIndex, store: &Store, model: i32) -> CheckResult {
    let set = set_of(store, model).await.unwrap();
    store.index().request_check(&set.index_name).await.unwrap();
    catch_up(index).await;
    let set = set_of(store, model).await.unwrap();
    assert_eq!(set.check_requested_at, None);
    serde_json::from_value(set.check_result.unwrap()).unwrap()
}

/// Damages a set of 100 faces: three are missing, one is surplus, and three differ from their rows.
/// Returns the expected result of a comparison.
async fn damage_set(engine: &dyn VectorEngine, set: &FaceSet, fence: i64) -> CheckResult {
    let mut faces = engine.page(set, Uuid::nil(), 100).await.unwrap();
    let moved = EngineFace { collection_id: Uuid::now_v7(), ..faces[0].clone() };
    let turned = EngineFace { embedding: faces[2].embedding.clone(), ..faces[1].clone() };
    let late = EngineFace { stored_us: faces[4].stored_us + 1, ..faces[4].clone() };
    let surplus = EngineFace { id: Uuid::now_v7(), ..faces[3].clone() };
    let deleted: Vec<Uuid> = faces.split_off(97).iter().map(|face| face.id).collect();
    engine.update(set, Update { fence, stored: vec![moved, turned, late, surplus], deleted }).await.unwrap();
    CheckResult { rows: 100, faces: 98, missing: 3, surplus: 1, different: 3 }
}

async fn set_ids(engine: &dyn VectorEngine) -> BTreeSet<Uuid> {
    engine.sets().await.unwrap().into_iter().collect()
}

/// Damages a set of an empty engine, compares it with the rows, and builds it again.
pub(crate) async fn differences_are_counted_and_repaired(engine: Arc<dyn VectorEngine>) {
    let db = TestDatabase::create().await;
    let (index, store) = start(&db, engine.clone()).await;
    let (collection, model) = fixture::default_and_model(&store, DIMENSIONS as i32).await;
    gallery(&store, collection, &model, 100, 1).await;
    catch_up(&index).await;
    assert_eq!(
        check_set(&index, &store, model.id).await,
        CheckResult { rows: 100, faces: 100, ..CheckResult::default() }
    );
    let set = set_of(&store, model.id).await.unwrap().face_set();
    let fence = sqlx::query_scalar("select next_index_fence()").fetch_one(db.pool()).await.unwrap();
    let expected = damage_set(engine.as_ref(), &set, fence).await;
    assert_eq!(check_set(&index, &store, model.id).await, expected);

    // A new set contains exactly the rows. Searches use the old one until it is complete.
    assert_eq!(store.index().request_rebuild(engine.name()).await.unwrap(), 1);
    assert_eq!(
        store.index().request_rebuild(engine.name()).await.unwrap(),
        0,
        "the rebuild is requested already"
    );
    catch_up(&index).await;
    let rebuilt = set_of(&store, model.id).await.unwrap();
    assert_ne!(rebuilt.id, set.id);
    assert!(check_set(&index, &store, model.id).await.is_equal());
    assert_eq!(set_ids(engine.as_ref()).await, BTreeSet::from([rebuilt.id]), "the old set is deleted");
}

#[testing::test]
async fn index_check_counts_and_repairs_differences() {
    differences_are_counted_and_repaired(Arc::new(Engine::default())).await;
}

/// Starts an index in memory with `count` faces. Returns the model, and the faces.
async fn index_with_faces(
    db: &TestDatabase,
    engine: &Arc<Engine>,
    count: usize,
) -> (ExternalIndex, Store, EmbeddingModel, Vec<(Uuid, Vec<f32>)>) {
    let (index, store) = start(db, engine.clone()).await;
    let (collection, model) = fixture::default_and_model(&store, DIMENSIONS as i32).await;
    let faces = gallery(&store, collection, &model, count, 1).await;
    catch_up(&index).await;
    (index, store, model, faces)
}

#[testing::test]
async fn restarted_process_reuses_set_and_rebuilds_missing_set() {
    let (db, engine) = (TestDatabase::create().await, Arc::new(Engine::default()));
    let (index, store, model, faces) = index_with_faces(&db, &engine, 60).await;
    let before = set_of(&store, model.id).await.unwrap().id;
    drop((index, store));

    let (index, store) = start(&db, engine.clone()).await;
    fixture::delete_faces(&store, faces[..1].iter()).await;
    let equal = CheckResult { rows: 59, faces: 59, ..CheckResult::default() };
    assert_eq!(check_set(&index, &store, model.id).await, equal);
    assert_eq!(set_of(&store, model.id).await.unwrap().id, before);

    engine.remove(before).await.unwrap();
    catch_up(&index).await;
    assert_ne!(set_of(&store, model.id).await.unwrap().id, before);
    assert_eq!(check_set(&index, &store, model.id).await, equal);
}

#[testing::test]
async fn set_with_old_deletion_is_replaced() {
    let (db, engine) = (TestDatabase::create().await, Arc::new(Engine::default()));
    let (index, store, model, faces) = index_with_faces(&db, &engine, 100).await;
    let before = set_of(&store, model.id).await.unwrap();
    assert_eq!(before.deleted_since, None);

    fixture::delete_faces(&store, faces[..1].iter()).await;
    catch_up(&index).await;
    let with_deletion = set_of(&store, model.id).await.unwrap();
    assert_eq!((with_deletion.id, with_deletion.deleted_since.is_some()), (before.id, true));

    let index = index.with_config(Config { rebuild_age: Duration::ZERO, ..Config::default() });
    catch_up(&index).await;
    let after = set_of(&store, model.id).await.unwrap();
    assert_ne!(after.id, before.id);
    assert_eq!(after.deleted_since, None);
    assert_eq!(set_ids(engine.as_ref()).await, BTreeSet::from([after.id]), "the old set is deleted");
    let equal = CheckResult { rows: 99, faces: 99, ..CheckResult::default() };
    assert_eq!(check_set(&index, &store, model.id).await, equal);
}
