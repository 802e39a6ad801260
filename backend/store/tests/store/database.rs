//! Tests connections, migrations while other versions of the program use the database, and retries
//! after transient errors.
use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, PgPool};
use std::cell::Cell;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use store::db::schema::{OlderProgramPolicy, STOPS_OLDER_PROGRAMS};
use store::db::transient::{Cause, Transient};
use store::{Config, Store, StoreError, retried};
use testing::TestDatabase;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Barrier;

#[testing::test]
async fn connects_to_database_with_current_schema() {
    let db = TestDatabase::create().await;
    let store = Store::connect(&Config { url: db.url(), ..Config::default() }).await.unwrap();
    store.ping().await.unwrap();
    assert_eq!(store.schema().migrate(OlderProgramPolicy::Stop).await.unwrap().migration_count, 0);
    let (timeout, name): (String, String) =
        sqlx::query_as("select current_setting('statement_timeout'), current_setting('application_name')")
            .fetch_one(store.pool())
            .await
            .unwrap();
    assert_eq!((timeout.as_str(), name.as_str()), ("30s", "facecrawl"));
}

#[testing::test]
async fn concurrent_stores_migrate_fresh_database_once() {
    let db = TestDatabase::create().await;
    sqlx::raw_sql("drop schema public cascade; create schema public").execute(db.pool()).await.unwrap();
    let stores: Vec<Store> = (0..4).map(|_| db.store()).collect();
    let migrated = futures::future::try_join_all(
        stores.iter().map(|store| store.schema().migrate(OlderProgramPolicy::Stop)),
    )
    .await
    .unwrap();
    let ran: Vec<usize> = migrated.iter().map(|migrated| migrated.migration_count).collect();
    let total: usize = ran.iter().sum();
    assert!(total > 0);
    assert_eq!(ran.iter().filter(|n| **n > 0).count(), 1, "{ran:?}");
    let applied: i64 =
        sqlx::query_scalar("select count(*) from _sqlx_migrations").fetch_one(db.pool()).await.unwrap();
    assert_eq!(applied as usize, total);
}

#[testing::test]
async fn invalid_url_and_missing_database_return_different_errors() {
    let wrong = Store::connect(&Config { url: "mysql:/nonsense".into(), ..Config::default() }).await;
    assert!(matches!(wrong, Err(StoreError::Invalid(_))));
    let db = TestDatabase::create().await;
    let mut url = url::Url::parse(&db.url()).unwrap();
    url.set_path("no_such_database");
    let missing = Store::connect(&Config { url: url.to_string(), ..Config::default() }).await;
    assert!(matches!(missing, Err(StoreError::Database(_))));
}

#[test]
fn schema_fingerprint_is_stable_short_hex() {
    let fingerprint = store::db::schema::fingerprint();
    assert_eq!(fingerprint, store::db::schema::fingerprint());
    assert_eq!(fingerprint.len(), 12);
    assert!(fingerprint.chars().all(|c| c.is_ascii_hexdigit()));
}

