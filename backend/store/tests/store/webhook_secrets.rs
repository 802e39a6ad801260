//! Tests the salts of webhook secrets: rotation, deleted collections, and restored backups.
use crate::fixture;
use std::time::Duration;
use store::collections::{SALT, WebhookSigner};
use store::erasures::deletion_log::Entry;
use store::{Store, StoreError};
use testing::TestDatabase;
use uuid::Uuid;

const HOUR: Duration = Duration::from_secs(3600);

fn own(salt: u8) -> WebhookSigner {
    WebhookSigner::Own(vec![salt; SALT])
}

async fn rotate(store: &Store, collection: Uuid, salt: u8, overlap: Duration) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    store.rotate_webhook_secret(tx.conn(), collection, &[salt; SALT], overlap).await?;
    tx.commit().await
}

#[testing::test]
async fn at_most_two_sign_and_only_for_their_own_collection() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let (ours, theirs) = (fixture::collection(&store, "ours").await, fixture::collection(&store, "b").await);
    assert_eq!(store.webhook_signers(ours).await.unwrap(), [WebhookSigner::Service]);
    rotate(&store, ours, 1, HOUR).await.unwrap();
    assert_eq!(store.webhook_signers(ours).await.unwrap(), [own(1), WebhookSigner::Service]);
    rotate(&store, ours, 2, HOUR).await.unwrap();
    rotate(&store, ours, 3, HOUR).await.unwrap();
    assert_eq!(store.webhook_signers(ours).await.unwrap(), [own(3), own(2)]);
    rotate(&store, ours, 4, Duration::ZERO).await.unwrap();
    assert_eq!(store.webhook_signers(ours).await.unwrap(), [own(4)]);
    assert_eq!(store.webhook_signers(theirs).await.unwrap(), [WebhookSigner::Service]);
    let bound = store.within(theirs);
    assert!(matches!(rotate(&bound, ours, 5, HOUR).await, Err(StoreError::NotFound { .. })));
}

#[testing::test]
async fn secrets_go_with_their_collection_and_stay_with_default() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let mut gone = Vec::new();
    for name in ["ours", "default"] {
        let collection = fixture::collection(&store, name).await;
        rotate(&store, collection, 7, Duration::ZERO).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        store.mark_collection_deleted(tx.conn(), collection).await.unwrap();
        tx.commit().await.unwrap();
        gone.push(collection);
    }
    for collection in gone {
        let mut done = false;
        while !done {
            let mut tx = store.begin().await.unwrap();
            done = store.erase_some(tx.conn(), collection).await.unwrap().done;
            tx.commit().await.unwrap();
        }
    }
    let default = fixture::collection(&store, "default").await;
    assert_eq!(store.webhook_signers(default).await.unwrap(), [own(7)]);
    let left: i64 =
        sqlx::query_scalar("select count(*) from webhook_secrets").fetch_one(store.pool()).await.unwrap();
    assert_eq!(left, 1);
}

#[testing::test]
async fn a_restored_backup_does_not_sign_with_what_was_replaced_since() {
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
        .bind(vec![1_u8; SALT])
        .bind(row.1)
        .execute(copy.pool())
        .await
        .unwrap();
    rotate(&live, collection, 2, Duration::ZERO).await.unwrap();
    let mut deletion_log: Vec<Entry> = Vec::new();
    let read = live.deletion_log(|line| {
        deletion_log.push(serde_json::from_str(line).unwrap());
        Ok::<_, StoreError>(())
    });
    read.await.unwrap();
    copy.import_deletion_log(deletion_log).await.unwrap();
    assert_eq!(copy.webhook_signers(collection).await.unwrap(), [WebhookSigner::Service]);
}
