//! Tests delays that apply to one collection only.
use crate::hosts::clock;
use std::time::Duration;
use store::Store;
use store::collections::CollectionSettings;
use store::crawls::hosts::OwnDelay;
use store::crawls::hosts::PermitOutcome;
use testing::TestDatabase;
use uuid::Uuid;

const HOST: &str = "a.test";
const SHARED_MS: i64 = 1;
const OWN_MS: i64 = 60_000;

async fn collections(store: &Store) -> [OwnDelay; 2] {
    let mut tx = store.begin().await.unwrap();
    let settings = CollectionSettings::default();
    let ours = store.create_collection(tx.conn(), "ours", &settings).await.unwrap().id;
    tx.commit().await.unwrap();
    let default: Uuid = sqlx::query_scalar("select id from collections where name = 'default'")
        .fetch_one(store.pool())
        .await
        .unwrap();
    [ours, default].map(|collection| OwnDelay { collection, delay_ms: OWN_MS })
}

/// Requests a permit repeatedly until the delay that applies to every collection is over.
async fn granted(store: &Store, own: OwnDelay) -> i64 {
    loop {
        match store.acquire_collection_permit(HOST, own, SHARED_MS).await.unwrap() {
            PermitOutcome::Granted { token } => return token,
            PermitOutcome::Wait { wait } => {
                assert!(wait < Duration::from_secs(30), "the delay of another collection applies: {wait:?}");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

async fn waits(store: &Store, own: OwnDelay) -> Duration {
    match store.acquire_collection_permit(HOST, own, SHARED_MS).await.unwrap() {
        PermitOutcome::Wait { wait } => wait,
        granted => panic!("{granted:?}"),
    }
}

async fn finish(store: &Store, own: OwnDelay, token: i64) {
    store.finish_request(HOST, token, SHARED_MS, None, None).await.unwrap();
    store.finish_own_request(HOST, own).await.unwrap();
}

#[testing::test]
async fn a_collections_own_delay_counts_from_the_end_of_its_request_and_binds_no_other() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let [ours, theirs] = collections(&store).await;
    let delay = Duration::from_millis(OWN_MS.unsigned_abs());
    let token = granted(&store, ours).await;
    // While the request is running, the store assumes that it ends now.
    let before = clock(&store).await;
    let wait = waits(&store, ours).await;
    assert!(clock(&store).await + wait >= before + delay, "{wait:?}");
    let before = clock(&store).await;
    finish(&store, ours, token).await;
    let after = clock(&store).await;
    let asked = clock(&store).await;
    let wait = waits(&store, ours).await;
    assert!(clock(&store).await + wait >= before + delay, "{wait:?}");
    assert!(asked + wait <= after + delay * 2, "{wait:?}");
    // Other collections wait only for the delay that applies to every collection.
    let token = granted(&store, theirs).await;
    finish(&store, theirs, token).await;
    let is_granted = async || {
        matches!(store.acquire_host_permit(HOST, SHARED_MS).await.unwrap(), PermitOutcome::Granted { .. })
    };
    while !is_granted().await {
        tokio::task::yield_now().await;
    }
}

#[testing::test]
async fn a_turn_that_the_host_does_not_give_is_given_back() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let [ours, _] = collections(&store).await;
    let PermitOutcome::Granted { token } = store.acquire_host_permit(HOST, SHARED_MS).await.unwrap() else {
        panic!()
    };
    let wait = waits(&store, ours).await;
    assert!(wait < Duration::from_secs(30), "the collection's own delay applies: {wait:?}");
    store.finish_request(HOST, token, SHARED_MS, None, None).await.unwrap();
    granted(&store, ours).await;
}

#[testing::test]
async fn a_turn_whose_holder_died_comes_back_and_delays_that_are_over_are_forgotten() {
    let db = TestDatabase::create().await;
    let store = db.store();
    let [ours, theirs] = collections(&store).await;
    for own in [ours, theirs] {
        let token = granted(&store, own).await;
        store.finish_request(HOST, token, SHARED_MS, None, None).await.unwrap();
    }
    assert_eq!(store.prune_host_delays().await.unwrap(), 0);
    db.execute("update host_delays set busy_until = now() - interval '1 minute'").await;
    granted(&store, ours).await;
    db.execute("update host_delays set busy_until = now() - interval '2 hours', next_at = now() - interval '2 hours'")
        .await;
    assert_eq!(store.prune_host_delays().await.unwrap(), 2);
}