/// After a failover, the address may lead to a server that accepts no changes until it is promoted.
#[testing::test]
async fn waits_for_writable_server_and_replaces_connections() {
    let db = TestDatabase::create().await;
    let name: String = sqlx::query_scalar("select current_database()").fetch_one(db.pool()).await.unwrap();
    let set_read_only = async |to: &str| {
        let sql = format!(
            "begin read write; alter database {name} set default_transaction_read_only = {to}; commit"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(db.pool()).await.unwrap();
    };
    let config = Config { url: db.url(), max_connections: 1, ..Config::default() };
    let store = Store::connect(&config).await.unwrap();
    set_read_only("on").await;
    sqlx::query(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'facecrawl'
         and datname = current_database()",
    )
    .execute(db.pool())
    .await
    .unwrap();
    let query = "select count(*) from pg_stat_activity where application_name = 'facecrawl'
                 and datname = current_database() and query like '%transaction_read_only%'";
    let writer = store.clone();
    let update_task = tokio::spawn(async move {
        store::retried("test", || async {
            Ok::<_, StoreError>(
                sqlx::query("update required_schema set version = 0").execute(writer.pool()).await?,
            )
        })
        .await
    });
    while db.number(query).await == 0 && !update_task.is_finished() {
        tokio::task::yield_now().await;
    }
    set_read_only("off").await;
    update_task.await.unwrap().expect("the pool connects again until the server accepts changes");
    store.pool().close().await;

    set_read_only("on").await;
    let connect_task = tokio::spawn(async move { Store::connect(&config).await });
    while db.number(query).await == 0 && !connect_task.is_finished() {
        tokio::task::yield_now().await;
    }
    set_read_only("off").await;
    connect_task.await.unwrap().unwrap().ping().await.unwrap();
}

/// Returns the migrations of a next version: all current ones, and one that creates a table.
async fn migrations_of_next_version(first_line: &str) -> (Migrator, tempfile::TempDir) {
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
const STOPPING_MIGRATION: i64 = 50;

async fn required_version(db: &TestDatabase) -> i64 {
    db.number("select version from required_schema").await
}

fn assert_refused(error: &StoreError) {
    let text = error.to_string();
    let current = store::db::schema::version().to_string();
    assert!(
        matches!(error, StoreError::Unsupported(_)) && text.contains("9001") && text.contains(&current),
        "{text}"
    );
}

#[testing::test]
async fn older_program_runs_on_compatible_newer_schema() {
    let db = TestDatabase::create().await;
    let (newer, _folder) = migrations_of_next_version("-- Adds a table.").await;
    let _running = db.store().schema().migrate(OlderProgramPolicy::Stop).await.unwrap();
    assert_eq!(
        db.store().schema().migrate_to(&newer, OlderProgramPolicy::Stop).await.unwrap().migration_count,
        1,
        "the older program does not have to end"
    );
    assert_eq!(
        db.store().schema().migrate(OlderProgramPolicy::Stop).await.unwrap().migration_count,
        0,
        "the older program starts"
    );
    assert!(db.store().schema().check().await.is_err(), "a backup needs the same version");
    assert_eq!(required_version(&db).await, STOPPING_MIGRATION);
}

#[testing::test]
async fn stopping_migration_waits_for_older_programs() {
    let db = TestDatabase::create().await;
    let mut older = db.store().schema().migrate(OlderProgramPolicy::Stop).await.unwrap();
    // A job of a process that lost its connections.
    db.execute(
        "insert into jobs (id, kind, payload, state, created_at, scheduled_at, lease_until, fence,
                           attempt, priority, max_attempts, locked_by)
         values (gen_random_uuid(), 'page', '{}', 'running', now(), now(), now() + interval '1 hour',
                 1, 1, 0, 5, 'older')",
    )
    .await;
    let (newer, _folder) = migrations_of_next_version(STOPS_OLDER_PROGRAMS).await;
    let store = db.store();
    let upgrade =
        tokio::spawn(async move { store.schema().migrate_to(&newer, OlderProgramPolicy::Stop).await });
    // The older program gets the error before the migration runs.
    let error = tokio::time::timeout(testing::MAX_WAIT, older.schema.wait_until_superseded()).await.unwrap();
    assert_refused(&error);
    assert_refused(
        &db.store()
            .schema()
            .migrate(OlderProgramPolicy::Stop)
            .await
            .err()
            .expect("it does not start again, and does not wait"),
    );
    assert_eq!(required_version(&db).await, 9001);
    let exists = "select count(*) from pg_class where relname = 'of_the_next_version'";
    assert_eq!(db.number(exists).await, 0, "the migration waits for the older program");
    drop(older);
    let migrated = upgrade.await.unwrap().unwrap();
    assert_eq!(migrated.migration_count, 1);
    assert_eq!(db.number(exists).await, 1);
    assert_eq!(db.number("select fence from jobs").await, 2, "the lost process cannot complete its job");
    assert_refused(&db.store().schema().migrate(OlderProgramPolicy::Stop).await.err().unwrap());
}

#[testing::test]
async fn older_program_rejects_database_of_newer_version() {
    let db = TestDatabase::create().await;
    sqlx::raw_sql("drop schema public cascade; create schema public").execute(db.pool()).await.unwrap();
    let (newer, _folder) = migrations_of_next_version(STOPS_OLDER_PROGRAMS).await;
    assert!(
        db.store().schema().migrate_to(&newer, OlderProgramPolicy::Stop).await.unwrap().migration_count > 1
    );
    assert_refused(&db.store().schema().migrate(OlderProgramPolicy::Stop).await.err().unwrap());
}

#[testing::test]
async fn older_program_starts_after_interrupted_upgrade() {
    let db = TestDatabase::create().await;
    db.execute("update required_schema set version = 9001").await;
    assert_eq!(db.store().schema().migrate(OlderProgramPolicy::Stop).await.unwrap().migration_count, 0);
    assert_eq!(required_version(&db).await, STOPPING_MIGRATION);
}

#[testing::test]
async fn failed_migration_leaves_older_version_usable() {
    let db = TestDatabase::create().await;
    let (newer, folder) = migrations_of_next_version(STOPS_OLDER_PROGRAMS).await;
    drop(newer);
    let sql = format!("{STOPS_OLDER_PROGRAMS}\nselect 1 / 0;\n");
    std::fs::write(folder.path().join("9001_next.sql"), sql).unwrap();
    let newer = Migrator::new(folder.path()).await.unwrap();
    assert!(matches!(
        db.store().schema().migrate_to(&newer, OlderProgramPolicy::Stop).await.err(),
        Some(StoreError::Migrate(_))
    ));
    assert_eq!(db.store().schema().migrate(OlderProgramPolicy::Stop).await.unwrap().migration_count, 0);
    assert_eq!(required_version(&db).await, STOPPING_MIGRATION);
    // A migration that stops older programs is applied before the one that fails.
    std::fs::write(folder.path().join("9000_first.sql"), STOPS_OLDER_PROGRAMS).unwrap();
    let newer = Migrator::new(folder.path()).await.unwrap();
    assert!(matches!(
        db.store().schema().migrate_to(&newer, OlderProgramPolicy::Stop).await.err(),
        Some(StoreError::Migrate(_))
    ));
    assert_eq!(required_version(&db).await, 9000);
}

/// A backup or another long transaction has locked a table.
#[testing::test]
async fn migration_waits_for_table_without_blocking_others() {
    let db = TestDatabase::create().await;
    let reader = db.execute_in_open_transaction("lock table jobs in access share mode").await;
    let (newer, folder) = migrations_of_next_version("").await;
    drop(newer);
    std::fs::write(folder.path().join("9001_next.sql"), "alter table jobs add column more text;").unwrap();
    let newer = Migrator::new(folder.path()).await.unwrap();
    let store = db.store();
    let upgrade =
        tokio::spawn(async move { store.schema().migrate_to(&newer, OlderProgramPolicy::Stop).await });
    let query = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                 where d.datname = current_database() and l.relation = 'jobs'::regclass and not l.granted";
    for expected in [1, 0, 1] {
        while db.number(query).await != expected {
            tokio::task::yield_now().await;
        }
    }
    reader.commit().await.unwrap();
    let first = upgrade.await.unwrap().unwrap();
    assert_eq!(first.migration_count, 1);
    let newer = Migrator::new(folder.path()).await.unwrap();
    let second = db.store().schema().migrate_to(&newer, OlderProgramPolicy::Stop).await.unwrap();
    assert_eq!(
        second.migration_count, 0,
        "a second process of the new version starts while the first one runs"
    );
}

#[testing::test]
async fn command_does_not_stop_older_programs() {
    let db = TestDatabase::create().await;
    let (newer, _folder) = migrations_of_next_version(STOPS_OLDER_PROGRAMS).await;
    let error = db
        .store()
        .schema()
        .migrate_to(&newer, OlderProgramPolicy::FailMigration)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("9001") && error.contains("facecrawl migrate"), "{error}");
    assert_eq!(required_version(&db).await, STOPPING_MIGRATION);
}

