//! Compares search with a brute-force computation.
use crate::fixture::{self, direction};
use half::f16;
use store::search::{Hit, SearchQuery};
use store::{Store, StoreError};
use testing::TestDatabase;
use uuid::Uuid;

const DIMENSIONS: usize = 64;

/// Returns the embedding as stored, rounded to half precision.
fn stored(embedding: &[f32]) -> Vec<f64> {
    embedding.iter().map(|x| f16::from_f32(*x).to_f64()).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let (a, b) = (stored(a), stored(b));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a).sqrt() * dot(&b, &b).sqrt())
}

/// Stores faces in 20 clusters, so that there are near and distant faces. Returns (id, embedding)
/// in insertion order.
async fn gallery(
    store: &Store,
    collection: Uuid,
    model: &store::models::EmbeddingModel,
    count: usize,
    seed: u64,
) -> Vec<(Uuid, Vec<f32>)> {
    let mut rng = fixture::rng(seed);
    let centres: Vec<Vec<f32>> = (0..20).map(|_| direction(&mut rng, DIMENSIONS)).collect();
    let mut all = Vec::new();
    for chunk in 0..count.div_ceil(50) {
        let faces: Vec<_> = (0..50.min(count - chunk * 50))
            .map(|n| {
                let noise = direction(&mut rng, DIMENSIONS);
                let near: Vec<f32> =
                    centres[n % centres.len()].iter().zip(&noise).map(|(c, n)| c + 0.5 * n).collect();
                let length = near.iter().map(|x| x * x).sum::<f32>().sqrt();
                let mut face = fixture::face(model, near.into_iter().map(|x| x / length).collect());
                face.quality_overall = Some(n as f32 / 50.0);
                face
            })
            .collect();
        all.extend(faces.iter().map(|face| (face.id, face.embedding.clone())));
        let image = fixture::image(seed * 1_000 + chunk as u64);
        fixture::store_image(store, collection, &image, &faces).await.unwrap();
    }
    all
}

fn brute_force(
    gallery: &[(Uuid, Vec<f32>)],
    probe: &[f32],
    threshold: f32,
    limit: usize,
) -> Vec<(Uuid, f64)> {
    let mut all: Vec<(Uuid, f64)> =
        gallery.iter().map(|(id, embedding)| (*id, cosine(embedding, probe))).collect();
    all.retain(|(_, similarity)| *similarity >= f64::from(threshold));
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(limit);
    all
}

fn query(collection_id: Uuid, model_id: i32, embedding: Vec<f32>) -> SearchQuery {
    SearchQuery {
        collection_id,
        embedding,
        model_id,
        threshold: -1.0,
        limit: 10,
        exact: false,
        crawl_id: None,
        min_quality: None,
        exclude_face: None,
        with_subject: false,
    }
}

fn ids(hits: &[Hit]) -> Vec<Uuid> {
    hits.iter().map(|hit| hit.face.id).collect()
}

fn assert_same(hits: &[Hit], expected: &[(Uuid, f64)]) {
    assert_eq!(hits.len(), expected.len());
    for (hit, (id, similarity)) in hits.iter().zip(expected) {
        assert_eq!(hit.face.id, *id);
        assert!((f64::from(hit.similarity) - similarity).abs() < 1e-4, "{} {similarity}", hit.similarity);
    }
}

#[tokio::test]
async fn exact_search_agrees_with_brute_force() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let default = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let gallery = gallery(&store, default, &model, 400, 1).await;
    let mut rng = fixture::rng(2);
    for round in 0..10 {
        let probe =
            if round % 2 == 0 { direction(&mut rng, DIMENSIONS) } else { gallery[round * 30].1.clone() };
        let mut query = query(default, model.id, probe.clone());
        let (hits, exact) = store.search(&query).await.unwrap();
        assert!(exact);
        assert_same(&hits, &brute_force(&gallery, &probe, -1.0, 10));
        (query.threshold, query.limit) = (0.5, 1_000);
        let (hits, _) = store.search(&query).await.unwrap();
        assert_same(&hits, &brute_force(&gallery, &probe, 0.5, 1_000));
    }
    // The first result of a search for a stored face is the face itself, with similarity 1, unless
    // it is excluded.
    let (own, embedding) = &gallery[123];
    let mut query = query(default, model.id, embedding.clone());
    let (hits, _) = store.search(&query).await.unwrap();
    assert_eq!(hits[0].face.id, *own);
    assert!((hits[0].similarity - 1.0).abs() < 1e-3);
    query.exclude_face = Some(*own);
    let (hits, _) = store.search(&query).await.unwrap();
    assert!(!ids(&hits).contains(own));
    query.limit = 0;
    assert!(store.search(&query).await.unwrap().0.is_empty());
}

