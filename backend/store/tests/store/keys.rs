use crate::fixture::{self, Commit, assert_not_found};
use store::StoreError;
use store::keys::{KeyHash, NewKey, Scope};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

fn new() -> NewKey {
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
    let (made, key) = store.keys().create(tx.conn(), &new()).await.unwrap();
    let (_, other) = store.keys().create(tx.conn(), &new()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(
        (made.name.as_str(), made.scopes.as_slice()),
        ("a newsroom", [Scope::Read, Scope::Search].as_slice())
    );
    assert_eq!((key.len(), made.requests_per_minute), (46, Some(60)));
    assert_ne!(key, other);

    let found = store.keys().find(&KeyHash::of(&key).unwrap()).await.unwrap();
    assert_eq!(found.as_ref(), Some(&made));
    let unknown = KeyHash::of("fc_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
    assert_eq!(store.keys().find(&unknown).await.unwrap(), None);
    let everything: String = sqlx::query_scalar("select string_agg(k::text, ' ') from api_keys k")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert!(!everything.contains(&key[12..]) && !everything.contains(&other[12..]), "{everything}");
}

#[testing::test]
async fn revoked_key_stays_listed_with_revocation_time() {
    let (_db, store) = fixture::database().await;
    let mut tx = store.begin().await.unwrap();
    let (made, _) = store.keys().create(tx.conn(), &new()).await.unwrap();
    let revoked = store.keys().revoke(tx.conn(), made.id, false).await.unwrap();
    tx.commit().await.unwrap();
    assert!(revoked.key.revoked_at.is_some());
    let mut tx = store.begin().await.unwrap();
    assert_eq!(store.keys().revoke(tx.conn(), made.id, false).await.unwrap(), revoked);
    let missing = store.keys().revoke(tx.conn(), Uuid::now_v7(), false).await;
    assert_not_found(missing, "key");
    tx.commit().await.unwrap();
    assert_eq!(store.keys().list(None, 10).await.unwrap(), [revoked.key]);
}

/// A key creates another one while it is being revoked. That one is found or not created.
#[testing::test]
async fn revoking_key_revokes_concurrently_created_keys() {
    let (db, store) = fixture::database().await;
    let (maker, _) = store.commit(async |tx| store.keys().create(tx.conn(), &new()).await).await;
    let of_maker = NewKey { made_by: Some(maker.id), ..new() };

    let mut making = store.begin().await.unwrap();
    let (made, _) = store.keys().create(making.conn(), &of_maker).await.unwrap();
    let revoking = store.commit(async |tx| store.keys().revoke(tx.conn(), maker.id, true).await);
    let finishing = async {
        fixture::wait_for_a_lock(&db).await;
        making.commit().await.unwrap();
    };
    let (ended, ()) = tokio::join!(revoking, finishing);
    assert_eq!(ended.descendants.iter().map(|key| key.id).collect::<Vec<_>>(), [made.id]);
    assert_eq!(ended.working, 0);

    let mut tx = store.begin().await.unwrap();
    let refused = store.keys().create(tx.conn(), &of_maker).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
}

#[testing::test]
async fn invalid_key_error_names_what_is_allowed() {
    let (_db, store) = fixture::database().await;
    let default = store.collections().get("default").await.unwrap().id;
    let past = OffsetDateTime::now_utc() - Duration::SECOND;
    for (wrong, word) in [
        (NewKey { scopes: Vec::new(), ..new() }, "analyze, read"),
        (NewKey { name: String::new(), ..new() }, "1 to 200"),
        (NewKey { name: "two\nlines".into(), ..new() }, "1 to 200"),
        (NewKey { requests_per_minute: Some(0), ..new() }, "1 or more"),
        (NewKey { expires_at: Some(past), ..new() }, "in the past"),
        (NewKey { scopes: vec![Scope::System], collection_id: Some(default), ..new() }, "all collections"),
    ] {
        let mut tx = store.begin().await.unwrap();
        let refused = store.keys().create(tx.conn(), &wrong).await;
        let Err(StoreError::Invalid(sentence)) = refused else { panic!("{wrong:?}: {refused:?}") };
        assert!(sentence.contains(word), "{sentence}");
    }
    let mut tx = store.begin().await.unwrap();
    let nowhere = NewKey { collection_id: Some(Uuid::now_v7()), ..new() };
    assert_not_found(store.keys().create(tx.conn(), &nowhere).await, "collection");
}
