//! Migrates the schema, and decides which versions of the program may run on it.
//!
//! A program may run on a newer schema than its own, so that a service can be upgraded process by
//! process. A migration that older programs cannot work with contains the line
//! [`STOPS_OLDER_PROGRAMS`]. Before such a migration runs, its version is written to the table
//! `required_schema`. Programs that do not support that version claim no further jobs, exit, and
//! refuse to start.
//!
//! Every process holds a shared advisory lock from its start to its end ([`SchemaLock`]). A
//! migration that stops older programs acquires it exclusively, so it waits until they end.
use crate::StoreError;
use crate::db::transient::Cause;
use crate::db::{REJECT_READ_ONLY, transient};
use sha2::{Digest, Sha256};
use sqlx::migrate::{AppliedMigration, Migrate, MigrateError, Migration, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};
use std::time::{Duration, Instant};
use time::OffsetDateTime;

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

/// One of the first two lines of a migration that programs without it cannot work with.
pub const STOPS_OLDER_PROGRAMS: &str = "-- Stops older programs.";

/// Advisory lock of the process that migrates.
const MIGRATION_LOCK: i64 = 0x0066_6163_6501;
/// Advisory lock that every process of the program holds in shared mode.
const PROCESS_LOCK: i64 = 0x0066_6163_6502;

/// Time between two reads of the required version by a running program.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit of such a read.
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a migration waits for older programs to end, or for the lock of a table.
const WAIT_LIMIT: Duration = Duration::from_secs(600);
/// Time between two attempts to acquire an advisory lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two log lines during a wait.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The error code of a lock that was not acquired in time.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Decides what a migration does with running programs that it would stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OlderProgramPolicy {
    /// Stops them and waits until they end.
    Stop,
    /// Fails the migration. A short command must not stop a service.
    FailMigration,
}

#[must_use = "the lock of the schema ends when the value is dropped"]
pub struct MigrationResult {
    /// Number of migrations that ran. It is 0 if the schema is newer than this program.
    pub migration_count: usize,
    /// Hold this lock as long as the process uses the database.
    pub schema: SchemaLock,
}

/// A connection whose lock prevents migrations that this program cannot work with.
#[must_use = "the lock ends when the value is dropped"]
pub struct SchemaLock {
    conn: PgConnection,
    options: PgConnectOptions,
    /// The newest schema version that the program supports.
    known: i64,
}

