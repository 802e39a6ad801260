//! Tests an erasure by likeness.
use super::gallery::{DIMENSIONS, brute_force, gallery, query};
use super::{Implementation, World};
use crate::fixture;
use std::collections::BTreeSet;
use store::erasures::Target;
use uuid::Uuid;

super::suite!(an_erasure_by_likeness_plans_every_similar_face_and_no_other);

async fn an_erasure_by_likeness_plans_every_similar_face_and_no_other<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(10);
    let store = &world.store;
    let (ours, theirs) =
        (fixture::collection(store, "default").await, fixture::collection(store, "theirs").await);
    let model = fixture::model(store, "m", DIMENSIONS as i32).await;
    let other = fixture::model(store, "n", DIMENSIONS as i32).await;
    let faces = gallery(store, ours, &model, 300, 1).await;
    // The same people under another model and in another collection.
    gallery(store, theirs, &model, 300, 1).await;
    let elsewhere: Vec<_> =
        faces[..20].iter().map(|(_, embedding)| fixture::face(&other, embedding.clone())).collect();
    fixture::store_image(store, ours, &fixture::image(9), &elsewhere).await.unwrap();
    // The index does not contain the last image yet.
    world.catch_up().await;
    let late = fixture::face(&model, faces[3].1.clone());
    fixture::store_image(store, ours, &fixture::image(10), std::slice::from_ref(&late)).await.unwrap();

    let probe = faces[3].1.clone();
    let mut expected: BTreeSet<Uuid> =
        brute_force(&faces, &probe, 0.6, 300).into_iter().map(|(id, _)| id).collect();
    assert!((10..100).contains(&expected.len()), "{}", expected.len());
    expected.insert(late.id);
    let target = Target::Likeness { embedding: probe.clone(), model_id: model.id, threshold: 0.6 };
    let mut tx = store.begin().await.unwrap();
    let plan = store.plan_erasure(tx.conn(), ours, &target).await.unwrap();
    assert_eq!(plan.not_compared, 20);
    let planned: BTreeSet<Uuid> = plan.faces.iter().map(|face| face.id).collect();
    assert_eq!(planned, expected);
    assert!(plan.faces.iter().all(|face| face.similarity.is_some_and(|similarity| similarity >= 0.6)));
    store.carry_out(tx.conn(), &plan).await.unwrap();
    tx.commit().await.unwrap();

    // No search returns an erased face, even before the index has followed the erasure.
    for caught_up in [false, true] {
        if caught_up {
            world.catch_up().await;
        }
        for threshold in [-1.0, 0.6] {
            let mut search = query(ours, model.id, probe.clone());
            (search.threshold, search.limit) = (threshold, 50);
            let (hits, _) = store.search(&search).await.unwrap();
            assert!(hits.iter().all(|hit| !expected.contains(&hit.face.id)), "{caught_up} {threshold}");
            assert_eq!(hits.is_empty(), threshold > 0.0);
        }
    }
}
