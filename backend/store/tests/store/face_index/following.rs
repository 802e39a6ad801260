//! Tests how an engine follows the changes of the faces.
use super::memory::{self, Engine};
use crate::fixture::{self, direction};
use domain::IndexSetState;
use std::sync::Arc;
use std::time::Duration;
use store::erasures::Target;
use store::faces::models::EmbeddingModel;
use store::index::engine::{EngineFace, Update, VectorEngine};
use store::index::external::{ExternalIndex, Followed};
use store::people::NewSubject;
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
        let index = ExternalIndex::new(db.store(), engine.clone());
        let store = db.store().with_index(Arc::new(index.clone()));
        let collection = fixture::collection(&store, "default").await;
        let model = fixture::model(&store, "m", 8).await;
        Self { db, store, engine, index, collection, model }
    }

    async fn faces(&self, seed: u64, count: usize) -> Vec<Uuid> {
        let mut rng = fixture::rng(seed);
        let faces: Vec<_> = (0..count).map(|_| fixture::face(&self.model, direction(&mut rng, 8))).collect();
        fixture::store_image(&self.store, self.collection, &fixture::image(seed), &faces).await.unwrap();
        faces.iter().map(|face| face.id).collect()
    }

    async fn delete(&self, face: Uuid) {
        let mut conn = self.store.pool().acquire().await.unwrap();
        self.store.delete_face(&mut conn, face).await.unwrap();
    }

    /// Asserts that the engine contains exactly the stored faces, as they are stored.
    async fn assert_equal(&self) {
        let rows: Vec<Uuid> =
            sqlx::query_scalar("select id from faces").fetch_all(self.db.pool()).await.unwrap();
        let contained = self.engine.faces(&self.store, self.model.id).await;
        assert_eq!(contained.len(), rows.len());
        for id in rows {
            let face = &contained[&id];
            assert_eq!(face.embedding, self.store.embedding(id).await.unwrap().1);
            assert_eq!(face.collection_id, self.collection);
        }
    }
}

#[testing::test]
async fn faces_from_before_the_recording_are_copied_while_others_change() {
    let world = World::create().await;
    let old = world.faces(1, 10).await;
    world.index.take_over().await.unwrap();
    // Changes of a face that is copied in the first step, and of two that are copied later.
    for face in [old[0], old[9]] {
        world.delete(face).await;
    }
    assert_eq!(world.index.step(4).await.unwrap(), Followed::Applied(6), "two changes and four faces");
    world.delete(old[1]).await;
    let new = world.faces(2, 3).await;
    assert_eq!(world.index.step(4).await.unwrap(), Followed::Applied(8), "four changes and four faces");
    world.delete(new[0]).await;
    let set = memory::set_of(&world.store, world.model.id).await.unwrap();
    assert_eq!((set.state, set.copied), (IndexSetState::Building, false));
    memory::catch_up(&world.index).await;
    world.assert_equal().await;
    assert_eq!(world.store.oldest_index_change().await.unwrap(), None);
    let set = memory::set_of(&world.store, world.model.id).await.unwrap();
    assert_eq!(set.state, IndexSetState::Serving);
}

#[testing::test]
async fn an_engine_gets_the_present_row_of_a_face_once() {
    let world = World::create().await;
    world.index.take_over().await.unwrap();
    memory::catch_up(&world.index).await;
    let faces = world.faces(1, 2).await;
    for _ in 0..2 {
        let mut tx = world.store.begin().await.unwrap();
        let new = NewSubject { metadata: serde_json::json!({}), ..NewSubject::default() };
        let subject = world.store.insert_subject(tx.conn(), world.collection, &new).await.unwrap();
        world.store.enrol_faces(tx.conn(), world.collection, subject, &faces[..1], true).await.unwrap();
        tx.commit().await.unwrap();
    }
    world.delete(faces[1]).await;
    // The deletion of the second face is the first change, and its insertion comes later.
    let mut steps = 0;
    while world.index.step(1).await.unwrap() == Followed::Applied(1) {
        steps += 1;
        assert!(
            !world.engine.faces(&world.store, world.model.id).await.contains_key(&faces[1]),
            "an erased face comes back"
        );
    }
    assert_eq!(steps, 5);
    world.assert_equal().await;
    let face = &world.engine.faces(&world.store, world.model.id).await[&faces[0]];
    assert_eq!((face.has_subject, face.quality), (true, Some(0.5)));
}