impl SchemaLock {
    /// Waits until a newer program requires a schema version that this program does not know, and
    /// returns the error to report. If the connection breaks, a new one is opened.
    pub async fn wait_until_superseded(&mut self) -> StoreError {
        let mut log = LogLimit::default();
        let mut is_locked = true;
        loop {
            match tokio::time::timeout(WATCH_TIMEOUT, self.check_once(&mut is_locked)).await {
                Ok(Ok(())) => {}
                Ok(Err(error @ StoreError::Unsupported(_))) => return error,
                failed => {
                    if log.is_due() {
                        let error =
                            failed.map_or_else(|_| "no response".into(), |failed| format!("{failed:?}"));
                        tracing::warn!(error, "cannot read the required schema version; trying again");
                    }
                    if let Ok(Ok(conn)) = tokio::time::timeout(WATCH_TIMEOUT, connect(&self.options)).await {
                        (self.conn, is_locked) = (conn, false);
                    }
                }
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    /// Releases the lock, and waits until the connection is closed.
    pub async fn release(self) -> Result<(), StoreError> {
        Ok(self.conn.close().await?)
    }

    /// Checks the required version once. If the connection is new, acquires the lock again. A newer
    /// program holds this lock exclusively while it migrates.
    async fn check_once(&mut self, is_locked: &mut bool) -> Result<(), StoreError> {
        if !*is_locked {
            *is_locked = try_lock_shared(&mut self.conn, PROCESS_LOCK).await?;
        }
        check_required(read_required_version(&mut self.conn).await?, self.known)
    }
}

/// Facts about a database.
#[derive(Clone, Debug)]
pub struct DatabaseFacts {
    /// Version of Postgres, such as `18.4`.
    pub server_version: String,
    /// Version of the extension pgvector, if it is installed in the database.
    pub pgvector: Option<String>,
    /// Number of the newest migration; `None` if the database has no schema of this program.
    pub schema_version: Option<i64>,
    /// The lowest version that a program must know to use the schema; 0 without a schema.
    pub required_version: i64,
    /// Current time of the server.
    pub time: OffsetDateTime,
}

/// A handle to the schema; see [`crate::Store::schema`].
#[derive(Clone, Copy, Debug)]
pub struct Schema<'a>(pub(crate) &'a PgPool);

impl Schema<'_> {
    /// Migrates the schema, in one process at a time. A migration that stops older programs waits
    /// at most ten minutes for them. With `OlderProgramPolicy::FailMigration`, it fails instead.
    ///
    /// # Errors
    /// Fails with `Unsupported` if this program is too old for the schema, or if older programs do
    /// not end or must not be stopped. Fails with `Migrate` if a migration fails; a failed
    /// migration is rolled back.
    pub async fn migrate(self, policy: OlderProgramPolicy) -> Result<MigrationResult, StoreError> {
        self.migrate_to(&MIGRATIONS, policy).await
    }

    /// Works like [`Self::migrate`], with the migrations of another version (for tests).
    pub async fn migrate_to(
        self,
        migrations: &Migrator,
        policy: OlderProgramPolicy,
    ) -> Result<MigrationResult, StoreError> {
        // Statement logging is off. On a slow disk, each migration would be logged as a slow
        // statement, with its whole text.
        let options = self.0.connect_options().as_ref().clone().disable_statement_logging();
        let mut conn = connect(&options).await?;
        let known = newest_version(migrations.iter());
        acquire_migration_lock(&mut conn, known).await?;
        let table = &migrations.table_name;
        conn.ensure_migrations_table(table).await?;
        let applied = conn.list_applied_migrations(table).await?;
        let newest = newest_applied(&applied);
        let (mut migration_count, mut stopped) = (0, false);
        if newest > known {
            check_required(read_required_version(&mut conn).await?, known)?;
            tracing::warn!(
                schema = newest,
                known,
                "the schema is newer than this program, which may run on it"
            );
        } else {
            stopped = upgrade(&mut conn, migrations, &applied, policy).await?;
            migration_count = conn.list_applied_migrations(table).await?.len() - applied.len();
        }
        // No other process holds this lock exclusively, because this one holds the other lock.
        sqlx::query("select pg_advisory_lock_shared($1)").bind(PROCESS_LOCK).execute(&mut conn).await?;
        if stopped {
            unlock(&mut conn, PROCESS_LOCK).await?;
        }
        unlock(&mut conn, MIGRATION_LOCK).await?;
        Ok(MigrationResult { migration_count, schema: SchemaLock { conn, options, known } })
    }

    /// Returns `true` if the database has a schema of this program, of any version.
    pub async fn exists(self) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select to_regclass('collections') is not null or to_regclass('jobs') is not null",
        )
        .fetch_one(self.0)
        .await?)
    }

    /// Returns facts about the server and the schema. Changes nothing in the database.
    pub async fn facts(self) -> Result<DatabaseFacts, StoreError> {
        let (server_version, pgvector, time): (String, Option<String>, OffsetDateTime) = sqlx::query_as(
            "select current_setting('server_version'),
                    (select extversion from pg_extension where extname = 'vector'), clock_timestamp()",
        )
        .fetch_one(self.0)
        .await?;
        let (mut schema_version, mut required_version) = (None, 0);
        if self.exists().await? {
            let mut conn = connect(self.0.connect_options().as_ref()).await?;
            schema_version =
                Some(newest_applied(&conn.list_applied_migrations(&MIGRATIONS.table_name).await?));
            required_version = read_required_version(&mut conn).await?;
        }
        Ok(DatabaseFacts { server_version, pgvector, schema_version, required_version, time })
    }

    /// Checks that the schema matches this program, for commands that do not migrate.
    ///
    /// # Errors
    /// Fails with `Unsupported` if the schema has a different version, or if a newer program is
    /// changing it.
    pub async fn check(self) -> Result<SchemaLock, StoreError> {
        let options = self.0.connect_options().as_ref().clone();
        let mut conn = connect(&options).await?;
        let acquired = try_lock_shared(&mut conn, PROCESS_LOCK).await?;
        let exists = self.exists().await?;
        let applied =
            if exists { conn.list_applied_migrations(&MIGRATIONS.table_name).await? } else { Vec::new() };
        let known = version();
        if !acquired || newest_applied(&applied) > known {
            return Err(StoreError::Unsupported(
                "a newer version of facecrawl has migrated the database: use that version".into(),
            ));
        }
        let (applied, expected) = (applied.len(), MIGRATIONS.iter().count());
        if applied == expected {
            return Ok(SchemaLock { conn, options, known });
        }
        Err(StoreError::Unsupported(format!(
            "the database has {applied} of the {expected} migrations of this program: run `facecrawl migrate`"
        )))
    }
}

/// Returns the newest schema version that this program supports: the number of its last migration.
pub fn version() -> i64 {
    newest_version(MIGRATIONS.iter())
}

