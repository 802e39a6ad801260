//! Tests behaviour that only the index of pgvector has.
use super::gallery::{DIMENSIONS, assert_same, brute_force, gallery, query};
use crate::fixture;
use store::StoreError;
use store::faces::scope::FaceScope;
use store::index::{FaceIndex, Neighbours, Pgvector};
use testing::TestDatabase;

#[testing::test]
async fn a_search_above_the_limit_uses_the_hnsw_index() {
    let db = TestDatabase::create().await;
    let store = db.store().with_exact_limit(100);
    let default = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let gallery = gallery(&store, default, &model, 600, 3).await;
    let scans = || async {
        // A session publishes its statistics when it is idle, so the query runs in the same
        // sessions as the scans.
        sqlx::query_scalar::<_, i64>(
            "select coalesce(sum(idx_scan), 0)::bigint from pg_stat_user_indexes where indexrelname like 'faces_embedding_hnsw_%'",
        )
        .fetch_one(db.pool())
        .await
        .unwrap()
    };
    for (_, probe) in gallery.iter().step_by(60) {
        assert!(!store.search(&query(default, model.id, probe.clone())).await.unwrap().1);
    }
    // The scans are counted, so the results did not come from an exact plan.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while scans().await < 10 {
        assert!(std::time::Instant::now() < deadline, "the index was not used");
        sqlx::query("select pg_stat_force_next_flush()").execute(db.pool()).await.unwrap();
    }
}

#[testing::test]
async fn probes_are_as_similar_to_a_face_as_another_picture_of_the_person() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let (first, second) =
        (fixture::collection(&store, "first").await, fixture::collection(&store, "second").await);
    let (model, other) = (
        fixture::model(&store, "m", DIMENSIONS as i32).await,
        fixture::model(&store, "other", DIMENSIONS as i32).await,
    );
    assert!(store.probes(&model, 10).await.unwrap().is_empty());
    gallery(&store, first, &other, 50, 1).await;
    let gallery = gallery(&store, second, &model, 400, 2).await;
    sqlx::query("analyze faces").execute(db.pool()).await.unwrap();
    let mut probes = store.probes(&model, 100).await.unwrap();
    for few in [1, 3] {
        probes.extend(store.probes(&model, few).await.unwrap());
    }
    assert_eq!(probes.len(), 104);
    for probe in &probes {
        assert_eq!(probe.collection_id, second);
        let length: f32 = probe.embedding.iter().map(|component| component * component).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
        // One of the faces has exactly this similarity, except for rounding to half precision.
        let is_source = |similarity: f64| (similarity - 0.7).abs() < 2e-3;
        assert!(brute_force(&gallery, &probe.embedding, -1.0, 400).iter().any(|hit| is_source(hit.1)));
    }
    assert_eq!(store.probes(&model, 1_000).await.unwrap().len(), 400);
}

#[testing::test]
async fn an_index_search_that_comes_up_short_is_done_again_exactly() {
    let db = TestDatabase::create().await;
    let store = db.store().with_exact_limit(10);
    let default = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let gallery = gallery(&store, default, &model, 60, 5).await;
    // An index that misses rows simulates a scan that stops before it has found enough.
    let sql = format!(
        "drop index faces_embedding_hnsw_{0}; create index faces_embedding_hnsw_{0} on faces using hnsw ((embedding::halfvec({DIMENSIONS})) halfvec_cosine_ops) where model_id = {0} and det_score > 2",
        model.id
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(db.pool()).await.unwrap();
    let probe = gallery[7].1.clone();
    let (hits, _) = store.search(&query(default, model.id, probe.clone())).await.unwrap();
    assert_same(&hits, &brute_force(&gallery, &probe, -1.0, 10));
}

#[testing::test]
async fn without_its_index_a_search_compares_with_every_face() {
    let db = TestDatabase::create().await;
    let store = db.store().with_exact_limit(50);
    let default = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let pgvector = Pgvector::new(store.pool().clone());
    let exists = || async { pgvector.indexes().await.unwrap()[0].bytes.is_some() };

    // A registration builds the index of few faces, unless an operator has dropped it.
    gallery(&store, default, &model, 50, 5).await;
    pgvector.drop_index(model.id).await.unwrap();
    fixture::model(&store, "m", DIMENSIONS as i32).await;
    assert!(exists().await);
    pgvector.drop_for_bulk_load(model.id).await.unwrap();
    fixture::model(&store, "m", DIMENSIONS as i32).await;
    assert!(!exists().await);
    pgvector.rebuild(&model).await.unwrap();
    pgvector.drop_index(model.id).await.unwrap();
    fixture::model(&store, "m", DIMENSIONS as i32).await;
    assert!(exists().await, "the build has ended the bulk load");

    // An index that an interrupted command has left is not used, and is built again.
    let invalidate =
        "update pg_index set indisvalid = false where indexrelid = 'faces_embedding_hnsw_1'::regclass";
    sqlx::query(invalidate).execute(db.pool()).await.unwrap();
    assert!(!pgvector.is_prepared(&model).await.unwrap());
    fixture::model(&store, "m", DIMENSIONS as i32).await;
    assert!(pgvector.is_prepared(&model).await.unwrap());

    // The index of many faces stays away until an operator builds it.
    pgvector.drop_index(model.id).await.unwrap();
    let faces = gallery(&store, default, &model, 60, 6).await;
    fixture::model(&store, "m", DIMENSIONS as i32).await;
    assert!(!exists().await);
    let search = query(default, model.id, faces[7].1.clone());
    let (hits, exact) = store.search(&search).await.unwrap();
    assert!(exact);
    assert_eq!(hits[0].face.id, faces[7].0);
    let scope = FaceScope::all(default, model.id);
    let neighbours = Neighbours {
        scope: &scope,
        model: &model,
        faces: &[faces[7].0],
        limit: 5,
        threshold: 0.0,
        exact: false,
    };
    let failed = pgvector.neighbours(&neighbours).await.unwrap_err();
    assert!(
        matches!(&failed, StoreError::IndexUnavailable(reason) if reason.contains("index rebuild")),
        "{failed}"
    );

    pgvector.rebuild(&model).await.unwrap();
    let (hits, exact) = store.search(&search).await.unwrap();
    assert!(!exact);
    assert_eq!(hits[0].face.id, faces[7].0);
    assert!(!pgvector.neighbours(&neighbours).await.unwrap().is_empty());
}
