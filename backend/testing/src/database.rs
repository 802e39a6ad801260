//! Creates a database per test, cloned from a migrated template and dropped together with the
//! returned value. Starts the Postgres server of the test process, and stops processes at a
//! database statement that the test selects.
use embedded_postgres::{Cluster, Config};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use store::db::schema::OlderProgramPolicy;
use uuid::Uuid;

/// A test's own migrated database. Dropping the value closes all connections and drops the
/// database.
pub struct TestDatabase {
    name: String,
    server: PgConnectOptions,
    pool: PgPool,
}

/// Advisory lock that lets one test process at a time create the template on a server.
const TEMPLATE_LOCK: i64 = 0x0066_6163_6563;

impl TestDatabase {
    /// Creates a database with the current schema.
    pub async fn create() -> Self {
        let server = server();
        let template = ensure_template(&server).await;
        Self::from_template(server, &template).await
    }

    pub async fn empty() -> Self {
        Self::from_template(server(), "template0").await
    }

    async fn from_template(server: PgConnectOptions, template: &str) -> Self {
        let name = format!("test_{}", Uuid::now_v7().simple());
        let mut admin = PgConnection::connect_with(&server).await.expect("the test server responds");
        execute(&mut admin, format!("create database {name} template {template}")).await;
        let pool = connect(&server, &name).await;
        Self { name, server, pool }
    }

    /// Replaces the pool, so that its connections use the current settings of the database.
    pub(crate) async fn reconnect(mut self) -> Self {
        self.pool.close().await;
        self.pool = connect(&self.server, &self.name).await;
        self
    }

    /// Opens a new connection outside the pool.
    async fn connection(&self) -> PgConnection {
        let options = self.server.clone().database(&self.name);
        PgConnection::connect_with(&options).await.expect("the database responds")
    }

    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    pub fn store(&self) -> store::Store {
        store::Store::from_pool(self.pool.clone())
    }

    /// Runs one statement. Tests use it to change the data of a running service directly.
    pub async fn execute(&self, statement: &'static str) {
        sqlx::query(statement).execute(&self.pool).await.expect("the statement runs");
    }

    /// Runs one statement in a transaction that remains open. Its locks are held until the
    /// transaction is committed or dropped.
    pub async fn execute_in_open_transaction(
        &self,
        statement: &'static str,
    ) -> sqlx::Transaction<'static, sqlx::Postgres> {
        let mut transaction = self.pool.begin().await.expect("a transaction begins");
        sqlx::query(statement).execute(&mut *transaction).await.expect("the statement runs");
        transaction
    }

    pub async fn number(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&self.pool).await.expect("the query returns a bigint")
    }

    /// Locks the table `faces`. Every statement on it waits until the lock is released or dropped.
    pub async fn lock_faces(&self) -> TableLock {
        self.lock("begin; lock table faces in access exclusive mode").await
    }

    /// Works like [`Self::lock_faces`] for the table `videos`.
    pub async fn lock_videos(&self) -> TableLock {
        self.lock("begin; lock table videos in access exclusive mode").await
    }

    /// Works like [`Self::lock_faces`] for the table `subjects`.
    pub async fn lock_subjects(&self) -> TableLock {
        self.lock("begin; lock table subjects in access exclusive mode").await
    }

    /// Works like [`Self::lock_faces`] for the table `subject_faces`.
    pub async fn lock_assignments(&self) -> TableLock {
        self.lock("begin; lock table subject_faces in access exclusive mode").await
    }

    async fn lock(&self, statements: &'static str) -> TableLock {
        let mut connection = self.connection().await;
        sqlx::raw_sql(statements).execute(&mut connection).await.expect("the table can be locked");
        TableLock { connection }
    }

    /// Returns the row count and bytes per row of every table with at least 100 rows, and of its
    /// indexes, after a vacuum.
    pub async fn sizes(&self) -> serde_json::Value {
        sqlx::raw_sql("vacuum analyze").execute(&self.pool).await.expect("the database can be vacuumed");
        sqlx::query_scalar(SIZES).fetch_one(&self.pool).await.expect("the catalogue can be read")
    }

    /// Returns the URL of the database, for other processes.
    pub fn url(&self) -> String {
        let mut url = url::Url::parse(url()).expect("checked in server()");
        url.set_path(&self.name);
        url.to_string()
    }
}

