//! Tests that searches do not return deleted faces, for each way to delete a face, and tests
//! erasures by likeness.
use crate::face_index::{Implementation, World};
use crate::fixture::{self, Commit, DIMENSIONS, brute_force, gallery, ids, query};
use std::collections::BTreeSet;
use store::Store;
use store::erasures::Target;
use store::faces::search::SearchQuery;
use uuid::Uuid;

super::suite!(
    deleted_faces_are_not_found,
    deleted_collection_is_not_searched,
    erasure_by_likeness_plans_exactly_similar_faces,
);

/// Asserts that only the faces `remaining` are found, before and after the index has applied the
/// changes.
async fn assert_remaining<I: Implementation>(world: &World<I>, search: &SearchQuery, remaining: &[Uuid]) {
    for caught_up in [false, true] {
        if caught_up {
            world.catch_up().await;
        }
        let mut found = ids(&world.store.faces().search(search).await.unwrap().0);
        found.sort_unstable();
        assert_eq!(found, remaining, "caught up: {caught_up}");
        // Fewer faces than the collection has: this search uses the index.
        let limited_search = SearchQuery { limit: 5, ..search.clone() };
        let found = ids(&world.store.faces().search(&limited_search).await.unwrap().0);
        assert_eq!(found.len(), remaining.len().min(5), "caught up: {caught_up}");
        assert!(found.iter().all(|id| remaining.contains(id)), "caught up: {caught_up}");
    }
}

async fn image_of(store: &Store, face: Uuid) -> Uuid {
    store.faces().get(face).await.unwrap().image_id
}

async fn deleted_faces_are_not_found<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(10);
    let store = &world.store;
    let (collection, model) = fixture::default_and_model(store, DIMENSIONS as i32).await;
    // Images of 50 faces each.
    let gallery = gallery(store, collection, &model, 200, 1).await;
    let mut remaining: Vec<Uuid> = gallery.iter().map(|(id, _)| *id).collect();
    remaining.sort_unstable();
    let mut search = query(collection, model.id, gallery[60].1.clone());
    search.limit = 300;
    assert_remaining(&world, &search, &remaining).await;

    fixture::delete_faces(store, gallery[150..160].iter()).await;
    remaining.retain(|id| !gallery[150..160].iter().any(|(face, _)| face == id));
    assert_remaining(&world, &search, &remaining).await;

    store
        .commit(async |tx| store.images().delete(tx.conn(), image_of(store, gallery[0].0).await).await)
        .await;
    remaining.retain(|id| !gallery[..50].iter().any(|(face, _)| face == id));
    assert_remaining(&world, &search, &remaining).await;

    // The foreign key deletes the faces of this image.
    let image = image_of(store, gallery[100].0).await;
    fixture::run(store, format!("delete from images where id = '{image}'")).await.unwrap();
    remaining.retain(|id| !gallery[100..150].iter().any(|(face, _)| face == id));
    assert_remaining(&world, &search, &remaining).await;

    // A deletion that is rolled back deletes nothing.
    let mut tx = store.begin().await.unwrap();
    store.images().delete(tx.conn(), image_of(store, gallery[50].0).await).await.unwrap();
    drop(tx);
    assert_remaining(&world, &search, &remaining).await;
}

async fn deleted_collection_is_not_searched<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(10);
    let store = &world.store;
    let [ours, theirs] = fixture::collections(store, ["ours", "theirs"]).await;
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

async fn erasure_by_likeness_plans_exactly_similar_faces<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(10);
    let store = &world.store;
    let [ours, theirs] = fixture::collections(store, ["default", "theirs"]).await;
    let model = fixture::model(store, "m", DIMENSIONS as i32).await;
    let other = fixture::model(store, "n", DIMENSIONS as i32).await;
    let faces = gallery(store, ours, &model, 300, 1).await;
    // The same people under another model and in another collection.
    gallery(store, theirs, &model, 300, 1).await;
    let other_faces: Vec<_> =
        faces[..20].iter().map(|(_, embedding)| fixture::face(&other, embedding.clone())).collect();
    fixture::store_image(store, ours, &fixture::image(9), &other_faces).await.unwrap();
    // The index does not contain the last image yet.
    world.catch_up().await;
    let late_face = fixture::face(&model, faces[3].1.clone());
    fixture::store_image(store, ours, &fixture::image(10), std::slice::from_ref(&late_face)).await.unwrap();

    let probe = faces[3].1.clone();
    let mut expected: BTreeSet<Uuid> =
        brute_force(&faces, &probe, 0.6, 300).into_iter().map(|(id, _)| id).collect();
    assert!((10..100).contains(&expected.len()), "{}", expected.len());
    expected.insert(late_face.id);
    let target = Target::Likeness { embedding: probe.clone(), model_id: model.id, threshold: 0.6 };
    let plan = fixture::erase(store, ours, &target).await;
    assert_eq!(plan.not_compared, 20);
    let planned: BTreeSet<Uuid> = plan.faces.iter().map(|face| face.id).collect();
    assert_eq!(planned, expected);
    assert!(plan.faces.iter().all(|face| face.similarity.is_some_and(|similarity| similarity >= 0.6)));

    // No search returns an erased face, even before the index has applied the erasure.
    for caught_up in [false, true] {
        if caught_up {
            world.catch_up().await;
        }
        for threshold in [-1.0, 0.6] {
            let mut search = query(ours, model.id, probe.clone());
            (search.threshold, search.limit) = (threshold, 50);
            let (hits, _) = store.faces().search(&search).await.unwrap();
            assert!(hits.iter().all(|hit| !expected.contains(&hit.face.id)), "{caught_up} {threshold}");
            assert_eq!(hits.is_empty(), threshold > 0.0);
        }
    }
}
