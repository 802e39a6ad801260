//! Tests the deletion of collections, and the salts of their webhook secrets.
use crate::fixture::{self, Commit, admit_images, admit_pages, assert_not_found, count, image_url, page};
use crate::tombstones::deletion_log;
use domain::{CrawlKind, CrawlState};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use store::collections::{SALT_BYTES, WebhookSigner};
use store::keys::{NewKey, Scope};
use store::{Store, StoreError};
use testing::TestDatabase;
use uuid::Uuid;

/// Number of images. Their deletion takes more than one step.
const IMAGES: u64 = 450;

async fn mark_deleted(store: &Store, collection: Uuid) {
    store.commit(async |tx| store.collections().mark_deleted(tx.conn(), collection).await).await;
}

/// Creates a collection with images, faces, a person, a suppression and a running crawl.
async fn collection_with_content(store: &Store, name: &str) -> (Uuid, Uuid) {
    let collection = fixture::collection(store, name).await;
    let model = fixture::model(store, "m", 4).await;
    for number in 0..IMAGES {
        let face = fixture::face(&model, vec![1.0, 0.0, 0.0, 0.0]);
        fixture::store_image(store, collection, &fixture::image(number), &[face]).await.unwrap();
    }
    let mut tx = store.begin().await.unwrap();
    let seeds = ["http://site.test/".to_owned()];
    let crawl =
        store.crawls().insert(tx.conn(), collection, CrawlKind::Web, &seeds, &json!({})).await.unwrap().id;
    tx.commit().await.unwrap();
    let pages: Vec<_> = (0..50).map(page).collect();
    admit_pages(store, crawl, 1_000, &pages).await;
    let urls: Vec<_> = (0..50).map(|number| image_url(number, "")).collect();
    admit_images(store, crawl, 1_000, &urls).await;
    for statement in [
        "insert into subjects (id, collection_id, name) values (gen_random_uuid(), $1, 'someone')",
        "insert into suppressions (id, collection_id, phash) values (gen_random_uuid(), $1, 7)",
    ] {
        sqlx::query(statement).bind(collection).execute(store.pool()).await.unwrap();
    }
    (collection, crawl)
}

#[testing::test]
async fn collection_deletion_repeats_interrupted_batch() {
    let (_db, store) = fixture::database().await;
    let (collection, crawl) = collection_with_content(&store, "press").await;
    let mut tx = store.begin().await.unwrap();
    assert!(matches!(
        store.collections().erase_step(tx.conn(), collection).await,
        Err(StoreError::Conflict(_))
    ));
    drop(tx);
    mark_deleted(&store, collection).await;
    assert_not_found(store.collections().get("press").await, "collection");
    assert_not_found(store.collections().by_id(collection).await, "collection");
    assert_eq!(store.collections().list().await.unwrap().len(), 1);
    assert_eq!(store.collections().crawls_to_cancel(collection).await.unwrap(), [crawl]);
    // The name is available, and a new collection with this name contains none of the old content.
    let new_collection = fixture::collection(&store, "press").await;

    let (mut blobs, mut steps, mut cancelled) = (BTreeSet::new(), 0, false);
    loop {
        // The step is interrupted before its commit, so the next call returns the same blobs.
        let mut rolled_back = store.begin().await.unwrap();
        let expected = store.collections().erase_step(rolled_back.conn(), collection).await.unwrap();
        drop(rolled_back);
        let erased =
            store.commit(async |tx| store.collections().erase_step(tx.conn(), collection).await).await;
        assert_eq!(erased, expected);
        assert!(erased.rows <= 5_000, "{erased:?}");
        steps += 1;
        blobs.extend(erased.blobs);
        match (erased.is_done, erased.rows) {
            (true, _) => break,
            (false, 0) => {
                // The deletion waits for a running crawl.
                assert!(!cancelled);
                cancelled = true;
                fixture::set_state(&store, crawl, CrawlState::Cancelled).await;
            }
            _ => {}
        }
    }
    assert!(cancelled && steps > 6, "{steps}");
    assert_eq!(blobs.len() as u64, IMAGES);
    for table in
        ["images", "faces", "image_sources", "image_urls", "pages", "crawls", "subjects", "suppressions"]
    {
        assert_eq!(count(&store, table).await, 0, "{table}");
    }
    assert_eq!(store.collections().get("press").await.unwrap().id, new_collection);
    let mut tx = store.begin().await.unwrap();
    assert!(
        store.collections().erase_step(tx.conn(), collection).await.unwrap().is_done,
        "the collection stays deleted"
    );
}