#[testing::test]
async fn program_with_different_migrations_stops_no_other_program() {
    let db = TestDatabase::create().await;
    db.execute("update _sqlx_migrations set checksum = '' where version = 1").await;
    let (newer, _folder) = migrations_of_next_version(STOPS_OLDER_PROGRAMS).await;
    let error = db.store().schema().migrate_to(&newer, OlderProgramPolicy::Stop).await.err();
    assert!(matches!(error, Some(StoreError::Migrate(_))));
    assert_eq!(required_version(&db).await, STOPPING_MIGRATION);
}

#[testing::test]
async fn fast_url_host_matches_original_function() {
    let db = TestDatabase::create().await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
    let original = std::fs::read_to_string(folder.join("0042_face_filters.sql")).unwrap();
    let original =
        original.split(';').find(|statement| statement.contains("create function url_host(")).unwrap();
    let original = original.replace("create function url_host(", "create function first_url_host(");
    let store = db.store();
    sqlx::raw_sql(AssertSqlSafe(original)).execute(store.pool()).await.unwrap();
    let (host, long_host) = ("a".repeat(253), "b".repeat(254));
    let urls = [
        "http://a.test".to_owned(),
        "https://User:secret@Shop.Example.TEST.:8443/a?b#c".to_owned(),
        "http://[2001:DB8::1]:80/".to_owned(),
        "http://[:]/".to_owned(),
        format!("http://[{}]/", "1:".repeat(23)),
        format!("http://a.test/{}", "p".repeat(5_000)),
        format!("http://{host}/"),
        format!("http://{long_host}/"),
        format!("http://user:{long_host}@{host}:80"),
        format!("http://user:pw@{long_host}/"),
        "http:///path".to_owned(),
        "http://a b/".to_owned(),
        "ftp://a.test/".to_owned(),
        "file:///home/a.jpg".to_owned(),
        String::new(),
    ];
    let count = async |expression: &str| -> i64 {
        let sql = format!("select count({expression}) from unnest($1::text[]) as url");
        sqlx::query_scalar(AssertSqlSafe(sql)).bind(urls.as_slice()).fetch_one(store.pool()).await.unwrap()
    };
    assert_eq!(count("nullif(url_host(url) is distinct from first_url_host(url), false)").await, 0);
    assert_eq!(count("url_host(url)").await, 8);
}

