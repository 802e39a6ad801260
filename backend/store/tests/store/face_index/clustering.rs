//! Tests the look-up of neighbours.
use super::{Implementation, World};
use crate::fixture::{self, direction};
use store::Store;
use store::faces::models::EmbeddingModel;
use store::people::clusters::ClusterScope;
use uuid::Uuid;

super::suite!(
    neighbours_are_those_of_the_scope_with_their_similarities,
    a_large_collection_is_compared_through_the_index,
);

async fn faces(
    store: &Store,
    collection: Uuid,
    model: &EmbeddingModel,
    seed: u64,
    count: usize,
) -> Vec<Uuid> {
    let mut rng = fixture::rng(seed);
    let faces: Vec<_> = (0..count)
        .map(|n| {
            let mut face = fixture::face(model, direction(&mut rng, model.dimensions as usize));
            face.quality_passed = Some(n % 3 != 2);
            face
        })
        .collect();
    fixture::store_image(store, collection, &fixture::image(seed), &faces).await.unwrap();
    faces.iter().map(|face| face.id).collect()
}

async fn neighbours_are_those_of_the_scope_with_their_similarities<I: Implementation>() {
    let world = World::<I>::create().await;
    let store = &world.store;
    let (ours, theirs) =
        (fixture::collection(store, "default").await, fixture::collection(store, "theirs").await);
    let (model, other) = (fixture::model(store, "m", 16).await, fixture::model(store, "n", 16).await);
    let found = faces(store, ours, &model, 1, 6).await;
    // The same embeddings elsewhere must not be neighbours.
    for (collection, model) in [(ours, &other), (theirs, &model)] {
        faces(store, collection, model, 1, 6).await;
    }
    world.catch_up().await;
    for any_quality in [true, false] {
        let scope = ClusterScope { collection_id: ours, model_id: model.id, any_quality };
        let pairs = store.neighbours(&scope, &found[..2], 10, -1.0).await.unwrap();
        // The third and the last face failed their quality profile.
        let others = |face: Uuid| {
            let passed = |(n, _): &(usize, &Uuid)| any_quality || n % 3 != 2;
            found.iter().enumerate().filter(passed).map(|(_, id)| *id).filter(move |id| *id != face)
        };
        let expected: Vec<(Uuid, Uuid)> =
            found[..2].iter().flat_map(|face| others(*face).map(|other| (*face, other))).collect();
        assert_eq!(pairs.iter().map(|pair| (pair.face, pair.neighbour)).collect::<Vec<_>>(), expected);
        for pair in pairs {
            let (_, probe) = store.embedding(pair.face).await.unwrap();
            let (_, embedding) = store.embedding(pair.neighbour).await.unwrap();
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

async fn a_large_collection_is_compared_through_the_index<I: Implementation>() {
    let world = World::<I>::create().await;
    let store = &world.store;
    let collection = fixture::collection(store, "default").await;
    let model = fixture::model(store, "m", 13).await;
    let (first, second) = twins(store, collection, &model, 2_600).await;
    world.catch_up().await;
    let scope = ClusterScope { collection_id: collection, model_id: model.id, any_quality: false };
    let pairs = store.neighbours(&scope, &first[..500], 4, 0.95).await.unwrap();
    let found = pairs.iter().filter(|pair| {
        let at = first.iter().position(|id| *id == pair.face).unwrap();
        assert_eq!(pair.neighbour, second[at], "{pair:?}");
        pair.similarity >= 0.95
    });
    // The index is approximate.
    assert!(found.count() >= 475, "{}", pairs.len());
}
