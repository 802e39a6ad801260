//! Tests that a clustering of many faces builds the index of pgvector before it needs it. Tests of
//! the clusters are in `people`.

use crate::support::{World, wait_for};
use domain::{ClusteringState, JobKind};
use pipeline::Clusters;
use queue::RunEnd;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::Tx;
use store::index::pgvector::HnswIndex;
use store::index::{EmbeddingModel, Pgvector};
use store::people::SubjectFilter;
use store::people::clusters::{ClusterScope, Clustering};
use testing::embeddings::Random;
use testing::rows;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Up to this number of faces in scope, a clustering compares with every face.
const MAX_EXACT_FACES: usize = 5_000;
/// Number of people with [`FACES_PER_PERSON`] faces. The others have one face each.
const PEOPLE: usize = 100;
const FACES_PER_PERSON: usize = 3;
const FACES_PER_IMAGE: usize = 50;
/// An index of so few dimensions finds each neighbour.
const DIMENSIONS: usize = 8;
/// Faces of one person have a mean similarity of 0.9999. No two people are so similar.
const SPREAD: f64 = 0.01;
const THRESHOLD: f32 = 0.998;

struct Gallery {
    world: World,
    model: EmbeddingModel,
    pgvector: Pgvector,
}

impl Gallery {
    async fn create() -> Self {
        let world = World::new().await;
        let model = world.store.models().register("random", "random", DIMENSIONS as i32).await.unwrap();
        let pgvector = Pgvector::new(world.store.pool().clone());
        Self { world, model, pgvector }
    }

    /// Stores faces, of which those of one person are in different images. Returns the collection
    /// and the faces of each person with several faces.
    async fn store_faces(&self, name: &str, seed: u64, count: usize) -> (Uuid, BTreeSet<BTreeSet<Uuid>>) {
        let store = &self.world.store;
        let collection = store.collections().ensure(name).await.unwrap().id;
        let mut random = Random(seed);
        let centres: Vec<Vec<f32>> = (0..PEOPLE).map(|_| random.unit_vector(DIMENSIONS)).collect();
        let mut of_person = BTreeMap::<usize, BTreeSet<Uuid>>::new();
        for first in (0..count).step_by(FACES_PER_IMAGE) {
            let mut faces = Vec::new();
            for number in first..count.min(first + FACES_PER_IMAGE) {
                if number >= PEOPLE * FACES_PER_PERSON {
                    faces.push(rows::face(random.unit_vector(DIMENSIONS), self.model.id, 0.5));
                    continue;
                }
                let person = number % PEOPLE;
                let embedding = random.vector_near(&centres[person], SPREAD);
                let face = rows::face(embedding, self.model.id, 0.5);
                of_person.entry(person).or_default().insert(face.id);
                faces.push(face);
            }
            let image = rows::image(&mut random);
            let mut tx = store.begin().await.unwrap();
            store.images().insert(tx.conn(), collection, &image).await.unwrap().unwrap();
            store.faces().insert(tx.conn(), collection, image.id, &faces).await.unwrap();
            tx.commit().await.unwrap();
        }
        (collection, of_person.into_values().collect())
    }

    async fn begin(&self, collection_id: Uuid) -> Uuid {
        let scope = ClusterScope { collection_id, model_id: self.model.id, any_quality: true };
        let clusters = Clusters::new(self.world.store.clone(), self.world.queue.clone());
        clusters.begin(&scope, THRESHOLD).await.unwrap().0.id
    }

    async fn clustering(&self, id: Uuid) -> Clustering {
        self.world.store.clusters().get(id).await.unwrap()
    }

    async fn until_completed(&self, id: Uuid) {
        let ended = wait_for(async || {
            let current = self.clustering(id).await;
            current.finished_at.is_some().then_some(current)
        });
        let ended = ended.await.expect("the clustering ends");
        assert_eq!(ended.state, ClusteringState::Completed, "{:?}", ended.error);
    }

    /// Runs a clustering, and returns the faces of each cluster.
    async fn cluster(&self, collection: Uuid) -> BTreeSet<BTreeSet<Uuid>> {
        let id = self.begin(collection).await;
        let worker = self.world.worker("clustering");
        self.until_completed(id).await;
        worker.stop().await;
        self.clusters(collection).await
    }

    async fn clusters(&self, collection_id: Uuid) -> BTreeSet<BTreeSet<Uuid>> {
        let people = self.world.store.people();
        let filter = SubjectFilter { collection_id, name: None, external_id: None, origin: None };
        let mut clusters = BTreeSet::new();
        for subject in people.list(&filter, None, 10_000).await.unwrap() {
            let faces = people.faces(collection_id, subject.id, None, 1_000).await.unwrap();
            clusters.insert(faces.into_iter().map(|face| face.id).collect());
        }
        clusters
    }

    async fn index(&self) -> HnswIndex {
        let indexes = self.pgvector.indexes().await.unwrap();
        indexes.into_iter().find(|index| index.model_id == self.model.id).unwrap()
    }

