use crate::fixture::{self, admit_images, admit_pages, image_url, page};
use domain::{CrawlKind, CrawlState};
use serde_json::json;
use sqlx::AssertSqlSafe;
use std::collections::BTreeSet;
use store::keys::{NewKey, Scope};
use store::{Store, StoreError};
use testing::TestDatabase;
use uuid::Uuid;

/// Number of images. Their deletion takes more than one step.
const IMAGES: u64 = 450;

async fn count(store: &Store, table: &str) -> i64 {
    let sql = format!("select count(*) from {table}");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(store.pool()).await.unwrap()
}

async fn mark_deleted(store: &Store, collection: Uuid) {
    let mut tx = store.begin().await.unwrap();
    store.mark_collection_deleted(tx.conn(), collection).await.unwrap();
    tx.commit().await.unwrap();
}

/// Creates a collection with images, faces, a person, a suppression and a running crawl.
async fn full(store: &Store, name: &str) -> (Uuid, Uuid) {
    let collection = fixture::collection(store, name).await;
    let model = fixture::model(store, "m", 4).await;
    for number in 0..IMAGES {
        let face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
        fixture::store_image(store, collection, &fixture::image(number), &[face]).await.unwrap();
    }
    let mut tx = store.begin().await.unwrap();
    let seeds = ["http://site.test/".to_owned()];
    let crawl =
        store.insert_crawl(tx.conn(), collection, CrawlKind::Web, &seeds, &json!({})).await.unwrap().id;
    tx.commit().await.unwrap();
    let pages: Vec<_> = (0..50).map(page).collect();
    admit_pages(store, crawl, 1_000, &pages).await;
    let urls: Vec<_> = (0..50).map(|number| image_url(number, "")).collect();
    admit_images(store, crawl, 1_000, &urls).await;
    for insert in [
        "insert into subjects (id, collection_id, name) values (gen_random_uuid(), $1, 'someone')",
        "insert into suppressions (id, collection_id, phash) values (gen_random_uuid(), $1, 7)",
    ] {
        sqlx::query(insert).bind(collection).execute(store.pool()).await.unwrap();
    }
    (collection, crawl)
}

#[testing::test]
async fn a_buried_collection_goes_piece_by_piece_and_a_piece_that_was_cut_short_is_done_again() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let (collection, crawl) = full(&store, "press").await;
    let mut tx = store.begin().await.unwrap();
    assert!(matches!(store.erase_some(tx.conn(), collection).await, Err(StoreError::Conflict(_))));
    drop(tx);
    mark_deleted(&store, collection).await;
    assert!(matches!(store.collection("press").await, Err(StoreError::NotFound { .. })));
    assert!(matches!(store.collection_by_id(collection).await, Err(StoreError::NotFound { .. })));
    assert_eq!(store.collections().await.unwrap().len(), 1);
    assert_eq!(store.crawls_to_cancel(collection).await.unwrap(), [crawl]);
    // The name is available, and a new collection with this name contains none of the old content.
    let namesake = fixture::collection(&store, "press").await;

    let (mut blobs, mut pieces, mut cancelled) = (BTreeSet::new(), 0, false);
    loop {
        // The step is interrupted before its commit, so the next call returns the same blobs.
        let mut lost = store.begin().await.unwrap();
        let before = store.erase_some(lost.conn(), collection).await.unwrap();
        drop(lost);
        let mut tx = store.begin().await.unwrap();
        let erased = store.erase_some(tx.conn(), collection).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(erased, before);
        assert!(erased.rows <= 5_000, "{erased:?}");
        pieces += 1;
        blobs.extend(erased.blobs);
        match (erased.done, erased.rows) {
            (true, _) => break,
            (false, 0) => {
                // The deletion waits for a running crawl.
                assert!(!cancelled);
                cancelled = true;
                let mut tx = store.begin().await.unwrap();
                store
                    .set_crawl_state(tx.conn(), crawl, &[CrawlState::Running], CrawlState::Cancelled, None)
                    .await
                    .unwrap();
                tx.commit().await.unwrap();
            }
            _ => {}
        }
    }
    assert!(cancelled && pieces > 6, "{pieces}");
    // The thumbnail, chip and crop of each image.
    assert_eq!(blobs.len() as u64, 3 * IMAGES);
    for table in
        ["images", "faces", "image_sources", "image_urls", "pages", "crawls", "subjects", "suppressions"]
    {
        assert_eq!(count(&store, table).await, 0, "{table}");
    }
    assert_eq!(store.collection("press").await.unwrap().id, namesake);
    let mut tx = store.begin().await.unwrap();
    assert!(store.erase_some(tx.conn(), collection).await.unwrap().done, "the collection stays deleted");
}

#[testing::test]
async fn keys_go_with_their_collection_and_stay_with_default() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let (press, default) =
        (fixture::collection(&store, "press").await, fixture::collection(&store, "default").await);
    for collection in [press, default] {
        let new = NewKey {
            collection_id: Some(collection),
            name: "a desk".into(),
            scopes: vec![Scope::Read],
            requests_per_minute: None,
            expires_at: None,
            made_by: None,
        };
        let mut tx = store.begin().await.unwrap();
        store.create_key(tx.conn(), &new).await.unwrap();
        tx.commit().await.unwrap();
    }
    mark_deleted(&store, press).await;
    mark_deleted(&store, default).await;
    let successor = store.collection("default").await.unwrap();
    assert_ne!(successor.id, default);
    let keys = store.keys(None, 10).await.unwrap();
    assert_eq!(keys.iter().map(|key| key.collection_id).collect::<Vec<_>>(), [Some(successor.id)]);
    let mut tx = store.begin().await.unwrap();
    let again = store.mark_collection_deleted(tx.conn(), press).await;
    assert!(matches!(again, Err(StoreError::NotFound { .. })));
    // A store with a scope can delete only its own collection.
    let other = store.within(Uuid::now_v7()).mark_collection_deleted(tx.conn(), successor.id).await;
    assert!(matches!(other, Err(StoreError::NotFound { .. })));
}
