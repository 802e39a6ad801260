//! Tests an engine that is not available, and failures of an engine and of a process during their
//! work.
use crate::face_index::memory::{self, Engine, Faults};
use crate::face_index::people::twins;
use crate::fixture::{self, assert_same, brute_force, gallery, query, random_unit_vector};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::erasures::Target;
use store::index::EmbeddingModel;
use store::index::engine::{EngineError, EngineFace, VectorEngine};
use store::index::external::{ExternalIndex, StepOutcome};
use store::people::clusters::ClusterScope;
use store::{Store, StoreError};
use testing::{MAX_WAIT, TestDatabase};
use uuid::Uuid;

/// Faults of an engine that can be switched off.
#[derive(Debug, Default)]
struct Switch {
    is_off: AtomicBool,
}

impl Switch {
    fn turn_off(&self, is_off: bool) {
        self.is_off.store(is_off, Ordering::SeqCst);
    }
}

impl Faults for Switch {
    fn check(&self) -> Result<(), EngineError> {
        if self.is_off.load(Ordering::SeqCst) {
            return Err(EngineError("the engine is off".into()));
        }
        Ok(())
    }
}

#[testing::test]
async fn faces_are_stored_searched_and_erased_without_engine() {
    let db = TestDatabase::create().await;
    let engine = Arc::new(Engine::with(Switch::default()));
    let (index, store) = memory::start(&db, engine.clone()).await;
    let store = store.with_exact_limit(10);
    let (collection, model) = fixture::default_and_model(&store, 64).await;
    let mut faces = gallery(&store, collection, &model, 60, 1).await;
    memory::catch_up(&index).await;
    engine.faults.turn_off(true);
    faces.extend(gallery(&store, collection, &model, 60, 2).await);
    let probe = faces[65].1.clone();
    let search = query(collection, model.id, probe.clone());
    let (hits, exact) = store.faces().search(&search).await.unwrap();
    assert!(exact);
    assert_same(&hits, &brute_force(&faces, &probe, -1.0, 10));

    let expected = brute_force(&faces, &probe, 0.5, 120);
    let target = Target::Likeness { embedding: probe.clone(), model_id: model.id, threshold: 0.5 };
    erase(&store, collection, &target, &expected).await;
    faces.retain(|(face, _)| !expected.iter().any(|(id, _)| id == face));

    // No change is lost during the outage.
    let result = index.step(10).await;
    assert!(matches!(result, Err(StoreError::IndexUnavailable(_))), "{result:?}");
    engine.faults.turn_off(false);
    memory::catch_up(&index).await;
    let mut indexed_ids: Vec<Uuid> = engine.faces(&store, model.id).await.into_keys().collect();
    indexed_ids.sort_unstable();
    let mut stored: Vec<Uuid> = faces.iter().map(|(id, _)| *id).collect();
    stored.sort_unstable();
    assert_eq!(indexed_ids, stored);
    let (hits, exact) = store.faces().search(&search).await.unwrap();
    assert!(!exact);
    assert_same(&hits, &brute_force(&faces, &probe, -1.0, 10));

    // The engine has applied all changes, and is switched off again.
    engine.faults.turn_off(true);
    let (_, probe) = &faces[0];
    let expected = brute_force(&faces, probe, 0.5, 120);
    let target = Target::Likeness { embedding: probe.clone(), model_id: model.id, threshold: 0.5 };
    erase(&store, collection, &target, &expected).await;
}

async fn erase(store: &Store, collection: Uuid, target: &Target, expected: &[(Uuid, f64)]) {
    let plan = fixture::erase(store, collection, target).await;
    assert_eq!(plan.faces.iter().filter(|face| face.similarity.is_some()).count(), expected.len());
}

#[testing::test]
async fn clustering_of_large_collection_waits_for_engine() {
    let db = TestDatabase::create().await;
    let engine = Arc::new(Engine::with(Switch::default()));
    let (_, store) = memory::start(&db, engine.clone()).await;
    let (collection, model) = fixture::default_and_model(&store, 13).await;
    let (first, _) = twins(&store, collection, &model, 2_501).await;
    engine.faults.turn_off(true);
    let scope = ClusterScope { collection_id: collection, model_id: model.id, any_quality: true };
    let result = store.clusters().neighbours(&scope, &first[..2], 3, 0.5).await;
    assert!(matches!(result, Err(StoreError::IndexUnavailable(_))), "{result:?}");
    let scope = ClusterScope { collection_id: Uuid::now_v7(), ..scope };
    assert_eq!(
        store.clusters().neighbours(&scope, &first[..2], 3, 0.5).await.unwrap(),
        [],
        "the clustering of a small collection does not wait"
    );
}