/// Returns a short hex digest of this build's migrations. It changes when the schema does.
pub fn fingerprint() -> String {
    let mut digest = Sha256::new();
    for migration in MIGRATIONS.iter() {
        digest.update(migration.version.to_be_bytes());
        digest.update(&migration.checksum);
    }
    hex::encode(&digest.finalize()[..6])
}

fn newest_version<'a>(migrations: impl Iterator<Item = &'a Migration>) -> i64 {
    migrations.map(|migration| migration.version).max().unwrap_or_default()
}

fn newest_applied(applied: &[AppliedMigration]) -> i64 {
    applied.iter().map(|migration| migration.version).max().unwrap_or_default()
}

/// Checks that the applied migrations are those of this program.
fn check_applied(migrations: &Migrator, applied: &[AppliedMigration]) -> Result<(), MigrateError> {
    for AppliedMigration { version, checksum, .. } in applied {
        let known = migrations.iter().find(|migration| migration.version == *version);
        let known = known.ok_or(MigrateError::VersionMissing(*version))?;
        if known.checksum != *checksum {
            return Err(MigrateError::VersionMismatch(*version));
        }
    }
    Ok(())
}

fn stops_older_programs(migration: &Migration) -> bool {
    // sqlx reads its own mark, `-- no-transaction`, from the first line.
    migration.sql.as_str().lines().take(2).any(|line| line == STOPS_OLDER_PROGRAMS)
}

fn check_required(required: i64, known: i64) -> Result<(), StoreError> {
    if required <= known {
        return Ok(());
    }
    Err(StoreError::Unsupported(format!(
        "a newer version of facecrawl has upgraded the database to schema {required}, and this version knows only schema {known}: stop this version and start the newer one"
    )))
}

/// Opens a connection for advisory locks and migrations, to a server that accepts changes. The
/// server closes it within a minute if it cannot reach this process, so that no locks remain.
pub(crate) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    let mut conn = PgConnection::connect_with(options).await?;
    sqlx::raw_sql(
        "set statement_timeout = 0; set tcp_keepalives_idle = 20; set tcp_keepalives_interval = 10;
         set tcp_keepalives_count = 3",
    )
    .execute(&mut conn)
    .await?;
    sqlx::raw_sql(REJECT_READ_ONLY).execute(&mut conn).await?;
    Ok(conn)
}

/// Tries to acquire an advisory lock. Returns whether it was acquired.
async fn try_lock(conn: &mut PgConnection, key: i64) -> Result<bool, StoreError> {
    Ok(sqlx::query_scalar("select pg_try_advisory_lock($1)").bind(key).fetch_one(conn).await?)
}

async fn try_lock_shared(conn: &mut PgConnection, key: i64) -> Result<bool, StoreError> {
    Ok(sqlx::query_scalar("select pg_try_advisory_lock_shared($1)").bind(key).fetch_one(conn).await?)
}

async fn unlock(conn: &mut PgConnection, key: i64) -> Result<(), StoreError> {
    sqlx::query("select pg_advisory_unlock($1)").bind(key).execute(conn).await?;
    Ok(())
}

/// Waits until no other process migrates. Fails if the migration of another process stops this
/// program.
async fn acquire_migration_lock(conn: &mut PgConnection, known: i64) -> Result<(), StoreError> {
    let mut log = LogLimit::default();
    while !try_lock(conn, MIGRATION_LOCK).await? {
        check_required(read_required_version(conn).await?, known)?;
        if log.is_due() {
            tracing::info!("waiting for another process that migrates the database");
        }
        tokio::time::sleep(LOCK_INTERVAL).await;
    }
    Ok(())
}

/// Runs the pending migrations. The caller holds the migration lock. Returns whether older programs
/// were stopped; this connection then holds their lock exclusively.
///
/// The required version is computed from the migrations, because the stored one may come from an
/// interrupted upgrade.
async fn upgrade(
    conn: &mut PgConnection,
    migrations: &Migrator,
    applied: &[AppliedMigration],
    policy: OlderProgramPolicy,
) -> Result<bool, StoreError> {
    // This check must run before older programs are stopped.
    check_applied(migrations, applied)?;
    let required = newest_version(migrations.iter().filter(|migration| stops_older_programs(migration)));
    let must_stop = required > newest_applied(applied) && !applied.is_empty();
    if must_stop && policy == OlderProgramPolicy::FailMigration {
        return Err(StoreError::Unsupported(format!(
            "migration {required} stops processes of older versions of facecrawl: stop them, then run `facecrawl migrate` or start the service with this version"
        )));
    }
    let migration = async {
        store_required(conn, required).await?;
        if must_stop {
            wait_for_older_programs(conn).await?;
            // A machine that lost its connection to the database may still run jobs. Its claims
            // become invalid, so that it cannot complete these jobs later.
            sqlx::raw_sql("update jobs set fence = fence + 1 where state = 'running'")
                .execute(&mut *conn)
                .await?;
        }
        run_pending(migrations, conn).await?;
        // If the database was empty, the migrations have just created the table.
        store_required(conn, required).await
    };
    let migration = migration.await;
    if migration.is_err()
        && let Err(error) = require_applied(conn, migrations).await
    {
        tracing::warn!(%error, "the required schema version is not reset; the next start does it");
    }
    migration.map(|()| must_stop)
}

