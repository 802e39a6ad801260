//! Connections to the database, transactions, and errors.
pub mod deletions;
pub mod schema;
mod statistics;
pub mod transient;
pub(crate) mod values;
use crate::db::transient::Cause;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, Postgres, Transaction};
use std::str::FromStr;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// Oldest supported Postgres version: the oldest that is tested and still maintained.
const MIN_POSTGRES_VERSION: i32 = 15;
/// Oldest supported pgvector version. Version 0.8 added iterative index scans, and version 0.8.4
/// contains fixes for these scans.
const MIN_PGVECTOR_VERSION: (u32, u32, u32) = (0, 8, 4);
/// How long `connect` retries while the server starts.
const CONNECT_TIME_LIMIT: Duration = Duration::from_secs(10);

/// Idle time above which a connection is tested before its next use. A test costs one more request
/// to the server, and connections that were just used are rarely broken.
const MAX_UNTESTED_IDLE: Duration = Duration::from_secs(1);

/// Fails if the server accepts no changes.
pub(crate) const REJECT_READ_ONLY: &str = "do $$ begin
    if current_setting('transaction_read_only')::bool then
        raise 'the database server accepts no changes' using errcode = 'read_only_sql_transaction';
    end if; end $$";

#[derive(Clone, Debug)]
pub struct Config {
    /// `postgres://…`. The parameter `?host=` can specify a socket folder.
    pub url: String,
    pub max_connections: u32,
    /// Time limit of a statement, enforced by the server. Zero means no limit. Migrations and index
    /// builds are exempt.
    pub statement_timeout: Duration,
    /// Maximum number of faces in scope for exact search. Above it, search uses the vector index.
    pub exact_limit: i64,
    /// Minimum number of candidates of a search in the index of pgvector. `None`: 100.
    pub candidates: Option<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            url: String::new(),
            max_connections: 16,
            statement_timeout: Duration::from_secs(30),
            exact_limit: DEFAULT_EXACT_LIMIT,
            candidates: None,
        }
    }
}

pub const DEFAULT_EXACT_LIMIT: i64 = 50_000;

