//! Tests searches for people.
use super::gallery::{DIMENSIONS, brute_force, gallery, query};
use super::{Implementation, World};
use crate::fixture;
use store::faces::search::SearchQuery;
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
        let new = store::people::NewSubject {
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
    let new = store::people::NewSubject { metadata: serde_json::json!({}), ..Default::default() };
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

#[testing::test]
async fn a_search_that_stops_at_its_limit_of_faces_is_not_exact() {
    let db = testing::TestDatabase::create().await;
    let store = db.store();
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 4).await;
    let (near, far) =
        (fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]), fixture::face(&model, vec![0.0, 1.0, 0.0, 0.0]));
    fixture::store_image(&store, collection, &fixture::image(1), &[near]).await.unwrap();
    // One person has more faces than a search reads.
    db.execute(
        "insert into faces select (jsonb_populate_record(f, jsonb_build_object('id', gen_random_uuid()))).*
         from faces f cross join generate_series(1, 20000)",
    )
    .await;
    let known: Vec<Uuid> = sqlx::query_scalar("select id from faces").fetch_all(db.pool()).await.unwrap();
    fixture::store_image(&store, collection, &fixture::image(2), std::slice::from_ref(&far)).await.unwrap();
    let mut subjects = Vec::new();
    for faces in [&known[..], &[far.id][..]] {
        let new = store::people::NewSubject { metadata: serde_json::json!({}), ..Default::default() };
        let mut tx = store.begin().await.unwrap();
        let subject = store.insert_subject(tx.conn(), collection, &new).await.unwrap();
        for faces in faces.chunks(1_000) {
            store.enrol_faces(tx.conn(), collection, subject, faces, false).await.unwrap();
        }
        tx.commit().await.unwrap();
        subjects.push(subject);
    }
    let probe = vec![1.0, 0.0, 0.0, 0.0];
    let query = |limit| SearchQuery { limit, exact: true, ..query(collection, model.id, probe.clone()) };
    let (best, exact) = store.search_subjects(&query(1)).await.unwrap();
    assert_eq!((best.len(), exact), (1, true));
    let (best, exact) = store.search_subjects(&query(2)).await.unwrap();
    // The second person was not found, so the answer must say that it is incomplete.
    assert!(!exact || best.len() == 2, "{} {exact}", best.len());
}
