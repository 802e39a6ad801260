//! Tests an erasure by likeness in a large collection.
use crate::fixture;
use store::erasures::Target;
use testing::TestDatabase;
use uuid::Uuid;

/// Number of faces. Comparing them takes more than two statements.
const FACES: i32 = 120_000;

#[testing::test]
async fn an_erasure_compares_with_every_face_of_a_large_collection() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", 4).await;
    // The index would be updated for each face, and an erasure does not use it.
    sqlx::raw_sql("drop index faces_embedding_hnsw_1").execute(store.pool()).await.unwrap();
    let image = fixture::store_image(&store, collection, &fixture::image(1), &[]).await.unwrap();
    let other = fixture::collection(&store, "other").await;
    let elsewhere = fixture::store_image(&store, other, &fixture::image(1), &[]).await.unwrap();
    // Similar faces: the first, the last, and those on both sides of each batch boundary.
    let alike = "n in (1, 49999, 50000, 50001, 99999, 100000, 100001, 120000)";
    for (collection, image, prefix) in [(collection, image, "1"), (other, elsewhere, "2")] {
        let sql = format!(
            "insert into faces (id, collection_id, image_id, bbox, det_score, landmarks, embedding, model_id)
             select (lpad(to_hex(n), 8, '0') || '-0000-7000-8000-{prefix}00000000000')::uuid, $1, $2, '{{0,0,9,9}}', 1,
                    '{{0,0,0,0,0,0,0,0,0,0}}', case when {alike} then '[1,0,0,0]' else '[0,1,0,0]' end::halfvec, $3
             from generate_series(1, {FACES}) n"
        );
        let insert = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(collection).bind(image).bind(model.id);
        insert.execute(store.pool()).await.unwrap();
    }
    let target = Target::Likeness { embedding: vec![1.0, 0.0, 0.0, 0.0], model_id: model.id, threshold: 0.9 };
    let mut tx = store.begin().await.unwrap();
    let plan = store.plan_erasure(tx.conn(), collection, &target).await.unwrap();
    let mut found: Vec<Uuid> = plan.faces.iter().map(|face| face.id).collect();
    found.sort();
    let expected = [1_u32, 49_999, 50_000, 50_001, 99_999, 100_000, 100_001, 120_000]
        .map(|n| Uuid::parse_str(&format!("{n:08x}-0000-7000-8000-100000000000")).unwrap());
    assert_eq!(found, expected);
    assert!(plan.images.is_empty(), "the image has other faces");
    store.carry_out(tx.conn(), &plan).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(store.image(image).await.unwrap().face_count, FACES - 8);
}
