//! Tests the comparison of a set with the rows, and when a set is built again.
use super::gallery::{DIMENSIONS, gallery};
use super::memory::{Engine, catch_up, set_of, start};
use crate::fixture;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use store::index::engine::{EngineFace, FaceSet, Update, VectorEngine};
use store::index::external::{Checked, Config, ExternalIndex};
use testing::TestDatabase;
use uuid::Uuid;

/// Compares the set of a model with the rows.
pub(crate) async fn check(index: &ExternalIndex, store: &Store, model: i32) -> Checked {
    let set = set_of(store, model).await.unwrap();
    store.request_index_check(&set.index_name).await.unwrap();
    catch_up(index).await;
    let set = set_of(store, model).await.unwrap();
    assert_eq!(set.check_requested_at, None);
    serde_json::from_value(set.check_result.unwrap()).unwrap()
}

/// Damages a set of 100 faces: three are missing, one is surplus, and three differ from their rows.
/// Returns what a comparison must find.
async fn damage(engine: &dyn VectorEngine, set: &FaceSet, fence: i64) -> Checked {
    let mut faces = engine.page(set, Uuid::nil(), 100).await.unwrap();
    let moved = EngineFace { collection_id: Uuid::now_v7(), ..faces[0].clone() };
    let turned = EngineFace { embedding: faces[2].embedding.clone(), ..faces[1].clone() };
    let later = EngineFace { stored_us: faces[4].stored_us + 1, ..faces[4].clone() };
    let surplus = EngineFace { id: Uuid::now_v7(), ..faces[3].clone() };
    let deleted: Vec<Uuid> = faces.split_off(97).iter().map(|face| face.id).collect();
    engine.update(set, Update { fence, stored: vec![moved, turned, later, surplus], deleted }).await.unwrap();
    Checked { rows: 100, faces: 98, missing: 3, surplus: 1, different: 3 }
}

async fn sets(engine: &dyn VectorEngine) -> BTreeSet<Uuid> {
    engine.sets().await.unwrap().into_iter().collect()
}

/// Damages a set of an empty engine, compares it with the rows, and builds it again.
pub(crate) async fn differences_are_counted_and_repaired(engine: Arc<dyn VectorEngine>) {
    let db = TestDatabase::create().await;
    let (index, store) = start(&db, engine.clone()).await;
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    gallery(&store, collection, &model, 100, 1).await;
    catch_up(&index).await;
    assert_eq!(
        check(&index, &store, model.id).await,
        Checked { rows: 100, faces: 100, ..Checked::default() }
    );
    let set = set_of(&store, model.id).await.unwrap().face_set();
    let fence = sqlx::query_scalar("select next_index_fence()").fetch_one(db.pool()).await.unwrap();
    let expected = damage(engine.as_ref(), &set, fence).await;
    assert_eq!(check(&index, &store, model.id).await, expected);

    // A new set has the rows again. Searches use the old one until it is complete.
    assert_eq!(store.request_index_rebuild(engine.name()).await.unwrap(), 1);
    assert_eq!(store.request_index_rebuild(engine.name()).await.unwrap(), 0, "it is requested already");
    catch_up(&index).await;
    let rebuilt = set_of(&store, model.id).await.unwrap();
    assert_ne!(rebuilt.id, set.id);
    assert!(check(&index, &store, model.id).await.is_equal());
    assert_eq!(sets(engine.as_ref()).await, BTreeSet::from([rebuilt.id]), "the old set is deleted");
}

#[testing::test]
async fn a_comparison_counts_what_is_missing_surplus_and_different() {
    differences_are_counted_and_repaired(Arc::new(Engine::default())).await;
}

#[testing::test]
async fn a_process_that_starts_later_uses_the_set_and_builds_a_missing_one_again() {
    let db = TestDatabase::create().await;
    let engine = Arc::new(Engine::default());
    let (index, store) = start(&db, engine.clone()).await;
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let faces = gallery(&store, collection, &model, 60, 1).await;
    catch_up(&index).await;
    let before = set_of(&store, model.id).await.unwrap().id;
    drop((index, store));

    let (index, store) = start(&db, engine.clone()).await;
    let mut conn = store.pool().acquire().await.unwrap();
    store.delete_face(&mut conn, faces[0].0).await.unwrap();
    drop(conn);
    let equal = Checked { rows: 59, faces: 59, ..Checked::default() };
    assert_eq!(check(&index, &store, model.id).await, equal);
    assert_eq!(set_of(&store, model.id).await.unwrap().id, before);

    engine.remove(before).await.unwrap();
    catch_up(&index).await;
    assert_ne!(set_of(&store, model.id).await.unwrap().id, before);
    assert_eq!(check(&index, &store, model.id).await, equal);
}

#[testing::test]
async fn a_set_with_an_old_deletion_is_replaced() {
    let db = TestDatabase::create().await;
    let engine = Arc::new(Engine::default());
    let (index, store) = start(&db, engine.clone()).await;
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let faces = gallery(&store, collection, &model, 100, 1).await;
    catch_up(&index).await;
    let before = set_of(&store, model.id).await.unwrap();
    assert_eq!(before.deleted_since, None);

    let mut conn = store.pool().acquire().await.unwrap();
    store.delete_face(&mut conn, faces[0].0).await.unwrap();
    drop(conn);
    catch_up(&index).await;
    let with_deletion = set_of(&store, model.id).await.unwrap();
    assert_eq!((with_deletion.id, with_deletion.deleted_since.is_some()), (before.id, true));

    let index = index.with_config(Config { rebuild_age: Duration::ZERO, ..Config::default() });
    catch_up(&index).await;
    let after = set_of(&store, model.id).await.unwrap();
    assert_ne!(after.id, before.id);
    assert_eq!(after.deleted_since, None);
    assert_eq!(sets(engine.as_ref()).await, BTreeSet::from([after.id]), "the old set is deleted");
    let equal = Checked { rows: 99, faces: 99, ..Checked::default() };
    assert_eq!(check(&index, &store, model.id).await, equal);
}
