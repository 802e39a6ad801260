//! Tests searches for people, and the look-up of neighbours for clustering.
use crate::face_index::{Implementation, World};
use crate::fixture::{self, DIMENSIONS, brute_force, gallery, query};
use store::Store;
use store::faces::NewFace;
use store::faces::search::SearchQuery;
use store::index::EmbeddingModel;
use store::index::scope::Assignment;
use store::people::NewSubject;
use store::people::clusters::ClusterScope;
use uuid::Uuid;

super::suite!(
    subject_search_returns_best_face_of_each_subject,
    subject_search_ignores_unassigned_faces,
    enrolled_and_named_people_are_found_behind_many_clusters,
    neighbours_come_from_scope_with_their_similarities,
    neighbours_in_large_collection_come_from_index,
);

async fn subject_search_returns_best_face_of_each_subject<I: Implementation>() {
    let world = World::<I>::create().await;
    let store = &world.store;
    let (collection, model) = fixture::default_and_model(store, DIMENSIONS as i32).await;
    let gallery = gallery(store, collection, &model, 200, 3).await;
    // Two people have 60 faces each, a third has one, and the other faces have no subject.
    let mut subjects = Vec::new();
    for faces in [&gallery[..60], &gallery[60..120], &gallery[120..121]] {
        let name = Some(format!("person {}", subjects.len()));
        let new = NewSubject { name, ..fixture::unnamed_subject() };
        let ids: Vec<Uuid> = faces.iter().map(|(id, _)| *id).collect();
        subjects.push((fixture::person(store, collection, &new, &ids).await, faces));
    }
    world.catch_up().await;
    let probe = gallery[130].1.clone();
    let mut expected: Vec<(Uuid, f64)> =
        subjects.iter().map(|(_, faces)| brute_force(faces, &probe, -1.0, 1)[0]).collect();
    expected.sort_by(|a, b| b.1.total_cmp(&a.1));
    for limit in [1, 2, 3, 10] {
        let query = SearchQuery { limit, ..query(collection, model.id, probe.clone()) };
        let (best, _) = store.faces().search_people(&query).await.unwrap();
        let found: Vec<Uuid> = best.iter().map(|(hit, _)| hit.face.id).collect();
        let first: Vec<Uuid> = expected.iter().take(limit as usize).map(|(id, _)| *id).collect();
        assert_eq!(found, first);
        assert!(
            best.iter().all(|(_, subject)| subject.name.as_deref().is_some_and(|n| n.starts_with("person")))
        );
    }
}

async fn people(store: &store::Store, query: &SearchQuery) -> Vec<Uuid> {
    let (best, _) = store.faces().search_people(query).await.unwrap();
    best.into_iter().map(|(_, subject)| subject.subject_id).collect()
}

async fn subject_search_ignores_unassigned_faces<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(10);
    let store = &world.store;
    let (collection, model) = fixture::default_and_model(store, DIMENSIONS as i32).await;
    let gallery = gallery(store, collection, &model, 60, 9).await;
    let ids: Vec<Uuid> = gallery[..20].iter().map(|(id, _)| *id).collect();
    let subject = fixture::person(store, collection, &fixture::unnamed_subject(), &ids).await;
    world.catch_up().await;
    let query = SearchQuery { limit: 5, ..query(collection, model.id, gallery[0].1.clone()) };
    assert_eq!(people(store, &query).await, [subject]);

    // The person keeps one face, and then none.
    for (last, expected) in [(19, vec![subject]), (20, vec![])] {
        let mut tx = store.begin().await.unwrap();
        for face in &ids[if last == 19 { 0 } else { 19 }..last] {
            store.people().unlink_face(tx.conn(), subject, *face, false).await.unwrap();
        }
        tx.commit().await.unwrap();
        assert_eq!(people(store, &query).await, expected, "before the index has applied the change");
        world.catch_up().await;
        assert_eq!(people(store, &query).await, expected);
    }
}