#[tokio::test]
async fn the_index_gives_the_same_top_hits_and_says_so() {
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
    let mut rng = fixture::rng(4);
    for round in 0..10 {
        let probe =
            if round % 2 == 0 { direction(&mut rng, DIMENSIONS) } else { gallery[round * 50].1.clone() };
        let mut query = query(default, model.id, probe.clone());
        let (hits, exact) = store.search(&query).await.unwrap();
        assert!(!exact);
        assert_same(&hits, &brute_force(&gallery, &probe, -1.0, 10));
        query.exact = true;
        let (same, exact) = store.search(&query).await.unwrap();
        assert!(exact);
        assert_eq!(ids(&same), ids(&hits));
    }
    // Checks that the results above came from the index, not from an exact plan.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while scans().await < 10 {
        assert!(std::time::Instant::now() < deadline, "the index was not used");
        sqlx::query("select pg_stat_force_next_flush()").execute(db.pool()).await.unwrap();
    }
    // With few faces in scope, the search is exact. With fewer faces than requested, it returns all
    // of them.
    let mut narrow = query(default, model.id, gallery[0].1.clone());
    narrow.min_quality = Some(0.9);
    assert!(store.search(&narrow).await.unwrap().1);
    narrow.min_quality = None;
    narrow.limit = 1_000;
    let (hits, exact) = store.search(&narrow).await.unwrap();
    assert!(exact);
    assert_eq!(hits.len(), 600);
    // With a filter that keeps a third of the faces, the search uses the index.
    let mut filtered = query(default, model.id, gallery[0].1.clone());
    filtered.min_quality = Some(0.66);
    let (hits, exact) = store.search(&filtered).await.unwrap();
    assert!(!exact);
    let kept: Vec<_> =
        gallery.iter().enumerate().filter(|(n, _)| n % 50 >= 33).map(|(_, face)| face.clone()).collect();
    assert_same(&hits, &brute_force(&kept, &filtered.embedding, -1.0, 10));
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

#[tokio::test]
async fn a_collection_that_was_large_a_moment_ago_is_still_searched_completely() {
    let db = TestDatabase::create().await;
    let store = db.store().with_exact_limit(50);
    let default = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let gallery = gallery(&store, default, &model, 100, 8).await;
    let probe = gallery[0].1.clone();
    assert!(!store.search(&query(default, model.id, probe.clone())).await.unwrap().1);
    let mut tx = store.begin().await.unwrap();
    for (id, _) in &gallery[7..] {
        store.delete_face(tx.conn(), *id).await.unwrap();
    }
    tx.commit().await.unwrap();
    let (hits, exact) = store.search(&query(default, model.id, probe.clone())).await.unwrap();
    assert!(exact);
    assert_same(&hits, &brute_force(&gallery[..7], &probe, -1.0, 10));
}

#[tokio::test]
async fn models_collections_and_crawls_are_never_mixed() {
    let db = TestDatabase::create().await;
    for limit in [50_000, 5] {
        let store = db.store().with_exact_limit(limit);
        let (here, there) = (format!("here{limit}"), format!("there{limit}"));
        let (here, there) =
            (fixture::collection(&store, &here).await, fixture::collection(&store, &there).await);
        let (first, second) = (
            fixture::model(&store, "first", DIMENSIONS as i32).await,
            fixture::model(&store, "second", DIMENSIONS as i32).await,
        );
        let mut rng = fixture::rng(6);
        let probe = direction(&mut rng, DIMENSIONS);
        // The exact probe is stored in every collection and model. Only the one in scope may be
        // returned.
        let mut expected = Vec::new();
        for (number, (collection, model)) in
            [(here, &first), (here, &second), (there, &first), (there, &second)].into_iter().enumerate()
        {
            let faces: Vec<_> = (0..13).map(|_| fixture::face(model, probe.clone())).collect();
            if number == 0 {
                expected.extend(faces.iter().map(|face| face.id));
            }
            fixture::store_image(&store, collection, &fixture::image(number as u64), &faces).await.unwrap();
        }
        let mut everything = query(here, first.id, probe.clone());
        everything.limit = 12;
        let (hits, exact) = store.search(&everything).await.unwrap();
        assert_eq!(exact, limit > 12, "the smaller limit uses the index");
        assert_eq!(hits.len(), 12);
        assert!(hits.iter().all(|hit| expected.contains(&hit.face.id)));
        assert!(hits.iter().all(|hit| hit.face.collection_id == here && hit.face.embedding_model == "first"));
        everything.limit = 100;
        assert_eq!(ids(&store.search(&everything).await.unwrap().0), expected);
    }
}

#[tokio::test]
async fn a_search_can_be_narrowed_to_one_crawl_and_a_quality() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let (one, two) = (fixture::crawl(&store).await, fixture::crawl(&store).await);
    let model = fixture::model(&store, "m", 4).await;
    let mut found = Vec::new();
    for (number, crawl) in [&one, &one, &two].into_iter().enumerate() {
        let mut face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
        face.quality_overall = Some(number as f32 / 2.0);
        found.push(face.id);
        let image = fixture::image(number as u64);
        fixture::crawled_face(&store, crawl, &format!("{number}.jpg"), &image, face).await;
    }
    let mut search = query(one.collection_id, model.id, vec![1.0, 0.0, 0.0, 0.0]);
    assert_eq!(ids(&store.search(&search).await.unwrap().0), found);
    search.crawl_id = Some(one.id);
    assert_eq!(ids(&store.search(&search).await.unwrap().0), found[..2]);
    search.min_quality = Some(0.5);
    assert_eq!(ids(&store.search(&search).await.unwrap().0), found[1..2]);
    search.crawl_id = None;
    assert_eq!(ids(&store.search(&search).await.unwrap().0), found[1..]);

    let unknown = query(one.collection_id, 99, vec![1.0; 4]);
    assert!(matches!(store.search(&unknown).await, Err(StoreError::NotFound { .. })));
    for odd in [vec![1.0; 5], vec![0.0; 4], vec![f32::INFINITY, 0.0, 0.0, 0.0]] {
        let odd = query(one.collection_id, model.id, odd);
        assert!(matches!(store.search(&odd).await, Err(StoreError::Invalid(_))));
    }
}

#[tokio::test]
async fn grouping_gives_the_best_face_of_each_subject() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let collection = fixture::collection(&store, "default").await;
    let model = fixture::model(&store, "m", DIMENSIONS as i32).await;
    let gallery = gallery(&store, collection, &model, 200, 3).await;
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
