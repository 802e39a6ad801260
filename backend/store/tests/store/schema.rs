//! Tests migrations while other versions of the program use the database.
use sqlx::AssertSqlSafe;
use sqlx::migrate::Migrator;
use std::path::Path;
use std::time::Duration;
use store::db::schema::{OlderPrograms, STOPS_OLDER_PROGRAMS};
use store::{Store, StoreError};
use testing::TestDatabase;

/// The migrations of a version after this one: all current ones, and one that creates a table.
async fn next_version(first_line: &str) -> (Migrator, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let sql = format!("{first_line}\ncreate table of_the_next_version (id bigint);\n");
    std::fs::write(folder.path().join("9001_next.sql"), sql).unwrap();
    (Migrator::new(folder.path()).await.unwrap(), folder)
}

/// The newest migration of this version that stops older programs.
const STOPPING: i64 = 45;

async fn required(db: &TestDatabase) -> i64 {
    db.number("select version from required_schema").await
}

fn refused(error: &StoreError) {
    let text = error.to_string();
    let own = Store::schema_version().to_string();
    assert!(
        matches!(error, StoreError::Unsupported(_)) && text.contains("9001") && text.contains(&own),
        "{text}"
    );
}

#[testing::test]
async fn a_program_may_run_on_a_newer_schema_that_does_not_stop_it() {
    let db = TestDatabase::create().await;
    let (newer, _folder) = next_version("-- Adds a table.").await;
    let _running = db.store().migrate(OlderPrograms::Stop).await.unwrap();
    assert_eq!(
        db.store().migrate_to(&newer, OlderPrograms::Stop).await.unwrap().ran,
        1,
        "the older program need not end"
    );
    assert_eq!(db.store().migrate(OlderPrograms::Stop).await.unwrap().ran, 0, "the older program starts");
    assert!(db.store().check_schema().await.is_err(), "a backup needs the same version");
    assert_eq!(required(&db).await, STOPPING);
}

#[testing::test]
async fn a_migration_that_stops_older_programs_waits_until_they_have_ended() {
    let db = TestDatabase::create().await;
    let mut older = db.store().migrate(OlderPrograms::Stop).await.unwrap();
    // A job of a process that lost its connections.
    db.execute(
        "insert into jobs (id, kind, payload, state, created_at, scheduled_at, lease_until, fence,
                           attempt, priority, max_attempts, locked_by)
         values (gen_random_uuid(), 'page', '{}', 'running', now(), now(), now() + interval '1 hour',
                 1, 1, 0, 5, 'older')",
    )
    .await;
    let (newer, _folder) = next_version(STOPS_OLDER_PROGRAMS).await;
    let store = db.store();
    let upgrade = tokio::spawn(async move { store.migrate_to(&newer, OlderPrograms::Stop).await });
    // The older program is told before the migration runs.
    let told = tokio::time::timeout(Duration::from_secs(30), older.schema.superseded()).await.unwrap();
    refused(&told);
    refused(
        &db.store()
            .migrate(OlderPrograms::Stop)
            .await
            .err()
            .expect("it does not start again, and does not wait"),
    );
    assert_eq!(required(&db).await, 9001);
    let exists = "select count(*) from pg_class where relname = 'of_the_next_version'";
    assert_eq!(db.number(exists).await, 0, "the older program runs");
    drop(older);
    let kept = upgrade.await.unwrap().unwrap();
    assert_eq!(kept.ran, 1);
    assert_eq!(db.number(exists).await, 1);
    assert_eq!(db.number("select fence from jobs").await, 2, "the lost process cannot complete its job");
    refused(&db.store().migrate(OlderPrograms::Stop).await.err().unwrap());
}

#[testing::test]
async fn a_database_that_a_newer_version_made_is_not_used() {
    let db = TestDatabase::create().await;
    sqlx::raw_sql("drop schema public cascade; create schema public").execute(db.pool()).await.unwrap();
    let (newer, _folder) = next_version(STOPS_OLDER_PROGRAMS).await;
    assert!(db.store().migrate_to(&newer, OlderPrograms::Stop).await.unwrap().ran > 1);
    refused(&db.store().migrate(OlderPrograms::Stop).await.err().unwrap());
}

#[testing::test]
async fn an_upgrade_that_was_interrupted_before_its_migration_lets_the_older_program_start() {
    let db = TestDatabase::create().await;
    db.execute("update required_schema set version = 9001").await;
    assert_eq!(db.store().migrate(OlderPrograms::Stop).await.unwrap().ran, 0);
    assert_eq!(required(&db).await, STOPPING);
}

