//! Connection, transaction, migration.
use crate::StoreError;
use crate::search::LargeScopes;
use crate::transient::{self, Cause};
use sha2::{Digest, Sha256};
use sqlx::migrate::{Migrate, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, Postgres, Transaction};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

/// Oldest Postgres that is tested against and still maintained.
const OLDEST_POSTGRES: i32 = 15;
/// Oldest pgvector: 0.8 brought iterative index scans; 0.8.4 carries their fixes.
const OLDEST_PGVECTOR: (u32, u32, u32) = (0, 8, 4);
/// How long `connect` keeps trying while the server comes up.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Where the database is and how many connections may be open.
#[derive(Clone, Debug)]
pub struct Config {
    /// `postgres://…`; may name a socket folder with `?host=`.
    pub url: String,
    /// Pool size.
    pub max_connections: u32,
    /// Longest a statement may run before the server gives it up; zero is no limit. Migrations and index builds are exempt.
    pub statement_timeout: Duration,
    /// Search is exact up to this many faces in scope, and uses the HNSW index above.
    pub exact_limit: i64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            url: String::new(),
            max_connections: 16,
            statement_timeout: Duration::from_secs(30),
            exact_limit: DEFAULT_EXACT_LIMIT,
        }
    }
}

/// Faces in scope up to which search is exact, unless configured otherwise.
pub const DEFAULT_EXACT_LIMIT: i64 = 50_000;

/// A handle on the database; cheap to clone.
#[derive(Clone)]
pub struct Store {
    pub(crate) pool: PgPool,
    pub(crate) exact_limit: i64,
    pub(crate) large_scopes: Arc<LargeScopes>,
    /// The one collection whose rows it shows; see [`Store::within`].
    pub(crate) reach: Option<Uuid>,
}

/// A transaction; rolls back when dropped.
pub struct Tx(Transaction<'static, Postgres>);

impl Store {
    /// Connects (retried for up to ten seconds while the server comes up) and checks Postgres >= 15 and pgvector >= 0.8.4.
    ///
    /// # Errors
    /// `Invalid` for a URL that is none, `Unsupported` for too old a server, else the database's own.
    pub async fn connect(config: &Config) -> Result<Self, StoreError> {
        let options = parse_url(&config.url)?.application_name("facecrawl");
        let mut first = connect_patiently(&options, CONNECT_PATIENCE).await?;
        check_versions(&mut first).await?;
        first.close().await?;

        let timeout = config.statement_timeout.as_millis();
        let pool = PgPoolOptions::new()
            .max_connections(config.max_connections.max(1))
            .acquire_timeout(Duration::from_secs(15))
            .idle_timeout(Duration::from_secs(600))
            .max_lifetime(Duration::from_secs(3600))
            .after_connect(move |conn, _| {
                Box::pin(async move {
                    // A process that was stopped in mid-transaction must not hold its row locks for ever.
                    let settings = format!(
                        "set statement_timeout = {timeout}; set idle_in_transaction_session_timeout = 60000"
                    );
                    sqlx::raw_sql(AssertSqlSafe(settings)).execute(conn).await?;
                    Ok(())
                })
            })
            .connect_with(options)
            .await?;
        Ok(Self::from_pool(pool).with_exact_limit(config.exact_limit))
    }

    /// Wraps a pool (tests).
    pub fn from_pool(pool: PgPool) -> Self {
        Self { pool, exact_limit: DEFAULT_EXACT_LIMIT, large_scopes: Arc::default(), reach: None }
    }

    /// The same store with another bound for exact search (see [`Config::exact_limit`]).
    pub fn with_exact_limit(mut self, faces: i64) -> Self {
        self.exact_limit = faces;
        self
    }

    /// The same store as a tenant sees it: collections, crawls, images and faces of other collections are as good as not there, whatever
    /// call names them by id. The condition is part of every statement that reads or deletes by an id a caller may have guessed.
    #[must_use]
    pub fn within(&self, collection: Uuid) -> Self {
        Self { reach: Some(collection), ..self.clone() }
    }

    /// Brings the schema up to date under an advisory lock; says how many migrations ran.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        // Unlogged: on a slow disk each migration would be a slow statement, and the warning the whole of its text.
        let options = PgConnectOptions::clone(&self.pool.connect_options()).disable_statement_logging();
        let mut conn = PgConnection::connect_with(&options).await?;
        sqlx::raw_sql("set statement_timeout = 0").execute(&mut conn).await?;
        let table = &MIGRATIONS.table_name;
        // The lock is taken here already, so that the count is right when several processes start at once; `run` takes it once more,
        // which Postgres allows within a session. Both are gone when the connection closes, whatever happens in between.
        conn.lock().await?;
        conn.ensure_migrations_table(table).await?;
        let before = conn.list_applied_migrations(table).await?.len();
        MIGRATIONS.run_direct(None, &mut conn, false).await?;
        let after = conn.list_applied_migrations(table).await?.len();
        conn.close().await?;
        Ok(after - before)
    }

    /// Whether there is a schema of this program at all, of whatever version.
    pub async fn has_schema(&self) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select to_regclass('collections') is not null or to_regclass('jobs') is not null",
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// For commands that take the database as it is.
    ///
    /// # Errors
    /// `Unsupported` for a schema of another version of this program.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        let mut conn = self.pool.acquire().await?;
        let known = self.has_schema().await?;
        let applied =
            if known { conn.list_applied_migrations(&MIGRATIONS.table_name).await?.len() } else { 0 };
        let wanted = MIGRATIONS.iter().count();
        if applied == wanted {
            return Ok(());
        }
        Err(StoreError::Unsupported(format!(
            "the database has {applied} of the {wanted} migrations that this program knows: use the program that runs on it, or run `facecrawl migrate` first"
        )))
    }

    /// A short hex digest of all migrations in this build; changes whenever the schema does.
    pub fn schema_fingerprint() -> String {
        let mut digest = Sha256::new();
        for migration in MIGRATIONS.iter() {
            digest.update(migration.version.to_be_bytes());
            digest.update(&migration.checksum);
        }
        hex::encode(&digest.finalize()[..6])
    }

    /// The pool, for the queue.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Opens a transaction.
    pub async fn begin(&self) -> Result<Tx, StoreError> {
        Ok(Tx(self.pool.begin().await?))
    }

    /// `select 1`, bounded to a second.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let answer = sqlx::query("select 1").execute(&self.pool);
        match tokio::time::timeout(Duration::from_secs(1), answer).await {
            Ok(answer) => Ok(answer.map(drop)?),
            Err(_) => Err(StoreError::Database(sqlx::Error::PoolTimedOut)),
        }
    }
}