async fn enrolled_and_named_people_are_found_behind_many_clusters<I: Implementation>() {
    let world = World::<I>::create().await.with_exact_limit(1);
    let store = &world.store;
    let (collection, model) = fixture::default_and_model(store, DIMENSIONS as i32).await;
    let gallery = gallery(store, collection, &model, 60, 9).await;
    let probe = gallery[0].1.clone();
    let order = brute_force(&gallery, &probe, -1.0, 60);
    for (face, _) in &order[..56] {
        fixture::person(store, collection, &fixture::unnamed_subject(), &[*face]).await;
    }
    fixture::run(store, "update subjects set origin = 'cluster'".into()).await.unwrap();
    let named = |name: &str| NewSubject { name: Some(name.into()), ..fixture::unnamed_subject() };
    let mut people_by_distance = Vec::new();
    for (new, (face, _)) in [fixture::unnamed_subject(), named("a"), fixture::unnamed_subject(), named("b")]
        .iter()
        .zip(&order[56..])
    {
        people_by_distance.push(fixture::person(store, collection, new, &[*face]).await);
    }
    world.catch_up().await;
    let [first, second, _, fourth] = people_by_distance[..] else { panic!("four people") };
    for (assignment, limit, expected) in [
        (Assignment::Enrolled, 2, [first, second]),
        (Assignment::Named, 2, [second, fourth]),
        (Assignment::Named, 50, [second, fourth]),
    ] {
        let query = SearchQuery { limit, assignment, ..query(collection, model.id, probe.clone()) };
        assert_eq!(people(store, &query).await, expected, "{assignment:?} {limit}");
    }
    let nearest = SearchQuery { limit: 1, ..query(collection, model.id, probe) };
    assert!(!people_by_distance.contains(&people(store, &nearest).await[0]), "a cluster is nearest");
}

#[testing::test]
async fn search_reaching_face_limit_is_not_exact() {
    let db = testing::TestDatabase::create().await;
    let store = db.store();
    let (collection, model) = fixture::default_and_model(&store, 4).await;
    let (close, far) =
        (fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]), fixture::face(&model, vec![0.0, 1.0, 0.0, 0.0]));
    fixture::store_image(&store, collection, &fixture::image(1), &[close]).await.unwrap();
    // One person has more faces than a search reads.
    db.execute(
        "insert into faces select (jsonb_populate_record(f, jsonb_build_object('id', gen_random_uuid()))).*
         from faces f cross join generate_series(1, 20000)",
    )
    .await;
    let ids: Vec<Uuid> = sqlx::query_scalar("select id from faces").fetch_all(db.pool()).await.unwrap();
    fixture::store_image(&store, collection, &fixture::image(2), std::slice::from_ref(&far)).await.unwrap();
    let mut subjects = Vec::new();
    for faces in [&ids[..], &[far.id][..]] {
        let new = fixture::unnamed_subject();
        let mut tx = store.begin().await.unwrap();
        let subject = store.people().insert(tx.conn(), collection, &new).await.unwrap();
        for faces in faces.chunks(1_000) {
            store.people().enrol(tx.conn(), collection, subject, faces, false).await.unwrap();
        }
        tx.commit().await.unwrap();
        subjects.push(subject);
    }
    let probe = vec![1.0, 0.0, 0.0, 0.0];
    let query = |limit| SearchQuery { limit, exact: true, ..query(collection, model.id, probe.clone()) };
    let (best, exact) = store.faces().search_people(&query(1)).await.unwrap();
    assert_eq!((best.len(), exact), (1, true));
    let (best, exact) = store.faces().search_people(&query(2)).await.unwrap();
    // The second person was not found, so the result must be marked as not exact.
    assert!(!exact || best.len() == 2, "{} {exact}", best.len());
}

/// Stores faces, of which every third failed its quality profile.
async fn faces(store: &Store, collection: Uuid, model: &EmbeddingModel) -> Vec<Uuid> {
    let change = |n, face: &mut NewFace| face.quality_passed = Some(n % 3 != 2);
    fixture::faces_with_change(store, collection, model, (1, 6), change).await
}