const COMPONENTS: usize = 8;
const WRITERS: u64 = 3;
const TRANSACTIONS: usize = 120;
/// Maximum number of changes of one step.
const CHANGES: i64 = 25;
/// Maximum time after which a step is interrupted, in microseconds.
const MAX_MICROS: u64 = 50_000;

/// Faults of an engine: most updates fail, before, during or after the changes are made.
#[derive(Debug)]
struct Crashes {
    rng: Mutex<StdRng>,
}

impl Faults for Crashes {
    fn update(&self, stored: &mut Vec<EngineFace>, deleted: &mut Vec<Uuid>) -> Result<(), EngineError> {
        let (fails, share) = {
            let mut rng = self.rng.lock().unwrap();
            (rng.random_bool(0.6), rng.random_range(0.0..=1.0))
        };
        if !fails {
            return Ok(());
        }
        stored.truncate((stored.len() as f64 * share) as usize);
        deleted.truncate((deleted.len() as f64 * share) as usize);
        Err(EngineError("the engine crashed".into()))
    }
}

/// Stores, changes and deletes its faces.
struct Writer {
    store: Store,
    collection: Uuid,
    models: [EmbeddingModel; 2],
    subject: Uuid,
    rng: StdRng,
    /// The number of its next image.
    number: u64,
    images: BTreeMap<Uuid, Vec<Uuid>>,
    /// Faces whose deletion was committed.
    deleted: Arc<Mutex<HashSet<Uuid>>>,
}

impl Writer {
    /// Returns an image and one of its faces.
    fn random_face(&mut self) -> Option<(Uuid, Uuid)> {
        let faces: Vec<(Uuid, Uuid)> =
            self.images.iter().flat_map(|(image, faces)| faces.iter().map(|face| (*image, *face))).collect();
        (!faces.is_empty()).then(|| faces[self.rng.random_range(0..faces.len())])
    }

    async fn store_image(&mut self) {
        let faces: Vec<_> = (0..3)
            .map(|_| fixture::face(&self.models[0], random_unit_vector(&mut self.rng, COMPONENTS)))
            .collect();
        self.number += 1;
        let image = fixture::image(self.number);
        let mut tx = self.store.begin().await.unwrap();
        self.store.images().insert(tx.conn(), self.collection, &image).await.unwrap().unwrap();
        self.store.faces().insert(tx.conn(), self.collection, image.id, &faces).await.unwrap();
        // Every fourth transaction is rolled back.
        if self.rng.random_bool(0.75) {
            tx.commit().await.unwrap();
            self.images.insert(image.id, faces.iter().map(|face| face.id).collect());
        }
    }

    async fn transaction(&mut self) {
        let (kind, stored) = (self.rng.random_range(0..6), self.random_face());
        let (2.., Some((image, face))) = (kind, stored) else { return self.store_image().await };
        let mut tx = self.store.begin().await.unwrap();
        match kind {
            2 => {
                self.store.faces().delete(tx.conn(), face).await.unwrap();
                tx.commit().await.unwrap();
                self.images.get_mut(&image).unwrap().retain(|other| *other != face);
                self.deleted.lock().unwrap().insert(face);
            }
            3 => {
                self.store.images().delete(tx.conn(), image).await.unwrap();
                tx.commit().await.unwrap();
                let faces = self.images.remove(&image).unwrap();
                self.deleted.lock().unwrap().extend(faces);
            }
            4 => {
                drop(tx);
                let model = &self.models[self.rng.random_range(0..2)];
                let embedding = random_unit_vector(&mut self.rng, COMPONENTS);
                self.store.models().replace_embeddings(model, &[(face, embedding)]).await.unwrap();
            }
            _ => {
                self.store.people().lock(tx.conn(), self.collection, &[self.subject]).await.unwrap();
                let (collection, subject) = (self.collection, self.subject);
                self.store.people().enrol(tx.conn(), collection, subject, &[face], true).await.unwrap();
                tx.commit().await.unwrap();
            }
        }
    }
}