/// Stores the required version of the applied migrations, after an upgrade that failed. Older
/// programs can then be started again, unless a migration that stops them was applied.
async fn require_applied(conn: &mut PgConnection, migrations: &Migrator) -> Result<(), StoreError> {
    let applied = conn.list_applied_migrations(&migrations.table_name).await?;
    let newest = newest_applied(&applied);
    let required = migrations.iter().filter(|migration| stops_older_programs(migration));
    store_required(conn, newest_version(required.filter(|migration| migration.version <= newest))).await
}

async fn has_required_version(conn: &mut PgConnection) -> Result<bool, StoreError> {
    Ok(sqlx::query_scalar("select to_regclass('required_schema') is not null").fetch_one(conn).await?)
}

/// Returns the required version: 0 if the table does not exist yet.
async fn read_required_version(conn: &mut PgConnection) -> Result<i64, StoreError> {
    if !has_required_version(conn).await? {
        return Ok(0);
    }
    Ok(sqlx::query_scalar("select coalesce(max(version), 0) from required_schema").fetch_one(conn).await?)
}

/// Stores the required version, if the table exists.
async fn store_required(conn: &mut PgConnection, required: i64) -> Result<(), StoreError> {
    if has_required_version(conn).await? {
        sqlx::query(
            "insert into required_schema (version) values ($1)
             on conflict (only_row) do update set version = excluded.version",
        )
        .bind(required)
        .execute(conn)
        .await?;
    }
    Ok(())
}

/// Waits until no other process uses the database, and holds the process lock exclusively.
async fn wait_for_older_programs(conn: &mut PgConnection) -> Result<(), StoreError> {
    let (started, mut log) = (Instant::now(), LogLimit::default());
    while !try_lock(conn, PROCESS_LOCK).await? {
        if started.elapsed() >= WAIT_LIMIT {
            return Err(StoreError::Unsupported(format!(
                "processes of an older version of facecrawl still run after {} minutes: stop them, then start this version again",
                WAIT_LIMIT.as_secs() / 60
            )));
        }
        if log.is_due() {
            tracing::info!("waiting until the processes of the older version have ended");
        }
        tokio::time::sleep(LOCK_INTERVAL).await;
    }
    Ok(())
}

/// Runs the pending migrations, each in a transaction.
///
/// Running programs use the same tables. A migration that waits for a table blocks all statements
/// that come after it, so it waits for less than the `deadlock_timeout` of Postgres (1 s). It is
/// then rolled back and repeated, as after a deadlock.
async fn run_pending(migrations: &Migrator, conn: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::raw_sql("set lock_timeout = '500ms'").execute(&mut *conn).await?;
    let started = Instant::now();
    let mut pauses = transient::pauses();
    let result = loop {
        let Err(error) = migrations.run_direct(None, &mut *conn, false).await else { break Ok(()) };
        // After an error, `run_direct` keeps its own lock.
        conn.unlock().await?;
        let pause = pauses.next().filter(|_| is_conflict(&error) && started.elapsed() < WAIT_LIMIT);
        let Some(pause) = pause else { break Err(error.into()) };
        tracing::info!(%error, "a migration waits for running programs");
        tokio::time::sleep(pause).await;
    };
    sqlx::raw_sql("set lock_timeout = 0").execute(conn).await?;
    result
}

/// Returns whether a running program had locked what a migration needed.
fn is_conflict(error: &MigrateError) -> bool {
    let (MigrateError::ExecuteMigration(error, _) | MigrateError::Execute(error)) = error else {
        return false;
    };
    let code = error.as_database_error().and_then(|error| error.code());
    Cause::from_error(error) == Some(Cause::Conflict) || code.as_deref() == Some(LOCK_NOT_AVAILABLE)
}

#[derive(Default)]
struct LogLimit(Option<Instant>);

impl LogLimit {
    fn is_due(&mut self) -> bool {
        let due = self.0.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        if due {
            self.0 = Some(Instant::now());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migration_marks_are_recognised_and_migrations_are_transactional() {
        for migration in MIGRATIONS.iter() {
            let mentions = migration.sql.as_str().to_lowercase().contains("stops older programs");
            assert_eq!(mentions, stops_older_programs(migration), "{}", migration.version);
            assert!(!migration.no_tx, "{}", migration.version);
        }
    }
}