/// A transaction, which is rolled back when dropped.
pub struct Tx(Transaction<'static, Postgres>);

impl Tx {
    pub(crate) async fn begin(pool: &PgPool) -> Result<Self, StoreError> {
        Ok(Self(pool.begin().await?))
    }

    pub(crate) async fn begin_batch(pool: &PgPool, max_lock_wait: Duration) -> Result<Self, StoreError> {
        let wait = max_lock_wait.as_millis().max(1);
        // Built at run time, because `set` accepts no parameters.
        let statement = format!(
            "begin; set local lock_timeout = {wait}; set local plan_cache_mode = force_generic_plan; set local jit = off"
        );
        Ok(Self(pool.begin_with(AssertSqlSafe(statement)).await?))
    }

    /// Returns the connection to pass to calls that take part in the transaction.
    pub fn conn(&mut self) -> &mut PgConnection {
        &mut self.0
    }

    /// Commits the transaction.
    ///
    /// # Errors
    /// Fails with `CommitUnknown` if the connection broke before the server responded. Only then
    /// may the transaction have been committed despite the error.
    pub async fn commit(self) -> Result<(), StoreError> {
        self.0.commit().await.map_err(|error| match Cause::from_error(&error) {
            Some(Cause::Connection) => StoreError::CommitUnknown(error),
            _ => error.into(),
        })
    }
}

/// Opens a pool of connections; see [`crate::Store::connect`].
pub(crate) async fn connect(config: &Config) -> Result<PgPool, StoreError> {
    let options = parse_url(&config.url)?.application_name("facecrawl");
    let mut conn = connect_with_retries(&options, CONNECT_TIME_LIMIT).await?;
    check_versions(&mut conn).await?;
    conn.close().await?;

    let timeout = config.statement_timeout.as_millis();
    Ok(PgPoolOptions::new()
        .max_connections(config.max_connections.max(1))
        .acquire_timeout(Duration::from_secs(15))
        .idle_timeout(Duration::from_secs(600))
        .max_lifetime(Duration::from_secs(3600))
        .test_before_acquire(false)
        .before_acquire(|conn, state| {
            Box::pin(async move {
                // The pool replaces a connection that fails the test.
                Ok(state.idle_for <= MAX_UNTESTED_IDLE || conn.ping().await.is_ok())
            })
        })
        .after_connect(move |conn, _| {
            Box::pin(async move {
                // Limits how long a process that stopped inside a transaction keeps its row
                // locks. After a failover, the address may lead to a standby for a while. The
                // pool connects again until the server accepts changes.
                let settings = format!(
                    "set statement_timeout = {timeout}; set idle_in_transaction_session_timeout = 60000;
                     {REJECT_READ_ONLY}"
                );
                sqlx::raw_sql(AssertSqlSafe(settings)).execute(conn).await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await?)
}

/// Returns the time of the database's clock, which all processes share.
pub(crate) async fn clock(pool: &PgPool) -> Result<OffsetDateTime, StoreError> {
    Ok(sqlx::query_scalar("select clock_timestamp()").fetch_one(pool).await?)
}

fn parse_url(url: &str) -> Result<PgConnectOptions, StoreError> {
    // Neither message repeats the URL, because it may contain a password.
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(StoreError::Invalid(
            "the database URL must begin with postgres:// or postgresql://".into(),
        ));
    }
    PgConnectOptions::from_str(url)
        .map_err(|error| StoreError::Invalid(format!("the database URL cannot be read: {error}")))
}

async fn connect_with_retries(
    options: &PgConnectOptions,
    time_limit: Duration,
) -> Result<PgConnection, StoreError> {
    let started = Instant::now();
    let mut pauses = transient::pauses();
    loop {
        let error = match connect_to_primary(options).await {
            Ok(Some(conn)) => return Ok(conn),
            // The server may be a standby that will become the primary.
            Ok(None) => StoreError::Unsupported(
                "the database server accepts no changes, because it is a standby or its settings make it read-only: set DATABASE_URL to the primary".into(),
            ),
            Err(error) if Cause::from_error(&error).is_none() => return Err(error.into()),
            // These errors are retried: the connection is refused, the socket file does not exist
            // yet, or the server reports that it is starting.
            Err(error) => error.into(),
        };
        let pause = pauses.next().filter(|pause| started.elapsed() + *pause < time_limit);
        let Some(pause) = pause else { return Err(error) };
        tracing::debug!(%error, "database not ready; retrying");
        tokio::time::sleep(pause).await;
    }
}

/// Connects to the server. Returns `None` if the server accepts no changes: on a standby,
/// `transaction_read_only` is always on.
async fn connect_to_primary(options: &PgConnectOptions) -> Result<Option<PgConnection>, sqlx::Error> {
    let mut conn = options.connect().await?;
    let setting = "select current_setting('transaction_read_only')::bool";
    let is_read_only: bool = sqlx::query_scalar(setting).fetch_one(&mut conn).await?;
    Ok((!is_read_only).then_some(conn))
}

async fn check_versions(conn: &mut PgConnection) -> Result<(), StoreError> {
    let (number, name): (i32, String) = sqlx::query_as(
        "select current_setting('server_version_num')::int, current_setting('server_version')",
    )
    .fetch_one(&mut *conn)
    .await?;
    if number / 10_000 < MIN_POSTGRES_VERSION {
        return Err(StoreError::Unsupported(format!(
            "the database server is Postgres {name}; version {MIN_POSTGRES_VERSION} or newer is needed"
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
    let (a, b, c) = MIN_PGVECTOR_VERSION;
    let needed = format!("version {a}.{b}.{c} or newer is needed");
    let is_supported = |version: &str| parse_version(version) >= MIN_PGVECTOR_VERSION;
    match (installed, available) {
        (Some(version), _) if is_supported(version) => Ok(()),
        (Some(version), Some(server_version)) if is_supported(server_version) => Err(format!(
            "this database uses pgvector {version}; {needed}, and the server has {server_version}: run `alter extension vector update`"
        )),
        (Some(version), _) => Err(format!("this database uses pgvector {version}; {needed}")),
        (None, Some(version)) if is_supported(version) => Ok(()),
        (None, Some(version)) => Err(format!("the database server has pgvector {version}; {needed}")),
        (None, None) => Err(format!("the database server does not have the pgvector extension; {needed}")),
    }
}

fn parse_version(version: &str) -> (u32, u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No row (of the collection) has this id or name.
    #[error("there is no {resource} {id}")]
    NotFound {
        /// Kind of the resource, such as `face` or `image`.
        resource: &'static str,
        /// The id or name in the call.
        id: String,
    },
    /// A unique name is taken, or the state of the row does not allow the change.
    #[error("{0}")]
    Conflict(String),
    /// The schema does not allow a value. The text contains it and states what is allowed.
    #[error("{0}")]
    Invalid(String),
    #[error("the blob store failed: {0}")]
    Blob(String),
    /// The disk has less free space than the reserve. Nothing was written.
    #[error("the disk has less than {reserve_mb} MiB of free space, so nothing more is stored")]
    DiskFull {
        /// The reserve in MiB.
        reserve_mb: u64,
    },
    /// The server or this program is too old, the server has no pgvector or accepts no changes, or
    /// older programs prevent a migration. The text states which, and what to do.
    #[error("{0}")]
    Unsupported(String),
    /// The vector index cannot answer now. The text states why.
    #[error("the vector index is not available: {0}")]
    IndexUnavailable(String),
    #[error("the database schema could not be migrated: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
    /// The connection broke during a commit, so the result of the transaction is unknown.
    #[error("the connection to the database was lost before the commit was confirmed: {0}")]
    CommitUnknown(#[source] sqlx::Error),
}

impl StoreError {
    pub(crate) fn not_found(resource: &'static str, id: impl ToString) -> Self {
        Self::NotFound { resource, id: id.to_string() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pgvector_check_compares_version_numbers() {
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
