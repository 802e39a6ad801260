//! Tests when the index of pgvector is built, and that searches are exact until then.
use crate::fixture::{self, DIMENSIONS, assert_same, brute_force, gallery, query};
use sqlx::{Postgres, Transaction};
use std::time::{Duration, Instant};
use store::index::builds::IndexBuilds;
use store::index::pgvector::HnswIndex;
use store::index::scope::FaceScope;
use store::index::{EmbeddingModel, FaceIndex, Neighbours, Pgvector};
use store::{Store, StoreError};
use testing::{MAX_WAIT, TestDatabase};
use tokio::task::JoinHandle;
use uuid::Uuid;

const EXACT_LIMIT: i64 = 50;

struct World {
    db: TestDatabase,
    store: Store,
    pgvector: Pgvector,
    collection: Uuid,
    model: EmbeddingModel,
    faces: Vec<(Uuid, Vec<f32>)>,
}

impl World {
    async fn create() -> Self {
        let db = TestDatabase::create().await;
        let store = db.store().with_exact_limit(EXACT_LIMIT);
        let (collection, model) = fixture::default_and_model(&store, DIMENSIONS as i32).await;
        let pgvector = Pgvector::new(store.pool().clone());
        Self { db, store, pgvector, collection, model, faces: Vec::new() }
    }

    fn builds(&self) -> IndexBuilds {
        IndexBuilds::new(self.db.pool().clone(), EXACT_LIMIT)
    }

    async fn store_faces(&mut self, count: usize) {
        let seed = self.faces.len() as u64;
        self.faces.extend(gallery(&self.store, self.collection, &self.model, count, seed).await);
    }

    async fn index(&self) -> HnswIndex {
        self.pgvector.indexes().await.unwrap().remove(0)
    }

    /// Searches for a stored face, which must be found. Returns whether the search was exact.
    async fn search(&self) -> bool {
        let (face, embedding) = &self.faces[7];
        let search = query(self.collection, self.model.id, embedding.clone());
        let (hits, exact) = self.store.faces().search(&search).await.unwrap();
        assert_eq!(hits[0].face.id, *face);
        if exact {
            assert_same(&hits, &brute_force(&self.faces, embedding, -1.0, 10));
        }
        exact
    }

    /// Begins a build, which waits for the returned transaction.
    async fn begin_build(
        &self,
        mut builds: IndexBuilds,
    ) -> (JoinHandle<Result<Vec<String>, StoreError>>, Transaction<'static, Postgres>) {
        let writer = self.db.execute_in_open_transaction("update faces set det_score = 0.5").await;
        let build = tokio::spawn(async move { builds.run_due().await });
        self.wait_until(async || self.index().await.building).await;
        (build, writer)
    }

