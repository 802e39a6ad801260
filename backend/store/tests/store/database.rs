//! Tests connecting and migrating.

use store::db::schema::OlderPrograms;
use store::{Config, Store, StoreError};
use testing::TestDatabase;

#[testing::test]
async fn connects_pings_and_finds_the_schema_up_to_date() {
    let db = TestDatabase::create().await;
    let store = Store::connect(&Config { url: db.url(), ..Config::default() }).await.unwrap();
    store.ping().await.unwrap();
    assert_eq!(store.migrate(OlderPrograms::Stop).await.unwrap().ran, 0);
    let (timeout, name): (String, String) =
        sqlx::query_as("select current_setting('statement_timeout'), current_setting('application_name')")
            .fetch_one(store.pool())
            .await
            .unwrap();
    assert_eq!((timeout.as_str(), name.as_str()), ("30s", "facecrawl"));
}

#[testing::test]
async fn a_fresh_database_is_migrated_once_by_whoever_comes_first() {
    let db = TestDatabase::create().await;
    sqlx::raw_sql("drop schema public cascade; create schema public").execute(db.pool()).await.unwrap();
    let stores: Vec<Store> = (0..4).map(|_| db.store()).collect();
    let migrated =
        futures::future::try_join_all(stores.iter().map(|store| store.migrate(OlderPrograms::Stop)))
            .await
            .unwrap();
    let ran: Vec<usize> = migrated.iter().map(|migrated| migrated.ran).collect();
    let total: usize = ran.iter().sum();
    assert!(total > 0);
    assert_eq!(ran.iter().filter(|n| **n > 0).count(), 1, "{ran:?}");
    let applied: i64 =
        sqlx::query_scalar("select count(*) from _sqlx_migrations").fetch_one(db.pool()).await.unwrap();
    assert_eq!(applied as usize, total);
}

#[testing::test]
async fn a_url_that_is_none_and_a_database_that_is_not_there_are_told_apart() {
    let wrong = Store::connect(&Config { url: "mysql:/nonsense".into(), ..Config::default() }).await;
    assert!(matches!(wrong, Err(StoreError::Invalid(_))));
    let db = TestDatabase::create().await;
    let mut url = url::Url::parse(&db.url()).unwrap();
    url.set_path("no_such_database");
    let missing = Store::connect(&Config { url: url.to_string(), ..Config::default() }).await;
    assert!(matches!(missing, Err(StoreError::Database(_))));
}

#[test]
fn the_fingerprint_is_short_hex_and_stable() {
    let fingerprint = Store::schema_fingerprint();
    assert_eq!(fingerprint, Store::schema_fingerprint());
    assert_eq!(fingerprint.len(), 12);
    assert!(fingerprint.chars().all(|c| c.is_ascii_hexdigit()));
}

/// After a failover, the address may lead to a server that accepts no changes until it is promoted.
#[testing::test]
async fn a_server_that_accepts_no_changes_is_waited_for_and_its_connections_are_replaced() {
    let db = TestDatabase::create().await;
    let name: String = sqlx::query_scalar("select current_database()").fetch_one(db.pool()).await.unwrap();
    let set = async |to: &str| {
        let sql = format!(
            "begin read write; alter database {name} set default_transaction_read_only = {to}; commit"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(db.pool()).await.unwrap();
    };
    let config = Config { url: db.url(), max_connections: 1, ..Config::default() };
    let store = Store::connect(&config).await.unwrap();
    set("on").await;
    sqlx::query(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'facecrawl'
         and datname = current_database()",
    )
    .execute(db.pool())
    .await
    .unwrap();
    let asked = "select count(*) from pg_stat_activity where application_name = 'facecrawl'
                 and datname = current_database() and query like '%transaction_read_only%'";
    let writer = store.clone();
    let written = tokio::spawn(async move {
        store::retried("test", || async {
            Ok::<_, StoreError>(
                sqlx::query("update required_schema set version = 0").execute(writer.pool()).await?,
            )
        })
        .await
    });
    while db.number(asked).await == 0 && !written.is_finished() {
        tokio::task::yield_now().await;
    }
    set("off").await;
    written.await.unwrap().expect("the pool connects again until the server accepts changes");
    store.pool().close().await;

    set("on").await;
    let second = tokio::spawn(async move { Store::connect(&config).await });
    while db.number(asked).await == 0 && !second.is_finished() {
        tokio::task::yield_now().await;
    }
    set("off").await;
    second.await.unwrap().unwrap().ping().await.unwrap();
}