#[testing::test]
async fn one_process_at_a_time_changes_the_engine() {
    let world = World::create().await;
    world.index.take_over().await.unwrap();
    world.faces(1, 2).await;
    // The advisory lock of `store::index::external`, held by another process.
    let lock = world.db.hold("select pg_advisory_xact_lock(439720568067)").await;
    assert_eq!(world.index.step(10).await.unwrap(), Followed::Busy);
    drop(lock);
    memory::catch_up(&world.index).await;
    world.assert_equal().await;
}

#[testing::test]
async fn an_erasure_finds_faces_that_the_engine_lacks_although_no_change_is_left() {
    let world = World::create().await;
    let mut stored = Vec::new();
    for stopped in [false, true] {
        // The engine does not get this face: nothing is recorded, and nothing is copied.
        stored.extend(world.faces(1 + u64::from(stopped), 1).await);
        world.store.start_index_changes().await.unwrap();
        assert_eq!(world.store.oldest_index_change().await.unwrap(), None);
        for face in &stored {
            assert!(!world.engine.faces(&world.store, world.model.id).await.contains_key(face));
            let embedding = world.store.embedding(*face).await.unwrap().1;
            let target = Target::Likeness { embedding, model_id: world.model.id, threshold: 0.99 };
            let mut tx = world.store.begin().await.unwrap();
            let plan = world.store.plan_erasure(tx.conn(), world.collection, &target).await.unwrap();
            assert_eq!(plan.faces.iter().map(|face| face.id).collect::<Vec<_>>(), [*face]);
        }
        // The change of the next face is recorded, and lost before the engine has followed it.
        stored.extend(world.faces(3 + u64::from(stopped), 1).await);
        world.store.stop_index_changes().await.unwrap();
    }
}

#[testing::test]
async fn a_new_face_is_found_before_the_engine_has_it_and_a_caller_can_wait_for_the_engine() {
    let world = World::create().await;
    world.index.take_over().await.unwrap();
    world.faces(1, 30).await;
    memory::catch_up(&world.index).await;
    let store = world.store.clone().with_exact_limit(0);
    assert_eq!(store.index_lag().await.unwrap(), Duration::ZERO);
    store.index_caught_up(Duration::ZERO).await.unwrap();

    let new = world.faces(2, 1).await[0];
    let embedding = store.embedding(new).await.unwrap().1;
    let mut search = super::gallery::query(world.collection, world.model.id, embedding);
    search.limit = 3;
    let (hits, exact) = store.search(&search).await.unwrap();
    assert_eq!((hits[0].face.id, exact), (new, false));
    assert!(!world.engine.faces(&store, world.model.id).await.contains_key(&new));
    assert!(store.index_lag().await.unwrap() > Duration::ZERO);
    let behind = store.index_caught_up(Duration::ZERO).await;
    assert!(matches!(behind, Err(StoreError::IndexUnavailable(_))), "{behind:?}");

    let waiting = tokio::spawn(async move { store.index_caught_up(Duration::from_secs(60)).await });
    memory::catch_up(&world.index).await;
    waiting.await.unwrap().unwrap();
}

#[testing::test]
async fn a_process_with_another_engine_takes_over_only_when_it_claims_the_index() {
    let world = World::create().await;
    world.index.take_over().await.unwrap();
    world.faces(1, 5).await;
    memory::catch_up(&world.index).await;
    let set = memory::set_of(&world.store, world.model.id).await.unwrap();

    // A command beside the service does not claim the index, so it changes nothing.
    let engine = Arc::new(Engine::default());
    let other = ExternalIndex::new(world.db.store(), engine.clone());
    let refused = other.step(10).await;
    assert!(matches!(refused, Err(StoreError::IndexUnavailable(_))), "{refused:?}");
    assert_eq!(memory::set_of(&world.store, world.model.id).await.unwrap().id, set.id);
    memory::catch_up(&world.index).await;

    other.take_over().await.unwrap();
    memory::catch_up(&other).await;
    assert_eq!(engine.faces(&world.store, world.model.id).await.len(), 5);
    let refused = world.index.step(10).await;
    assert!(matches!(refused, Err(StoreError::IndexUnavailable(_))), "{refused:?}");
}