impl Tx {
    /// The connection to pass to calls that take part.
    pub fn conn(&mut self) -> &mut PgConnection {
        &mut self.0
    }

    /// Makes everything since `begin` permanent.
    ///
    /// # Errors
    /// `CommitUnknown` when the connection broke before the server answered: only then may it have been made permanent all the same.
    pub async fn commit(self) -> Result<(), StoreError> {
        self.0.commit().await.map_err(|error| match Cause::of(&error) {
            Some(Cause::Connection) => StoreError::CommitUnknown(error),
            _ => error.into(),
        })
    }
}

fn parse_url(url: &str) -> Result<PgConnectOptions, StoreError> {
    // Neither message repeats the URL: it may carry a password.
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(StoreError::Invalid(
            "the database URL must begin with postgres:// or postgresql://".into(),
        ));
    }
    PgConnectOptions::from_str(url)
        .map_err(|error| StoreError::Invalid(format!("the database URL cannot be read: {error}")))
}

async fn connect_patiently(
    options: &PgConnectOptions,
    patience: Duration,
) -> Result<PgConnection, StoreError> {
    let begin = Instant::now();
    let mut pauses = transient::pauses();
    loop {
        let error = match options.connect().await {
            Ok(conn) => return Ok(conn),
            Err(error) => error,
        };
        // Nobody listens, the socket file is not there yet, or the server says that it is starting.
        let pause =
            pauses.next().filter(|pause| Cause::of(&error).is_some() && begin.elapsed() + *pause < patience);
        let Some(pause) = pause else { return Err(error.into()) };
        tracing::debug!(%error, "the database does not answer yet");
        tokio::time::sleep(pause).await;
    }
}

async fn check_versions(conn: &mut PgConnection) -> Result<(), StoreError> {
    let (number, name): (i32, String) = sqlx::query_as(
        "select current_setting('server_version_num')::int, current_setting('server_version')",
    )
    .fetch_one(&mut *conn)
    .await?;
    if number / 10_000 < OLDEST_POSTGRES {
        return Err(StoreError::Unsupported(format!(
            "the database server is Postgres {name}; version {OLDEST_POSTGRES} or newer is needed"
        )));
    }
    let (installed, available): (Option<String>, Option<String>) = sqlx::query_as(
        "select (select extversion from pg_extension where extname = 'vector'),
                (select default_version from pg_available_extensions where name = 'vector')",
    )
    .fetch_one(&mut *conn)
    .await?;
    check_pgvector(installed.as_deref(), available.as_deref()).map_err(StoreError::Unsupported)
}

fn check_pgvector(installed: Option<&str>, available: Option<&str>) -> Result<(), String> {
    let (a, b, c) = OLDEST_PGVECTOR;
    let needed = format!("version {a}.{b}.{c} or newer is needed");
    let new_enough = |version: &str| version_triple(version) >= OLDEST_PGVECTOR;
    match (installed, available) {
        (Some(version), _) if new_enough(version) => Ok(()),
        (Some(version), Some(newer)) if new_enough(newer) => Err(format!(
            "this database uses pgvector {version}; {needed}, and the server has {newer}: run `alter extension vector update`"
        )),
        (Some(version), _) => Err(format!("this database uses pgvector {version}; {needed}")),
        (None, Some(version)) if new_enough(version) => Ok(()),
        (None, Some(version)) => Err(format!("the database server has pgvector {version}; {needed}")),
        (None, None) => Err(format!("the database server does not have the pgvector extension; {needed}")),
    }
}

fn version_triple(version: &str) -> (u32, u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pgvector_versions_are_judged_by_number_and_the_answer_says_what_was_found() {
        assert_eq!(check_pgvector(Some("0.8.4"), None), Ok(()));
        assert_eq!(check_pgvector(None, Some("0.10.0")), Ok(()));
        assert!(
            check_pgvector(Some("0.7.4"), Some("0.8.5"))
                .unwrap_err()
                .contains("alter extension vector update")
        );
        assert!(check_pgvector(None, Some("0.8.3")).unwrap_err().contains("0.8.3"));
        assert!(check_pgvector(Some("0.5.0"), Some("0.6.0")).unwrap_err().contains("0.5.0"));
        assert!(check_pgvector(None, None).unwrap_err().contains("does not have"));
    }
}