/// Returns an error with this code, as the server sends it.
async fn raise_error(pool: &PgPool, code: &str) -> StoreError {
    let raise = format!("do $$ begin raise exception 'raised by a test' using errcode = '{code}'; end $$");
    sqlx::raw_sql(AssertSqlSafe(raise)).execute(pool).await.unwrap_err().into()
}

#[testing::test]
async fn classifies_transient_database_errors() {
    let db = TestDatabase::create().await;
    for (code, cause) in [
        ("40001", Some(Cause::Conflict)),
        ("40P01", Some(Cause::Conflict)),
        ("53300", Some(Cause::Capacity)),
        ("57P01", Some(Cause::Connection)),
        ("57P03", Some(Cause::Connection)),
        ("08006", Some(Cause::Connection)),
        ("25P03", Some(Cause::Connection)),
        ("57014", None), // statement timeout: a retry would take as long
        ("23505", None),
        ("53100", None), // disk full
    ] {
        assert_eq!(raise_error(db.pool(), code).await.cause(), cause, "{code}");
    }
    assert_eq!(StoreError::Database(sqlx::Error::PoolTimedOut).cause(), Some(Cause::Capacity));
    assert_eq!(StoreError::Database(sqlx::Error::RowNotFound).cause(), None);
    assert_eq!(StoreError::Conflict("taken".into()).cause(), None);
}

#[testing::test]
async fn retries_lost_connection_but_not_query_error() {
    let db = TestDatabase::create().await;
    let attempts = Cell::new(0);
    let result: Result<i32, StoreError> = retried("test", || async {
        attempts.set(attempts.get() + 1);
        if attempts.get() < 3 {
            sqlx::query("select pg_terminate_backend(pg_backend_pid())").execute(db.pool()).await?;
        }
        Ok(sqlx::query_scalar("select 42").fetch_one(db.pool()).await?)
    })
    .await;
    assert_eq!((result.unwrap(), attempts.get()), (42, 3));

    attempts.set(0);
    let failure: Result<(), StoreError> = retried("test", || async {
        attempts.set(attempts.get() + 1);
        sqlx::query("select 1 / 0").execute(db.pool()).await?;
        Ok(())
    })
    .await;
    assert!(failure.is_err());
    assert_eq!(attempts.get(), 1);
}