async fn connect(server: &PgConnectOptions, name: &str) -> PgPool {
    PgPoolOptions::new()
        .max_connections(12)
        .connect_with(server.clone().database(name))
        .await
        .expect("the database responds")
}

/// A lock on a table, held by a separate connection.
pub struct TableLock {
    connection: PgConnection,
}

impl TableLock {
    /// Returns the number of statements of the database that wait for a lock.
    pub async fn count_waiting(&mut self) -> i64 {
        let query = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                       where not l.granted and d.datname = current_database()";
        sqlx::query_scalar(query).fetch_one(&mut self.connection).await.expect("the locks can be counted")
    }

    pub async fn release(self) {
        self.connection.close().await.expect("the connection ends");
    }
}

/// Table sizes include TOAST. The row counts are the estimates of `analyze`.
const SIZES: &str = "
select coalesce(jsonb_object_agg(relname, jsonb_build_object(
    'rows', reltuples::bigint, 'bytes_per_row', round((pg_table_size(oid) / reltuples)::numeric, 1),
    'index_bytes_per_row', (
        select jsonb_object_agg(i.indexrelid::regclass, round((pg_relation_size(i.indexrelid) / t.reltuples)::numeric, 1))
        from pg_index i where i.indrelid = t.oid),
    'all_bytes_per_row', round((pg_total_relation_size(oid) / reltuples)::numeric, 1))), '{}')
from pg_class t where relkind = 'r' and relnamespace = 'public'::regnamespace and reltuples >= 100";

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (name, server) = (self.name.clone(), self.server.clone());
        // Uses a separate thread and runtime, because the runtime of the test may be shutting down.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut admin = PgConnection::connect_with(&server).await?;
                sqlx::query(AssertSqlSafe(format!("drop database if exists {name} with (force)")))
                    .execute(&mut admin)
                    .await?;
                anyhow::Ok(())
            })
        });
        if let Ok(Err(error)) = dropped.join() {
            eprintln!("could not drop {}: {error}", self.name);
        }
    }
}

fn server() -> PgConnectOptions {
    PgConnectOptions::from_str(url()).expect("TEST_DATABASE_URL is a postgres:// URL")
}

/// Creates and migrates a template, once per schema. Its name contains the migrations' checksums,
/// so an edited migration leads to a new template.
async fn ensure_template(server: &PgConnectOptions) -> String {
    let name = format!("template_{}", store::db::schema::fingerprint());
    let mut admin = PgConnection::connect_with(server).await.expect("the test server responds");
    execute(&mut admin, format!("select pg_advisory_lock({TEMPLATE_LOCK})")).await;
    let exists: bool =
        sqlx::query_scalar("select exists(select 1 from pg_database where datname = $1 and datistemplate)")
            .bind(&name)
            .fetch_one(&mut admin)
            .await
            .expect("the catalogue can be read");
    if !exists {
        execute(&mut admin, format!("drop database if exists {name} with (force)")).await;
        execute(&mut admin, format!("create database {name}")).await;
        let pool = connect(server, &name).await;
        let migration =
            store::Store::from_pool(pool.clone()).schema().migrate(OlderProgramPolicy::Stop).await;
        // A template must have no connection.
        migration.expect("the migrations run").schema.release().await.expect("the connection closes");
        pool.close().await;
        execute(&mut admin, format!("alter database {name} is_template true")).await;
    }
    execute(&mut admin, format!("select pg_advisory_unlock({TEMPLATE_LOCK})")).await;
    name
}

/// Stops the server `$0` and deletes its folder `$1` when standard input ends, that is, when the
/// test process has exited. The number of attempts is limited, because some containers keep ended
/// processes in the process table.
const STOP_SCRIPT: &str = r#"cat; kill -INT "$0"
for attempt in $(seq 100); do kill -0 "$0" 2>/dev/null || break; sleep 0.1; done
rm -rf "$1""#;

