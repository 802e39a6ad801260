//! Tests migrations while other versions of the program use the database.
use sqlx::migrate::Migrator;
use std::path::Path;
use std::time::Duration;
use store::schema::STOPS_OLDER_PROGRAMS;
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

#[tokio::test]
async fn a_program_may_run_on_a_newer_schema_that_does_not_stop_it() {
    let db = TestDatabase::create().await;
    let (newer, _folder) = next_version("-- Adds a table.").await;
    assert_eq!(db.store().migrate_to(&newer).await.unwrap(), 1);
    assert_eq!(db.store().migrate().await.unwrap(), 0, "the older program starts");
    assert!(db.store().check_schema().await.is_err(), "a backup needs the same version");
    assert_eq!(required(&db).await, 0);
}

#[tokio::test]
async fn a_migration_that_stops_older_programs_waits_for_their_jobs() {
    let db = TestDatabase::create().await;
    db.execute(
        "insert into jobs (id, kind, payload, state, created_at, scheduled_at, lease_until, fence, attempt, priority,
                           max_attempts, locked_by)
         values (gen_random_uuid(), 'page', '{}', 'running', now(), now(), now() + interval '1 hour', 1, 1, 0, 5, 'older')",
    )
    .await;
    let (newer, _folder) = next_version(STOPS_OLDER_PROGRAMS).await;
    let store = db.store();
    let upgrade = tokio::spawn(async move { store.migrate_to(&newer).await });
    // The older program is told before the migration runs.
    let told = tokio::time::timeout(Duration::from_secs(30), db.store().superseded()).await.unwrap();
    refused(&told);
    assert_eq!(required(&db).await, 9001);
    let exists = "select count(*) from pg_class where relname = 'of_the_next_version'";
    assert_eq!(db.number(exists).await, 0, "a job of the older program runs");
    db.execute("delete from jobs").await;
    assert_eq!(upgrade.await.unwrap().unwrap(), 1);
    assert_eq!(db.number(exists).await, 1);
    refused(&db.store().migrate().await.unwrap_err());
}

#[tokio::test]
async fn an_upgrade_that_was_interrupted_before_its_migration_lets_the_older_program_start() {
    let db = TestDatabase::create().await;
    db.execute("update required_schema set version = 9001").await;
    assert_eq!(db.store().migrate().await.unwrap(), 0);
    assert_eq!(required(&db).await, 0);
}