    /// Returns a transaction that stores a face in another collection. A build of the index waits
    /// for its end.
    async fn begin_writing(&self) -> Tx {
        let store = &self.world.store;
        let collection = store.collections().ensure("other").await.unwrap().id;
        let mut random = Random(7);
        let image = rows::image(&mut random);
        let face = rows::face(random.unit_vector(DIMENSIONS), self.model.id, 0.5);
        let mut tx = store.begin().await.unwrap();
        store.images().insert(tx.conn(), collection, &image).await.unwrap().unwrap();
        store.faces().insert(tx.conn(), collection, image.id, &[face]).await.unwrap();
        tx
    }

    async fn until_building(&self) {
        wait_for(async || self.index().await.building.then_some(())).await.expect("the build begins");
    }
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn clustering_of_many_faces_builds_index_and_finds_same_clusters() {
    let gallery = Gallery::create().await;
    let (collection, people) = gallery.store_faces("many", 1, MAX_EXACT_FACES + 1).await;
    gallery.pgvector.drop_for_bulk_load(gallery.model.id).await.unwrap();
    assert_eq!(gallery.cluster(collection).await, people);
    assert_eq!(gallery.index().await.bytes, None, "a bulk load is in progress");

    gallery.world.execute("update embedding_models set bulk_load = false").await;
    gallery.world.execute("delete from subjects").await;
    gallery.world.execute("delete from clustered_faces").await;
    assert_eq!(gallery.cluster(collection).await, people);
    assert!(gallery.index().await.complete);
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn clustering_of_few_faces_builds_no_index() {
    let gallery = Gallery::create().await;
    let (collection, people) = gallery.store_faces("few", 1, MAX_EXACT_FACES).await;
    assert_eq!(gallery.cluster(collection).await, people);
    let index = gallery.index().await;
    assert!(index.bytes.is_none() && !index.building);
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_clusterings_build_index_once() {
    let gallery = Gallery::create().await;
    let (one, people_of_one) = gallery.store_faces("one", 1, MAX_EXACT_FACES + 1).await;
    let (other, people_of_other) = gallery.store_faces("two", 2, MAX_EXACT_FACES + 1).await;
    let writer = gallery.begin_writing().await;
    let (first, second) = (gallery.begin(one).await, gallery.begin(other).await);
    let workers = [gallery.world.worker("first"), gallery.world.worker("second")];
    gallery.until_building().await;
    let both_run = wait_for(async || {
        let states = [gallery.clustering(first).await.state, gallery.clustering(second).await.state];
        (states == [ClusteringState::Running; 2]).then_some(())
    });
    both_run.await.expect("both clusterings run");
    let oid = "select to_regclass('faces_embedding_hnsw_2_new')::oid::bigint";
    let oid_of_first = gallery.world.number(oid).await;
    writer.commit().await.unwrap();
    gallery.until_completed(first).await;
    gallery.until_completed(second).await;
    for worker in workers {
        worker.stop().await;
    }
    // A second build would have replaced the index.
    let oid = "select to_regclass('faces_embedding_hnsw_2')::oid::bigint";
    assert_eq!(gallery.world.number(oid).await, oid_of_first);
    assert!(gallery.index().await.complete);
    assert_eq!(gallery.clusters(one).await, people_of_one);
    assert_eq!(gallery.clusters(other).await, people_of_other);
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn clustering_continues_without_index_if_build_fails() {
    let gallery = Gallery::create().await;
    let (collection, people) = gallery.store_faces("many", 1, MAX_EXACT_FACES + 1).await;
    let (id, writer) = (gallery.begin(collection).await, gallery.begin_writing().await);
    let worker = gallery.world.worker("clustering");
    gallery.until_building().await;
    let terminate = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                     where datname = current_database() and query like 'create index concurrently%'";
    assert_eq!(gallery.world.number(terminate).await, 1);
    gallery.until_completed(id).await;
    drop(writer);
    worker.stop().await;
    assert!(!gallery.index().await.complete);
    assert_eq!(gallery.clusters(collection).await, people);
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn clustering_stops_during_build_and_builds_again_later() {
    let gallery = Gallery::create().await;
    let (collection, people) = gallery.store_faces("many", 1, MAX_EXACT_FACES + 1).await;
    let (id, writer) = (gallery.begin(collection).await, gallery.begin_writing().await);
    let kinds = [JobKind::ClusterCollection.into()];
    let job = gallery.world.queue.claim(&kinds, 1, "first").await.unwrap().remove(0);
    let (claim, handler) = (job.claim, gallery.world.handlers()[&job.kind].clone());
    let cancel = CancellationToken::new();
    let run = tokio::spawn({
        let cancel = cancel.clone();
        async move { handler.run(job, cancel).await }
    });
    gallery.until_building().await;
    // The build cannot end before the transaction does.
    cancel.cancel();
    let outcome = run.await.unwrap();
    assert!(matches!(outcome, RunEnd::Snooze(_)), "{outcome:?}");
    gallery.world.queue.snooze(claim, Duration::ZERO).await.unwrap();
    assert_eq!(gallery.clustering(id).await.looked, 0);
    assert!(!gallery.index().await.complete);

    // The server releases the lock of the cancelled build after ten seconds at the latest.
    let worker = gallery.world.worker("second");
    writer.commit().await.unwrap();
    gallery.until_completed(id).await;
    worker.stop().await;
    assert!(gallery.index().await.complete);
    assert_eq!(gallery.clusters(collection).await, people);
}
