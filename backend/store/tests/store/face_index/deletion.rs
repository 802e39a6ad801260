//! Tests that a deleted face is never returned by a search, however it was deleted.
use super::gallery::{DIMENSIONS, gallery, ids, query};
use super::{Implementation, World};
use crate::fixture;
use store::Store;
use store::faces::search::SearchQuery;
use uuid::Uuid;

super::suite!(deleted_faces_are_not_found, a_deleted_collection_is_not_searched);

/// Asserts that only the faces `remaining` are found, before and after the index learns of it.
async fn assert_remaining<I: Implementation>(world: &World<I>, search: &SearchQuery, remaining: &[Uuid]) {
    for caught_up in [false, true] {
        if caught_up {
            world.catch_up().await;
        }
        let mut found = ids(&world.store.search(search).await.unwrap().0);
        found.sort_unstable();
        assert_eq!(found, remaining, "caught up: {caught_up}");
        // Fewer faces than the collection has: this search uses the index.
        let few = SearchQuery { limit: 5, ..search.clone() };
        let found = ids(&world.store.search(&few).await.unwrap().0);
        assert_eq!(found.len(), remaining.len().min(5), "caught up: {caught_up}");
        assert!(found.iter().all(|id| remaining.contains(id)), "caught up: {caught_up}");
    }
}

async fn image_of(store: &Store, face: Uuid) -> Uuid {
    store.face(face).await.unwrap().image_id
}

async fn deleted_faces_are_not_found<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(10);
    let store = &world.store;
    let collection = fixture::collection(store, "default").await;
    let model = fixture::model(store, "m", DIMENSIONS as i32).await;
    // Images of 50 faces each.
    let gallery = gallery(store, collection, &model, 200, 1).await;
    let mut remaining: Vec<Uuid> = gallery.iter().map(|(id, _)| *id).collect();
    remaining.sort_unstable();
    let mut search = query(collection, model.id, gallery[60].1.clone());
    search.limit = 300;
    assert_remaining(&world, &search, &remaining).await;

    let mut tx = store.begin().await.unwrap();
    for (face, _) in &gallery[150..160] {
        store.delete_face(tx.conn(), *face).await.unwrap();
    }
    tx.commit().await.unwrap();
    remaining.retain(|id| !gallery[150..160].iter().any(|(face, _)| face == id));
    assert_remaining(&world, &search, &remaining).await;

    let mut tx = store.begin().await.unwrap();
    store.delete_image(tx.conn(), image_of(store, gallery[0].0).await).await.unwrap();
    tx.commit().await.unwrap();
    remaining.retain(|id| !gallery[..50].iter().any(|(face, _)| face == id));
    assert_remaining(&world, &search, &remaining).await;

    // The foreign key deletes the faces of this image.
    sqlx::query("delete from images where id = $1")
        .bind(image_of(store, gallery[100].0).await)
        .execute(store.pool())
        .await
        .unwrap();
    remaining.retain(|id| !gallery[100..150].iter().any(|(face, _)| face == id));
    assert_remaining(&world, &search, &remaining).await;

    // A deletion that is rolled back deletes nothing.
    let mut tx = store.begin().await.unwrap();
    store.delete_image(tx.conn(), image_of(store, gallery[50].0).await).await.unwrap();
    drop(tx);
    assert_remaining(&world, &search, &remaining).await;
}

async fn a_deleted_collection_is_not_searched<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(10);
    let store = &world.store;
    let (ours, theirs) =
        (fixture::collection(store, "ours").await, fixture::collection(store, "theirs").await);
    let model = fixture::model(store, "m", DIMENSIONS as i32).await;
    let deleted = gallery(store, ours, &model, 100, 1).await;
    let kept = gallery(store, theirs, &model, 100, 2).await;
    world.catch_up().await;
    sqlx::query("delete from collections where id = $1").bind(ours).execute(store.pool()).await.unwrap();
    let mut search = query(ours, model.id, deleted[0].1.clone());
    search.limit = 300;
    assert_remaining(&world, &search, &[]).await;
    let mut remaining: Vec<Uuid> = kept.iter().map(|(id, _)| *id).collect();
    remaining.sort_unstable();
    search.collection_id = theirs;
    assert_remaining(&world, &search, &remaining).await;
}