/// Applies changes until `done` is set, and then the remaining ones. Interrupts steps at random.
/// Returns the numbers of failures and of interruptions.
async fn apply_changes(index: ExternalIndex, done: Arc<AtomicBool>) -> (usize, usize) {
    let (mut failures, mut interruptions) = (0, 0);
    let mut rng = StdRng::seed_from_u64(8);
    loop {
        let ended = done.load(Ordering::SeqCst);
        let limit = if ended { MAX_WAIT } else { Duration::from_micros(rng.random_range(0..MAX_MICROS)) };
        match tokio::time::timeout(limit, index.step(CHANGES)).await {
            Ok(Ok(StepOutcome::Applied(0))) if ended => return (failures, interruptions),
            Ok(Ok(_)) => tokio::task::yield_now().await,
            Ok(Err(StoreError::IndexUnavailable(_))) => failures += 1,
            Ok(Err(error)) => panic!("{error}"),
            Err(_) => interruptions += 1,
        }
    }
}

/// Searches until `done` is set. No result may contain a face that was deleted before the search.
async fn search_until_done(
    store: Store,
    collection: Uuid,
    deleted: Arc<Mutex<HashSet<Uuid>>>,
    done: Arc<AtomicBool>,
) {
    let mut rng = fixture::rng(99);
    while !done.load(Ordering::SeqCst) {
        for model in 1..=2 {
            let before = deleted.lock().unwrap().clone();
            let mut search = query(collection, model, random_unit_vector(&mut rng, COMPONENTS));
            search.limit = 20;
            let (hits, _) = store.faces().search(&search).await.unwrap();
            assert!(hits.iter().all(|hit| !before.contains(&hit.face.id)), "a deleted face is found");
        }
    }
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_failures_neither_lose_changes_nor_show_erased_faces() {
    let db = TestDatabase::create().await;
    let engine = Arc::new(Engine::with(Crashes { rng: Mutex::new(StdRng::seed_from_u64(7)) }));
    let (index, store) = memory::start(&db, engine.clone()).await;
    let store = store.with_exact_limit(10);
    let collection = fixture::collection(&store, "default").await;
    let models = [
        fixture::model(&store, "m", COMPONENTS as i32).await,
        fixture::model(&store, "n", COMPONENTS as i32).await,
    ];
    let (done, deleted) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let follower = tokio::spawn(apply_changes(index, done.clone()));
    let reader =
        tokio::spawn(search_until_done(store.clone(), collection, Arc::clone(&deleted), done.clone()));
    let mut writers = tokio::task::JoinSet::new();
    for number in 1..=WRITERS {
        let subject = fixture::person(&store, collection, &fixture::unnamed_subject(), &[]).await;
        let mut writer = Writer {
            store: store.clone(),
            collection,
            models: models.clone(),
            subject,
            rng: StdRng::seed_from_u64(number),
            number: number * 10_000,
            images: BTreeMap::new(),
            deleted: Arc::clone(&deleted),
        };
        writers.spawn(async move {
            for _ in 0..TRANSACTIONS {
                writer.transaction().await;
            }
        });
    }
    while let Some(result) = writers.join_next().await {
        result.unwrap();
        store.index().request_rebuild(engine.name()).await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    reader.await.unwrap();
    let (failures, interruptions) = follower.await.unwrap();
    assert!(failures > 10 && interruptions > 10, "{failures} failures, {interruptions} interruptions");

    for model in &models {
        let rows: Vec<(Uuid, bool)> = sqlx::query_as(
            "select f.id, exists (select from subject_faces s where s.face_id = f.id) from faces f where f.model_id = $1",
        )
        .bind(model.id)
        .fetch_all(db.pool())
        .await
        .unwrap();
        let indexed = engine.faces(&store, model.id).await;
        assert_eq!(indexed.len(), rows.len());
        assert!(!rows.is_empty());
        for (id, has_subject) in rows {
            let (_, embedding) = store.faces().embedding(id).await.unwrap();
            assert_eq!((&indexed[&id].embedding, indexed[&id].has_subject), (&embedding, has_subject));
        }
    }
    assert!(!deleted.lock().unwrap().is_empty());
}