#[testing::test]
async fn api_keys_are_deleted_with_collection_except_default() {
    let (_db, store) = fixture::database().await;
    let [press, default] = fixture::collections(&store, ["press", "default"]).await;
    for collection in [press, default] {
        let new = NewKey {
            collection_id: Some(collection),
            name: "a desk".into(),
            scopes: vec![Scope::Read],
            requests_per_minute: None,
            expires_at: None,
            made_by: None,
        };
        store.commit(async |tx| store.keys().create(tx.conn(), &new).await).await;
    }
    mark_deleted(&store, press).await;
    mark_deleted(&store, default).await;
    let successor = store.collections().get("default").await.unwrap();
    assert_ne!(successor.id, default);
    let keys = store.keys().list(None, 10).await.unwrap();
    assert_eq!(keys.iter().map(|key| key.collection_id).collect::<Vec<_>>(), [Some(successor.id)]);
    let mut tx = store.begin().await.unwrap();
    let result = store.collections().mark_deleted(tx.conn(), press).await;
    assert_not_found(result, "collection");
    // A store with a scope can delete only its own collection.
    let out_of_scope = store.within(Uuid::now_v7()).collections().mark_deleted(tx.conn(), successor.id).await;
    assert_not_found(out_of_scope, "collection");
}

const HOUR: Duration = Duration::from_secs(3600);

fn signer(salt: u8) -> WebhookSigner {
    WebhookSigner::Own(vec![salt; SALT_BYTES])
}

async fn rotate(store: &Store, collection: Uuid, salt: u8, overlap: Duration) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    store.collections().rotate_webhook_secret(tx.conn(), collection, &[salt; SALT_BYTES], overlap).await?;
    tx.commit().await
}

#[testing::test]
async fn at_most_two_secrets_sign_for_their_collection() {
    let (_db, store) = fixture::database().await;
    let [ours, theirs] = fixture::collections(&store, ["ours", "b"]).await;
    assert_eq!(store.collections().webhook_signers(ours).await.unwrap(), [WebhookSigner::Service]);
    rotate(&store, ours, 1, HOUR).await.unwrap();
    assert_eq!(store.collections().webhook_signers(ours).await.unwrap(), [signer(1), WebhookSigner::Service]);
    rotate(&store, ours, 2, HOUR).await.unwrap();
    rotate(&store, ours, 3, HOUR).await.unwrap();
    assert_eq!(store.collections().webhook_signers(ours).await.unwrap(), [signer(3), signer(2)]);
    rotate(&store, ours, 4, Duration::ZERO).await.unwrap();
    assert_eq!(store.collections().webhook_signers(ours).await.unwrap(), [signer(4)]);
    assert_eq!(store.collections().webhook_signers(theirs).await.unwrap(), [WebhookSigner::Service]);
    let scoped = store.within(theirs);
    assert_not_found(rotate(&scoped, ours, 5, HOUR).await, "collection");
}

#[testing::test]
async fn webhook_secrets_are_deleted_with_collection_except_default() {
    let (_db, store) = fixture::database().await;
    let mut deleted = Vec::new();
    for name in ["ours", "default"] {
        let collection = fixture::collection(&store, name).await;
        rotate(&store, collection, 7, Duration::ZERO).await.unwrap();
        store.commit(async |tx| store.collections().mark_deleted(tx.conn(), collection).await).await;
        deleted.push(collection);
    }
    for collection in deleted {
        let mut done = false;
        while !done {
            done = store
                .commit(async |tx| store.collections().erase_step(tx.conn(), collection).await)
                .await
                .is_done;
        }
    }
    let default = fixture::collection(&store, "default").await;
    assert_eq!(store.collections().webhook_signers(default).await.unwrap(), [signer(7)]);
    let remaining: i64 =
        sqlx::query_scalar("select count(*) from webhook_secrets").fetch_one(store.pool()).await.unwrap();
    assert_eq!(remaining, 1);
}

#[testing::test]
async fn restored_backup_does_not_sign_with_replaced_secret() {
    let (live, copy) = (TestDatabase::create().await, TestDatabase::create().await);
    let (live, copy) = (live.store(), copy.store());
    let collection = fixture::collection(&live, "default").await;
    rotate(&live, collection, 1, Duration::ZERO).await.unwrap();
    // Both databases have the same row, as after a restore.
    let row: (Uuid, time::OffsetDateTime) =
        sqlx::query_as("select id, created_at from webhook_secrets").fetch_one(live.pool()).await.unwrap();
    sqlx::query("insert into webhook_secrets (id, collection_id, salt, created_at, overlaps_until) values ($1, $2, $3, $4, $4)")
        .bind(row.0)
        .bind(fixture::collection(&copy, "default").await)
        .bind(vec![1_u8; SALT_BYTES])
        .bind(row.1)
        .execute(copy.pool())
        .await
        .unwrap();
    rotate(&live, collection, 2, Duration::ZERO).await.unwrap();
    copy.erasures().import_deletion_log(deletion_log(&live).await).await.unwrap();
    assert_eq!(copy.collections().webhook_signers(collection).await.unwrap(), [WebhookSigner::Service]);
}