#[testing::test]
async fn an_outdated_set_is_used_until_its_replacement_is_complete() {
    let world = World::create().await;
    world.index.take_over().await.unwrap();
    let faces = world.faces(1, 20).await;
    memory::catch_up(&world.index).await;
    let serving = async || {
        let set = memory::set_of(&world.store, world.model.id).await.unwrap();
        (set.id, set.state)
    };
    let before = serving().await;
    // A migration does this when a new version stores an additional field of each face.
    sqlx::query("update index_sets set outdated = true").execute(world.db.pool()).await.unwrap();
    let set = memory::set_of(&world.store, world.model.id).await.unwrap().face_set();
    let mut contained = world.engine.faces(&world.store, world.model.id).await;
    let old = EngineFace { stored_us: 0, ..contained.remove(&faces[3]).unwrap() };
    let mut search = super::gallery::query(world.collection, world.model.id, old.embedding.clone());
    world.engine.update(&set, Update { fence: 1, stored: vec![old], deleted: Vec::new() }).await.unwrap();
    (search.limit, search.filter.since) =
        (5, Some(time::OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1)));
    let store = world.store.clone().with_exact_limit(0);
    let (hits, _) = store.search(&search).await.unwrap();
    assert_eq!(hits[0].face.id, faces[3], "the set lacks the time of this face");

    world.index.step(10).await.unwrap();
    assert_eq!(serving().await, before);
    memory::catch_up(&world.index).await;
    let after = serving().await;
    assert!(after.0 != before.0 && after.1 == IndexSetState::Serving);
    world.assert_equal().await;
    memory::catch_up(&world.index).await;
    assert_eq!(serving().await, after, "it is built once");
}

#[testing::test]
async fn a_search_in_a_crawl_compares_with_the_faces_of_the_crawl() {
    let world = World::create().await;
    world.index.take_over().await.unwrap();
    world.faces(1, 40).await;
    memory::catch_up(&world.index).await;
    let latest = world.faces(2, 30).await;
    let store = world.store.clone().with_exact_limit(0);
    let embedding = store.embedding(latest[0]).await.unwrap().1;
    let mut search = super::gallery::query(world.collection, world.model.id, embedding);
    search.filter.crawl_id = Some(Uuid::now_v7());
    let (hits, exact) = store.search(&search).await.unwrap();
    assert_eq!((hits.len(), exact), (0, true), "no face was found by this crawl");
}

#[testing::test]
async fn an_incomplete_answer_of_the_engine_leads_to_an_exact_search() {
    let world = World::create().await;
    world.index.take_over().await.unwrap();
    world.faces(1, 40).await;
    memory::catch_up(&world.index).await;
    let latest = world.faces(2, 30).await;
    let store = world.store.clone().with_exact_limit(0);
    let embedding = store.embedding(latest[0]).await.unwrap().1;
    let mut search = super::gallery::query(world.collection, world.model.id, embedding);
    search.limit = 60;
    let (hits, exact) = store.search(&search).await.unwrap();
    assert_eq!((hits.len(), exact), (60, true), "the engine has only 40 of the 70 faces");
}

#[testing::test]
async fn the_numbers_of_updates_grow_when_the_sequence_is_set_back() {
    let world = World::create().await;
    let next = async || {
        sqlx::query_scalar::<_, i64>("select next_index_fence()").fetch_one(world.db.pool()).await.unwrap()
    };
    let mut last = next().await;
    for set_back in [false, true, false, true] {
        if set_back {
            sqlx::query("select setval('index_fence', 1)").execute(world.db.pool()).await.unwrap();
        }
        let new = next().await;
        assert!(new > last, "{new} after {last}");
        last = new;
    }
    assert!(last < 1 << 53, "an engine may compare them as floating-point numbers");
}

#[testing::test]
async fn a_copy_ends_although_new_faces_arrive_all_the_time() {
    let world = World::create().await;
    world.faces(1, 10).await;
    world.index.take_over().await.unwrap();
    for seed in 2..8 {
        world.faces(seed, 1).await;
        world.index.step(4).await.unwrap();
    }
    let set = memory::set_of(&world.store, world.model.id).await.unwrap();
    assert_eq!(set.state, IndexSetState::Serving);
    memory::catch_up(&world.index).await;
    world.assert_equal().await;
}