    async fn wait_until(&self, is_done: impl AsyncFn() -> bool) {
        let deadline = Instant::now() + MAX_WAIT;
        while !is_done().await {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the number of sessions that build an index.
    async fn count_builds(&self) -> i64 {
        let query = "select count(*) from pg_stat_activity
                     where datname = current_database() and query like 'create index concurrently%' and state = 'active'";
        self.db.number(query).await
    }
}

#[testing::test]
async fn index_is_built_when_faces_outgrow_exact_search() {
    let mut world = World::create().await;
    let mut builds = world.builds();
    world.store_faces(EXACT_LIMIT as usize).await;
    for _ in 0..3 {
        assert!(builds.run_due().await.unwrap().is_empty());
    }
    assert_eq!(world.index().await.bytes, None);

    world.store_faces(2).await;
    assert!(world.search().await);
    let (scope, faces) = (FaceScope::all(world.collection, world.model.id), [world.faces[7].0]);
    let (limit, threshold) = (5, -1.0);
    let neighbours =
        Neighbours { scope: &scope, model: &world.model, faces: &faces, limit, threshold, exact: false };
    let exact_neighbours = world.pgvector.neighbours(&neighbours).await.unwrap();
    let exact = Neighbours { exact: true, ..neighbours.clone() };
    assert_eq!(exact_neighbours, world.pgvector.neighbours(&exact).await.unwrap());

    assert_eq!(builds.run_due().await.unwrap(), ["m"]);
    let index = world.index().await;
    assert!(index.complete && !index.building && index.bytes.is_some());
    assert!(!world.search().await);
    assert_eq!(world.pgvector.neighbours(&neighbours).await.unwrap().len(), 5);
    let definition: String =
        sqlx::query_scalar("select indexdef from pg_indexes where indexname = 'faces_embedding_hnsw_1'")
            .fetch_one(world.db.pool())
            .await
            .unwrap();
    assert!(definition.contains("m='16', ef_construction='128'"), "{definition}");
    assert!(definition.contains("(model_id = 1)"), "{definition}");
    // Statistics would keep samples of erased embeddings.
    let query = "select count(*) from pg_attribute
                 where attrelid = 'faces_embedding_hnsw_1'::regclass and attstattarget = 0";
    assert_eq!(world.db.number(query).await, 1);

    // An index is kept if the number of faces falls below the limit.
    fixture::delete_faces(&world.store, world.faces[20..].iter()).await;
    assert!(builds.run_due().await.unwrap().is_empty());
    assert!(world.index().await.complete);
}

#[testing::test]
async fn fast_growth_defers_index_up_to_four_times_the_limit() {
    let mut world = World::create().await;
    let mut builds = world.builds();
    for count in [60, 60, 60, 20] {
        world.store_faces(count).await;
        assert!(builds.run_due().await.unwrap().is_empty(), "{} faces", world.faces.len());
        assert!(world.search().await);
    }
    world.store_faces(20).await;
    assert_eq!(builds.run_due().await.unwrap(), ["m"]);
}

#[testing::test]
async fn bulk_load_defers_index_until_rebuild() {
    let mut world = World::create().await;
    let mut builds = world.builds();
    world.pgvector.drop_for_bulk_load(world.model.id).await.unwrap();
    world.store_faces(220).await;
    for _ in 0..3 {
        assert!(builds.run_due().await.unwrap().is_empty());
    }
    let index = world.index().await;
    assert!(index.bulk_load && index.bytes.is_none());
    assert!(world.search().await);
    world.pgvector.rebuild(&world.model).await.unwrap();
    assert!(!world.search().await);
    world.pgvector.drop_index(world.model.id).await.unwrap();
    assert!(!world.index().await.bulk_load);
    assert_eq!(builds.run_due().await.unwrap(), ["m"], "the bulk load has ended");
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_build_is_repeated() {
    let mut world = World::create().await;
    world.store_faces(60).await;
    let mut builds = world.builds();
    assert!(builds.run_due().await.unwrap().is_empty());
    let (build, writer) = world.begin_build(builds).await;
    let terminate = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                     where datname = current_database() and query like 'create index concurrently%'";
    assert_eq!(world.db.number(terminate).await, 1);
    build.await.unwrap().unwrap_err();
    drop(writer);
    assert!(world.index().await.building, "a part of the index is left");
    assert!(world.search().await);

    let mut builds = world.builds();
    assert!(builds.run_due().await.unwrap().is_empty());
    assert!(!world.index().await.building);
    assert_eq!(builds.run_due().await.unwrap(), ["m"]);
    assert!(!world.search().await);

    // An interrupted drop leaves an index that searches must not use.
    let invalidate =
        "update pg_index set indisvalid = false where indexrelid = 'faces_embedding_hnsw_1'::regclass";
    world.db.execute(invalidate).await;
    assert!(world.search().await);
    assert_eq!(builds.run_due().await.unwrap(), ["m"]);
    assert!(!world.search().await);
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_stops_build_of_killed_process() {
    let mut world = World::create().await;
    world.store_faces(220).await;
    let (build, writer) = world.begin_build(world.builds()).await;
    build.abort();
    // The server checks the connection every ten seconds.
    world.wait_until(async || world.count_builds().await == 0).await;
    drop(writer);
    assert!(world.index().await.building, "a part of the index is left");
    assert_eq!(world.builds().run_due().await.unwrap(), ["m"]);
    assert!(!world.search().await);
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_builds_index_while_faces_are_stored_and_searched() {
    let mut world = World::create().await;
    world.store_faces(220).await;
    let (build, writer) = world.begin_build(world.builds()).await;
    assert!(world.builds().run_due().await.unwrap().is_empty());
    assert!(world.search().await);
    world.store_faces(10).await;
    writer.commit().await.unwrap();
    assert_eq!(build.await.unwrap().unwrap(), ["m"]);
    assert!(world.builds().run_due().await.unwrap().is_empty());
    assert!(!world.search().await);
    let (face, embedding) = world.faces.last().unwrap();
    let search = query(world.collection, world.model.id, embedding.clone());
    assert_eq!(world.store.faces().search(&search).await.unwrap().0[0].face.id, *face);
}