async fn neighbours_come_from_scope_with_their_similarities<I: Implementation>() {
    let world = World::<I>::create().await;
    let store = &world.store;
    let [ours, theirs] = fixture::collections(store, ["default", "theirs"]).await;
    let (model, other) = (fixture::model(store, "m", 16).await, fixture::model(store, "n", 16).await);
    let found = faces(store, ours, &model).await;
    // The same embeddings elsewhere must not be neighbours.
    for (collection, model) in [(ours, &other), (theirs, &model)] {
        faces(store, collection, model).await;
    }
    world.catch_up().await;
    for any_quality in [true, false] {
        let scope = ClusterScope { collection_id: ours, model_id: model.id, any_quality };
        let pairs = store.clusters().neighbours(&scope, &found[..2], 10, -1.0).await.unwrap();
        // The third and the last face failed their quality profile.
        let others = |face: Uuid| {
            let passed = |(n, _): &(usize, &Uuid)| any_quality || n % 3 != 2;
            found.iter().enumerate().filter(passed).map(|(_, id)| *id).filter(move |id| *id != face)
        };
        let expected: Vec<(Uuid, Uuid)> =
            found[..2].iter().flat_map(|face| others(*face).map(|other| (*face, other))).collect();
        assert_eq!(pairs.iter().map(|pair| (pair.face, pair.neighbour)).collect::<Vec<_>>(), expected);
        for pair in pairs {
            let (_, probe) = store.faces().embedding(pair.face).await.unwrap();
            let (_, embedding) = store.faces().embedding(pair.neighbour).await.unwrap();
            let cosine: f32 = probe.iter().zip(&embedding).map(|(a, b)| a * b).sum();
            assert!((cosine - pair.similarity).abs() < 2e-3, "{cosine} {pair:?}");
        }
    }
}

/// Stores `2 * pairs` faces in one statement. Each has a twin, and no face is similar to the faces
/// of another pair. Returns their ids: those of the first twins, then those of the second.
pub(crate) async fn twins(
    store: &Store,
    collection: Uuid,
    model: &EmbeddingModel,
    pairs: i32,
) -> (Vec<Uuid>, Vec<Uuid>) {
    let image = fixture::store_image(store, collection, &fixture::image(1), &[]).await.unwrap();
    let sql = "insert into faces (id, collection_id, image_id, bbox, det_score, landmarks, embedding, model_id)
         select (lpad(to_hex(n), 8, '0') || '-0000-7000-8000-00000000000' || twin)::uuid, $1, $2, '{0,0,9,9}', 1,
                '{0,0,0,0,0,0,0,0,0,0}',
                -- The bits of the number, as signs: two numbers differ in at least one of twelve.
                (select array_agg(case when (n >> d) & 1 = 1 then 1 else -1 end * (1 + twin * 0.01 * d)
                                  order by d)::real[]::halfvec from generate_series(0, 12) d), $3
         from generate_series(1, $4) n, generate_series(0, 1) twin";
    let insert = sqlx::query(sql).bind(collection).bind(image).bind(model.id).bind(pairs);
    insert.execute(store.pool()).await.unwrap();
    let id = |n: i32, twin: u8| format!("{n:08x}-0000-7000-8000-00000000000{twin}").parse::<Uuid>().unwrap();
    ((1..=pairs).map(|n| id(n, 0)).collect(), (1..=pairs).map(|n| id(n, 1)).collect())
}

async fn neighbours_in_large_collection_come_from_index<I: Implementation>() {
    let world = World::<I>::create().await;
    let store = &world.store;
    let (collection, model) = fixture::default_and_model(store, 13).await;
    let (first, second) = twins(store, collection, &model, 2_600).await;
    world.catch_up().await;
    let scope = ClusterScope { collection_id: collection, model_id: model.id, any_quality: false };
    let pairs = store.clusters().neighbours(&scope, &first[..500], 4, 0.95).await.unwrap();
    let found = pairs.iter().filter(|pair| {
        let index = first.iter().position(|id| *id == pair.face).unwrap();
        assert_eq!(pair.neighbour, second[index], "{pair:?}");
        pair.similarity >= 0.95
    });
    // The index is approximate.
    assert!(found.count() >= 475, "{}", pairs.len());
}
