//! Tests what happens while an engine is down.
use super::clustering::twins;
use super::gallery::{assert_same, brute_force, gallery, query};
use super::memory::{self, Faults, Faulty};
use crate::fixture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::erasures::Target;
use store::index::engine::EngineError;
use store::people::clusters::ClusterScope;
use store::{Store, StoreError};
use testing::TestDatabase;
use uuid::Uuid;

/// Faults of an engine that can be switched off.
#[derive(Debug, Default)]
struct Switch {
    off: AtomicBool,
}

impl Switch {
    fn turn_off(&self, off: bool) {
        self.off.store(off, Ordering::SeqCst);
    }
}

impl Faults for Switch {
    fn check(&self) -> Result<(), EngineError> {
        if self.off.load(Ordering::SeqCst) {
            return Err(EngineError("it is off".into()));
        }
        Ok(())
    }
}

#[testing::test]
async fn without_the_engine_faces_are_stored_searched_exactly_and_erased() {
    let db = TestDatabase::create().await;
    let engine = Arc::new(Faulty::new(Switch::default()));
    let (index, store) = memory::start(&db, engine.clone()).await;
    let store = store.with_exact_limit(10);
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 64).await;
    let mut faces = gallery(&store, collection, &model, 60, 1).await;
    memory::catch_up(&index).await;
    engine.faults.turn_off(true);
    faces.extend(gallery(&store, collection, &model, 60, 2).await);
    let probe = faces[65].1.clone();
    let search = query(collection, model.id, probe.clone());
    let (hits, exact) = store.search(&search).await.unwrap();
    assert!(exact);
    assert_same(&hits, &brute_force(&faces, &probe, -1.0, 10));

    let expected = brute_force(&faces, &probe, 0.5, 120);
    let target = Target::Likeness { embedding: probe.clone(), model_id: model.id, threshold: 0.5 };
    erase(&store, collection, &target, &expected).await;
    faces.retain(|(face, _)| !expected.iter().any(|(id, _)| id == face));

    // No change is lost during the outage.
    let refused = index.step(10).await;
    assert!(matches!(refused, Err(StoreError::IndexUnavailable(_))), "{refused:?}");
    engine.faults.turn_off(false);
    memory::catch_up(&index).await;
    let mut contained: Vec<Uuid> = engine.engine.faces(&store, model.id).await.into_keys().collect();
    contained.sort_unstable();
    let mut stored: Vec<Uuid> = faces.iter().map(|(id, _)| *id).collect();
    stored.sort_unstable();
    assert_eq!(contained, stored);
    let (hits, exact) = store.search(&search).await.unwrap();
    assert!(!exact);
    assert_same(&hits, &brute_force(&faces, &probe, -1.0, 10));

    // The engine has followed all changes, and is switched off again.
    engine.faults.turn_off(true);
    let (_, probe) = &faces[0];
    let expected = brute_force(&faces, probe, 0.5, 120);
    let target = Target::Likeness { embedding: probe.clone(), model_id: model.id, threshold: 0.5 };
    erase(&store, collection, &target, &expected).await;
}

async fn erase(store: &Store, collection: Uuid, target: &Target, expected: &[(Uuid, f64)]) {
    let mut tx = store.begin().await.unwrap();
    let plan = store.plan_erasure(tx.conn(), collection, target).await.unwrap();
    assert_eq!(plan.faces.iter().filter(|face| face.similarity.is_some()).count(), expected.len());
    store.carry_out(tx.conn(), &plan).await.unwrap();
    tx.commit().await.unwrap();
}

#[testing::test]
async fn a_clustering_of_a_large_collection_waits_for_the_engine() {
    let db = TestDatabase::create().await;
    let engine = Arc::new(Faulty::new(Switch::default()));
    let (_, store) = memory::start(&db, engine.clone()).await;
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 13).await;
    let (first, _) = twins(&store, collection, &model, 2_501).await;
    engine.faults.turn_off(true);
    let scope = ClusterScope { collection_id: collection, model_id: model.id, any_quality: true };
    let refused = store.neighbours(&scope, &first[..2], 3, 0.5).await;
    assert!(matches!(refused, Err(StoreError::IndexUnavailable(_))), "{refused:?}");
    let scope = ClusterScope { collection_id: Uuid::now_v7(), ..scope };
    assert_eq!(store.neighbours(&scope, &first[..2], 3, 0.5).await.unwrap(), [], "a small one does not");
}