#[testing::test]
async fn nested_retry_repeats_only_outer_call() {
    let db = TestDatabase::create().await;
    let (outer, inner) = (Cell::new(0), Cell::new(0));
    let result: Result<(), StoreError> = retried("outer", || async {
        outer.set(outer.get() + 1);
        retried("inner", || async {
            inner.set(inner.get() + 1);
            Err(raise_error(db.pool(), if inner.get() < 3 { "40001" } else { "23505" }).await)
        })
        .await
    })
    .await;
    assert!(result.is_err());
    assert_eq!((outer.get(), inner.get()), (3, 3));
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlock_victim_repeats_whole_transaction() {
    let db = TestDatabase::create().await;
    db.execute("create table counters (id int primary key, n int not null)").await;
    db.execute("insert into counters values (1, 0), (2, 0)").await;
    // At the first attempt, each writer locks one row before it requests the other's row.
    let barrier = Arc::new(Barrier::new(2));
    let writer = |first: i32, second: i32| {
        let (store, barrier) = (db.store(), Arc::clone(&barrier));
        async move {
            let attempts = Cell::new(0);
            retried("test", || async {
                attempts.set(attempts.get() + 1);
                let mut tx = store.begin().await?;
                let add = "update counters set n = n + 1 where id = $1";
                sqlx::query(add).bind(first).execute(tx.conn()).await?;
                if attempts.get() == 1 {
                    barrier.wait().await;
                }
                sqlx::query(add).bind(second).execute(tx.conn()).await?;
                tx.commit().await
            })
            .await
            .unwrap();
            attempts.get()
        }
    };
    let (first_attempts, second_attempts) = tokio::join!(writer(1, 2), writer(2, 1));
    // The victim can be so fast that its second attempt leads to another deadlock.
    assert!(first_attempts + second_attempts >= 3, "one of them was the deadlock victim");
    let counted: Vec<i32> = sqlx::query_scalar("select n from counters").fetch_all(db.pool()).await.unwrap();
    assert_eq!(counted, [2, 2]);
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to the test server, on its port or, for a private server, on its socket.
async fn connect(server: &PgConnectOptions) -> Box<dyn Stream> {
    match server.get_socket() {
        Some(folder) => {
            let socket = folder.join(format!(".s.PGSQL.{}", server.get_port()));
            Box::new(UnixStream::connect(socket).await.unwrap())
        }
        None => Box::new(TcpStream::connect((server.get_host(), server.get_port())).await.unwrap()),
    }
}

/// Forwards bytes between a client and the server, and closes the client's connection when the
/// server has responded to a `COMMIT`.
async fn close_after_commit(listener: TcpListener, server: PgConnectOptions) {
    let (mut client, _) = listener.accept().await.unwrap();
    let mut server = connect(&server).await;
    let (mut request_buffer, mut response_buffer) = ([0; 16_384], [0; 16_384]);
    loop {
        tokio::select! {
            read = client.read(&mut request_buffer) => {
                let request = &request_buffer[..read.unwrap()];
                server.write_all(request).await.unwrap();
                if request.windows(6).any(|word| word == b"COMMIT") {
                    assert!(server.read(&mut response_buffer).await.unwrap() > 0, "the server confirmed the commit");
                    return;
                }
            }
            read = server.read(&mut response_buffer) => client.write_all(&response_buffer[..read.unwrap()]).await.unwrap(),
        }
    }
}

#[testing::test]
async fn commit_without_response_is_not_repeated() {
    let db = TestDatabase::create().await;
    db.execute("create table results (n int)").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = PgConnectOptions::from_str(&db.url()).unwrap();
    let mut url = url::Url::parse(&db.url()).unwrap();
    // The socket in the query, if any, must not be used.
    url.set_query(None);
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
    let relay = tokio::spawn(close_after_commit(listener, server));
    let store = Store::from_pool(sqlx::PgPool::connect_lazy(url.as_str()).unwrap());

    let attempts = Cell::new(0);
    let result: Result<(), StoreError> = retried("test", || async {
        attempts.set(attempts.get() + 1);
        let mut tx = store.begin().await?;
        sqlx::query("insert into results values (1)").execute(tx.conn()).await?;
        tx.commit().await
    })
    .await;
    assert!(matches!(result, Err(StoreError::CommitUnknown(_))), "{result:?}");
    relay.await.unwrap();
    assert_eq!(attempts.get(), 1);
    let rows: i64 = sqlx::query_scalar("select count(*) from results").fetch_one(db.pool()).await.unwrap();
    assert_eq!(rows, 1, "the commit succeeded");
}