/// Returns the URL of the server: `TEST_DATABASE_URL` if it is set, and otherwise that of a private
/// server, which all tests of the process share. It starts when it is first needed and ends with
/// the process. It does not sync to disk. Panics if the server does not start.
pub fn url() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| std::env::var("TEST_DATABASE_URL").unwrap_or_else(|_| start_private_server()))
}

fn start_private_server() -> String {
    let (ready, url) = channel();
    // The thread outlives every test. It reads the log of the server.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be created").block_on(run(ready));
    });
    url.recv().expect("Postgres starts")
}

async fn run(ready: Sender<String>) {
    let folder = data_parent().join(format!("facecrawl-tests-{}", std::process::id()));
    let cluster = Cluster::start(&Config::for_tests(programs(), folder.join("data")))
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let server = cluster.pid().expect("the server runs");
    start_watcher(server, &folder);
    ready.send(cluster.url("postgres")).expect("a test waits for the server");
    std::future::pending::<()>().await;
}

/// Returns the folder for the data. Each test creates and drops a database, which is faster in
/// memory. The build folder is not suitable, because the server's user may be unable to enter it.
fn data_parent() -> PathBuf {
    /// Size of the databases of concurrent tests, the log and the template.
    const MIN_FREE_BYTES: u64 = 4 << 30;
    let memory = Path::new("/dev/shm");
    match rustix::fs::statvfs(memory) {
        Ok(space) if space.f_bavail * space.f_frsize >= MIN_FREE_BYTES => memory.to_owned(),
        _ => std::env::temp_dir(),
    }
}

/// Returns the folder of Postgres's programs.
pub fn programs() -> PathBuf {
    let default_folder = || crate::assets::root().join(".runtime/postgres/bin");
    std::env::var_os("POSTGRES_BIN_DIR").map_or_else(default_folder, PathBuf::from)
}

/// Starts the process that stops the server. A destructor cannot do this, because Rust does not
/// drop statics at exit.
fn start_watcher(server: u32, folder: &Path) {
    let mut command = Command::new("sh");
    command.arg("-c").arg(STOP_SCRIPT).arg(server.to_string()).arg(folder).stdin(Stdio::piped());
    #[cfg(unix)]
    // Ctrl-C in the terminal must end the test process only.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let watcher = command.stdout(Stdio::null()).spawn().expect("sh starts");
    // Keeps the pipe open until the process exits.
    std::mem::forget(watcher);
}

/// The advisory lock for which the held statements wait.
const HOLD_LOCK: i64 = 0x686f_6c64;

/// Makes statements of one kind wait in a database until [`StatementBlock::release`] is called.
pub struct StatementBlock {
    connection: PgConnection,
    table: &'static str,
}

impl StatementBlock {
    /// Makes every `event` (`insert` or `update`) on `table` wait if `condition` (SQL) is true when
    /// the event begins. Panics if the database fails.
    pub async fn create(
        database: &TestDatabase,
        event: &'static str,
        table: &'static str,
        condition: &'static str,
    ) -> Self {
        let mut connection = database.connection().await;
        for statement in [
            format!("select pg_advisory_lock({HOLD_LOCK})"),
            format!(
                "create function hold() returns trigger language plpgsql as $$ begin
                   if {condition} then perform pg_advisory_xact_lock_shared({HOLD_LOCK}); end if;
                   return null;
                 end $$"
            ),
            format!(
                "create trigger hold before {event} on {table} for each statement execute function hold()"
            ),
        ] {
            execute(&mut connection, statement).await;
        }
        Self { connection, table }
    }

    /// Ends the waiting sessions, whose process was killed, and lets all other sessions continue.
    /// Panics if the database fails.
    pub async fn release(mut self) {
        for statement in [
            "select pg_terminate_backend(pid, 60000) from pg_locks where locktype = 'advisory' and not granted
             and database = (select oid from pg_database where datname = current_database())"
                .to_owned(),
            format!("drop trigger hold on {}", self.table),
            format!("select pg_advisory_unlock({HOLD_LOCK})"),
        ] {
            execute(&mut self.connection, statement).await;
        }
    }
}

async fn execute(connection: &mut PgConnection, statement: String) {
    sqlx::query(AssertSqlSafe(statement)).execute(connection).await.expect("the statement runs");
}
