//! Tests searches for people.
use super::gallery::{DIMENSIONS, brute_force, gallery, query};
use super::{Implementation, World};
use crate::fixture;
use store::search::SearchQuery;
use uuid::Uuid;

super::suite!(grouping_gives_the_best_face_of_each_subject, a_face_without_a_subject_is_not_a_person);

async fn grouping_gives_the_best_face_of_each_subject<I: Implementation>() {
    let world = World::<I>::create().await;
    let store = &world.store;
    let collection = fixture::collection(store, "default").await;
    let model = fixture::model(store, "m", DIMENSIONS as i32).await;
    let gallery = gallery(store, collection, &model, 200, 3).await;
    // Two people have 60 faces each, a third has one, and the other faces have no subject.
    let mut subjects = Vec::new();
    for faces in [&gallery[..60], &gallery[60..120], &gallery[120..121]] {
        let mut tx = store.begin().await.unwrap();
        let new = store::subjects::NewSubject {
            metadata: serde_json::json!({}),
            name: Some(format!("person {}", subjects.len())),
            ..Default::default()
        };
        let subject = store.insert_subject(tx.conn(), collection, &new).await.unwrap();
        let ids: Vec<Uuid> = faces.iter().map(|(id, _)| *id).collect();
        store.enrol_faces(tx.conn(), collection, subject, &ids, false).await.unwrap();
        tx.commit().await.unwrap();
        subjects.push((subject, faces));
    }
    world.catch_up().await;
    let probe = gallery[130].1.clone();
    let mut expected: Vec<(Uuid, f64)> =
        subjects.iter().map(|(_, faces)| brute_force(faces, &probe, -1.0, 1)[0]).collect();
    expected.sort_by(|a, b| b.1.total_cmp(&a.1));
    for limit in [1, 2, 3, 10] {
        let query = SearchQuery { limit, ..query(collection, model.id, probe.clone()) };
        let (best, _) = store.search_subjects(&query).await.unwrap();
        let found: Vec<Uuid> = best.iter().map(|(hit, _)| hit.face.id).collect();
        let first: Vec<Uuid> = expected.iter().take(limit as usize).map(|(id, _)| *id).collect();
        assert_eq!(found, first);
        assert!(best.iter().all(|(_, shown)| shown.name.as_deref().is_some_and(|n| n.starts_with("person"))));
    }
}

async fn people(store: &store::Store, query: &SearchQuery) -> Vec<Uuid> {
    let (best, _) = store.search_subjects(query).await.unwrap();
    best.into_iter().map(|(_, subject)| subject.subject_id).collect()
}

async fn a_face_without_a_subject_is_not_a_person<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(10);
    let store = &world.store;
    let collection = fixture::collection(store, "default").await;
    let model = fixture::model(store, "m", DIMENSIONS as i32).await;
    let gallery = gallery(store, collection, &model, 60, 9).await;
    let ids: Vec<Uuid> = gallery[..20].iter().map(|(id, _)| *id).collect();
    let new = store::subjects::NewSubject { metadata: serde_json::json!({}), ..Default::default() };
    let mut tx = store.begin().await.unwrap();
    let subject = store.insert_subject(tx.conn(), collection, &new).await.unwrap();
    store.enrol_faces(tx.conn(), collection, subject, &ids, false).await.unwrap();
    tx.commit().await.unwrap();
    world.catch_up().await;
    let query = SearchQuery { limit: 5, ..query(collection, model.id, gallery[0].1.clone()) };
    assert_eq!(people(store, &query).await, [subject]);

    // The person keeps one face, and then none.
    for (last, expected) in [(19, vec![subject]), (20, vec![])] {
        let mut tx = store.begin().await.unwrap();
        for face in &ids[if last == 19 { 0 } else { 19 }..last] {
            store.unlink_face(tx.conn(), subject, *face, false).await.unwrap();
        }
        tx.commit().await.unwrap();
        assert_eq!(people(store, &query).await, expected, "before the index knows");
        world.catch_up().await;
        assert_eq!(people(store, &query).await, expected);
    }
}