#[testing::test]
async fn a_migration_that_fails_leaves_the_older_version_usable() {
    let db = TestDatabase::create().await;
    let (newer, folder) = next_version(STOPS_OLDER_PROGRAMS).await;
    drop(newer);
    let sql = format!("{STOPS_OLDER_PROGRAMS}\nselect 1 / 0;\n");
    std::fs::write(folder.path().join("9001_next.sql"), sql).unwrap();
    let newer = Migrator::new(folder.path()).await.unwrap();
    assert!(matches!(
        db.store().migrate_to(&newer, OlderPrograms::Stop).await.err(),
        Some(StoreError::Migrate(_))
    ));
    assert_eq!(db.store().migrate(OlderPrograms::Stop).await.unwrap().ran, 0);
    assert_eq!(required(&db).await, STOPPING);
    // One that stops older programs is applied before the one that fails.
    std::fs::write(folder.path().join("9000_first.sql"), STOPS_OLDER_PROGRAMS).unwrap();
    let newer = Migrator::new(folder.path()).await.unwrap();
    assert!(matches!(
        db.store().migrate_to(&newer, OlderPrograms::Stop).await.err(),
        Some(StoreError::Migrate(_))
    ));
    assert_eq!(required(&db).await, 9000);
}

/// A backup or another long transaction has locked a table.
#[testing::test]
async fn a_migration_waits_for_a_table_without_blocking_others() {
    let db = TestDatabase::create().await;
    let reader = db.hold("lock table jobs in access share mode").await;
    let (newer, folder) = next_version("").await;
    drop(newer);
    std::fs::write(folder.path().join("9001_next.sql"), "alter table jobs add column more text;").unwrap();
    let newer = Migrator::new(folder.path()).await.unwrap();
    let store = db.store();
    let upgrade = tokio::spawn(async move { store.migrate_to(&newer, OlderPrograms::Stop).await });
    let waits = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                 where d.datname = current_database() and l.relation = 'jobs'::regclass and not l.granted";
    for waiting in [1, 0, 1] {
        while db.number(waits).await != waiting {
            tokio::task::yield_now().await;
        }
    }
    reader.commit().await.unwrap();
    let first = upgrade.await.unwrap().unwrap();
    assert_eq!(first.ran, 1);
    let newer = Migrator::new(folder.path()).await.unwrap();
    let second = db.store().migrate_to(&newer, OlderPrograms::Stop).await.unwrap();
    assert_eq!(second.ran, 0, "a second process of the new version starts while the first one runs");
}

#[testing::test]
async fn a_command_does_not_stop_older_programs() {
    let db = TestDatabase::create().await;
    let (newer, _folder) = next_version(STOPS_OLDER_PROGRAMS).await;
    let refused = db.store().migrate_to(&newer, OlderPrograms::Keep).await.err().unwrap().to_string();
    assert!(refused.contains("9001") && refused.contains("facecrawl migrate"), "{refused}");
    assert_eq!(required(&db).await, STOPPING);
}

#[testing::test]
async fn a_program_with_other_migrations_stops_no_other_program() {
    let db = TestDatabase::create().await;
    db.execute("update _sqlx_migrations set checksum = '' where version = 1").await;
    let (newer, _folder) = next_version(STOPS_OLDER_PROGRAMS).await;
    let refused = db.store().migrate_to(&newer, OlderPrograms::Stop).await.err();
    assert!(matches!(refused, Some(StoreError::Migrate(_))));
    assert_eq!(required(&db).await, STOPPING);
}

#[testing::test]
async fn the_fast_expression_finds_the_same_hosts_as_the_first_one() {
    let db = TestDatabase::create().await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
    let first = std::fs::read_to_string(folder.join("0042_face_filters.sql")).unwrap();
    let first = first.split(';').find(|statement| statement.contains("create function url_host(")).unwrap();
    let first = first.replace("create function url_host(", "create function first_url_host(");
    let store = db.store();
    sqlx::raw_sql(AssertSqlSafe(first)).execute(store.pool()).await.unwrap();
    let (host, long) = ("a".repeat(253), "b".repeat(254));
    let urls = [
        "http://a.test".to_owned(),
        "https://User:secret@Shop.Example.TEST.:8443/a?b#c".to_owned(),
        "http://[2001:DB8::1]:80/".to_owned(),
        "http://[:]/".to_owned(),
        format!("http://[{}]/", "1:".repeat(23)),
        format!("http://a.test/{}", "p".repeat(5_000)),
        format!("http://{host}/"),
        format!("http://{long}/"),
        format!("http://user:{long}@{host}:80"),
        format!("http://user:pw@{long}/"),
        "http:///path".to_owned(),
        "http://a b/".to_owned(),
        "ftp://a.test/".to_owned(),
        "file:///home/a.jpg".to_owned(),
        String::new(),
    ];
    let count = async |what: &str| -> i64 {
        let sql = format!("select count({what}) from unnest($1::text[]) as url");
        sqlx::query_scalar(AssertSqlSafe(sql)).bind(urls.as_slice()).fetch_one(store.pool()).await.unwrap()
    };
    assert_eq!(count("nullif(url_host(url) is distinct from first_url_host(url), false)").await, 0);
    assert_eq!(count("url_host(url)").await, 8);
}
