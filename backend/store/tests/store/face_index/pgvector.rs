//! Tests behaviour that only the index of pgvector has.
use super::gallery::{DIMENSIONS, assert_same, brute_force, gallery, query};
use crate::fixture;
use testing::TestDatabase;

#[tokio::test]
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

#[tokio::test]
async fn an_index_search_that_comes_up_short_is_done_again_exactly() {
    let db = TestDatabase::create().await;
    let store = db.store().with_exact_limit(10);
    let default = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let gallery = gallery(&store, default, &model, 60, 5).await;
    // An index that misses rows of the table simulates a scan that stops before it has found
    // enough.
    let sql = format!(
        "drop index faces_embedding_hnsw_{0}; create index faces_embedding_hnsw_{0} on faces using hnsw ((embedding::halfvec({DIMENSIONS})) halfvec_cosine_ops) where model_id = {0} and det_score > 2",
        model.id
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(db.pool()).await.unwrap();
    let probe = gallery[7].1.clone();
    let (hits, _) = store.search(&query(default, model.id, probe.clone())).await.unwrap();
    assert_same(&hits, &brute_force(&gallery, &probe, -1.0, 10));
}
