use crate::fixture::{self, Commit, assert_not_found};
use store::StoreError;
use store::keys::{KeyHash, NewKey, Scope};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

fn sample() -> NewKey {
    NewKey {
        collection_id: None,
        name: "a newsroom".into(),
        scopes: vec![Scope::Read, Scope::Search],
        requests_per_minute: Some(60),
        expires_at: Some(OffsetDateTime::now_utc() + Duration::days(90)),
        made_by: None,
    }
}

#[testing::test]
async fn api_key_is_returned_once_and_stored_as_hash() {
    let (_db, store) = fixture::database().await;
    let mut tx = store.begin().await.unwrap();
    let (created, key) = store.keys().create(tx.conn(), &sample()).await.unwrap();
    let (_, other) = store.keys().create(tx.conn(), &sample()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(
        (created.name.as_str(), created.scopes.as_slice()),
        ("a newsroom", [Scope::Read, Scope::Search].as_slice())
    );
    assert_eq!((key.len(), created.requests_per_minute), (46, Some(60)));
    assert_ne!(key, other);

    let found = store.keys().find(&KeyHash::from_key(&key).unwrap()).await.unwrap();
    assert_eq!(found.as_ref(), Some(&created));
    let unknown = KeyHash::from_key("fc_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
    assert_eq!(store.keys().find(&unknown).await.unwrap(), None);
    let rows: String = sqlx::query_scalar("select string_agg(k::text, ' ') from api_keys k")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert!(!rows.contains(&key[12..]) && !rows.contains(&other[12..]), "{rows}");
}

#[testing::test]
async fn revoked_key_stays_listed_with_revocation_time() {
    let (_db, store) = fixture::database().await;
    let mut tx = store.begin().await.unwrap();
    let (created, _) = store.keys().create(tx.conn(), &sample()).await.unwrap();
    let revoked = store.keys().revoke(tx.conn(), created.id, false).await.unwrap();
    tx.commit().await.unwrap();
    assert!(revoked.key.revoked_at.is_some());
    let mut tx = store.begin().await.unwrap();
    assert_eq!(store.keys().revoke(tx.conn(), created.id, false).await.unwrap(), revoked);
    let result = store.keys().revoke(tx.conn(), Uuid::now_v7(), false).await;
    assert_not_found(result, "key");
    tx.commit().await.unwrap();
    assert_eq!(store.keys().list(None, 10).await.unwrap(), [revoked.key]);
}

/// A key creates another key while it is revoked. The new key is revoked or not created.
#[testing::test]
async fn revoking_key_revokes_concurrently_created_keys() {
    let (db, store) = fixture::database().await;
    let (creator, _) = store.commit(async |tx| store.keys().create(tx.conn(), &sample()).await).await;
    let created_by_key = NewKey { made_by: Some(creator.id), ..sample() };

    let mut create_tx = store.begin().await.unwrap();
    let (created, _) = store.keys().create(create_tx.conn(), &created_by_key).await.unwrap();
    let revoke = store.commit(async |tx| store.keys().revoke(tx.conn(), creator.id, true).await);
    let commit = async {
        fixture::wait_for_lock(&db).await;
        create_tx.commit().await.unwrap();
    };
    let (revocation, ()) = tokio::join!(revoke, commit);
    assert_eq!(revocation.descendants.iter().map(|key| key.id).collect::<Vec<_>>(), [created.id]);
    assert_eq!(revocation.valid_descendants, 0);

    let mut tx = store.begin().await.unwrap();
    let result = store.keys().create(tx.conn(), &created_by_key).await;
    assert!(matches!(result, Err(StoreError::Conflict(_))), "{result:?}");
}

#[testing::test]
async fn invalid_key_error_contains_allowed_values() {
    let (_db, store) = fixture::database().await;
    let default = store.collections().get("default").await.unwrap().id;
    let past = OffsetDateTime::now_utc() - Duration::SECOND;
    for (invalid_key, word) in [
        (NewKey { scopes: Vec::new(), ..sample() }, "analyze, read"),
        (NewKey { name: String::new(), ..sample() }, "1 to 200"),
        (NewKey { name: "two\nlines".into(), ..sample() }, "1 to 200"),
        (NewKey { requests_per_minute: Some(0), ..sample() }, "1 or more"),
        (NewKey { expires_at: Some(past), ..sample() }, "in the past"),
        (NewKey { scopes: vec![Scope::System], collection_id: Some(default), ..sample() }, "all collections"),
    ] {
        let mut tx = store.begin().await.unwrap();
        let result = store.keys().create(tx.conn(), &invalid_key).await;
        let Err(StoreError::Invalid(sentence)) = result else { panic!("{invalid_key:?}: {result:?}") };
        assert!(sentence.contains(word), "{sentence}");
    }
    let mut tx = store.begin().await.unwrap();
    let in_missing_collection = NewKey { collection_id: Some(Uuid::now_v7()), ..sample() };
    assert_not_found(store.keys().create(tx.conn(), &in_missing_collection).await, "collection");
}
