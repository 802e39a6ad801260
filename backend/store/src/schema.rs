//! Migrates the schema, and decides which versions of the program may run on it.
//!
//! A program may run on a newer schema than its own, so that a service can be upgraded process by
//! process. A migration that older programs cannot work with begins with the line
//! [`STOPS_OLDER_PROGRAMS`]. Before such a migration runs, its version is written to the table
//! `required_schema`. Programs that do not know that version claim no further jobs, end, and do not
//! start again. The migration waits until their jobs have ended.
use crate::{Store, StoreError};
use sha2::{Digest, Sha256};
use sqlx::migrate::{Migrate, Migration, Migrator};
use sqlx::{ConnectOptions, Connection, PgConnection};
use std::time::{Duration, Instant};

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

/// The first line of a migration that programs without it cannot work with.
pub const STOPS_OLDER_PROGRAMS: &str = "-- Stops older programs.";

/// Time between two reads of the required version by a running program.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// How long a migration waits at most for the jobs of older programs to end.
const WAIT_LIMIT: Duration = Duration::from_secs(600);
/// Time between two counts of these jobs.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two log lines during this wait.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl Store {
    /// Migrates the schema under an advisory lock. Returns the number of migrations that ran: 0 if
    /// the schema is newer than this program and the program may run on it.
    ///
    /// A migration that stops older programs first waits at least four seconds and at most ten
    /// minutes for them.
    ///
    /// # Errors
    /// Fails with `Unsupported` if this program is too old for the schema, or if jobs of older
    /// programs do not end; with `Migrate` if a migration fails.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        self.migrate_to(&MIGRATIONS).await
    }

    /// Works like [`Self::migrate`], with the migrations of another version of this program (for
    /// tests).
    ///
    /// # Errors
    /// Fails like [`Self::migrate`].
    pub async fn migrate_to(&self, migrations: &Migrator) -> Result<usize, StoreError> {
        // Statement logging is off. On a slow disk, each migration would be logged as a slow
        // statement, with its whole text.
        let options = self.pool.connect_options().as_ref().clone().disable_statement_logging();
        let mut conn = PgConnection::connect_with(&options).await?;
        sqlx::raw_sql("set statement_timeout = 0").execute(&mut conn).await?;
        let table = &migrations.table_name;
        // The lock is acquired before the first count, so that the result is correct when several
        // processes start concurrently. `run` acquires it again, which Postgres allows within a
        // session. Closing the connection always releases both locks.
        conn.lock().await?;
        conn.ensure_migrations_table(table).await?;
        let before = conn.list_applied_migrations(table).await?;
        let newest = before.iter().map(|migration| migration.version).max().unwrap_or_default();
        let known = newest_version(migrations);
        if newest > known {
            check_required(required_version(&mut conn).await?, known)?;
            tracing::warn!(
                schema = newest,
                known,
                "the schema is newer than this program, which may run on it"
            );
            return Ok(0);
        }
        let required = (migrations.iter().filter(|migration| stops_older_programs(migration)))
            .map(|migration| migration.version)
            .max()
            .unwrap_or_default();
        require(&mut conn, required, newest).await?;
        migrations.run_direct(None, &mut conn, false).await?;
        let after = conn.list_applied_migrations(table).await?.len();
        conn.close().await?;
        Ok(after - before.len())
    }

    /// Returns when a newer program requires a schema version that this program does not know. The
    /// result is the error to report. Failures of the database are ignored.
    pub async fn superseded(&self) -> StoreError {
        loop {
            tokio::time::sleep(WATCH_INTERVAL).await;
            let required = sqlx::query_scalar("select version from required_schema").fetch_one(&self.pool);
            if let Ok(required) = required.await
                && let Err(error) = check_required(required, Self::schema_version())
            {
                return error;
            }
        }
    }

    /// Returns `true` if the database has a schema of this program, of any version.
    pub async fn has_schema(&self) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select to_regclass('collections') is not null or to_regclass('jobs') is not null",
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Checks that the schema matches this program, for commands that do not migrate.
    ///
    /// # Errors
    /// Fails with `Unsupported` if the schema has a different version.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        let mut conn = self.pool.acquire().await?;
        let known = self.has_schema().await?;
        let applied =
            if known { conn.list_applied_migrations(&MIGRATIONS.table_name).await?.len() } else { 0 };
        let expected = MIGRATIONS.iter().count();
        if applied == expected {
            return Ok(());
        }
        Err(StoreError::Unsupported(format!(
            "the database has {applied} of the {expected} migrations of this program: run `facecrawl migrate`, or use the program version that matches the database"
        )))
    }

    /// Returns the newest schema version that this program knows: the number of its last migration.
    pub fn schema_version() -> i64 {
        newest_version(&MIGRATIONS)
    }

    /// Returns a short hex digest of all migrations in this build. It changes whenever the schema
    /// does.
    pub fn schema_fingerprint() -> String {
        let mut digest = Sha256::new();
        for migration in MIGRATIONS.iter() {
            digest.update(migration.version.to_be_bytes());
            digest.update(&migration.checksum);
        }
        hex::encode(&digest.finalize()[..6])
    }
}

fn newest_version(migrations: &Migrator) -> i64 {
    migrations.iter().map(|migration| migration.version).max().unwrap_or_default()
}

fn stops_older_programs(migration: &Migration) -> bool {
    migration.sql.as_str().starts_with(STOPS_OLDER_PROGRAMS)
}

fn check_required(required: i64, known: i64) -> Result<(), StoreError> {
    if required <= known {
        return Ok(());
    }
    Err(StoreError::Unsupported(format!(
        "a newer version of facecrawl has upgraded the database to schema {required}, and this version knows only schema {known}: stop this version and start the newer one"
    )))
}

/// Returns the required version: 0 for a schema from before there was one.
async fn required_version(conn: &mut PgConnection) -> Result<i64, StoreError> {
    let exists: bool =
        sqlx::query_scalar("select to_regclass('required_schema') is not null").fetch_one(&mut *conn).await?;
    if !exists {
        return Ok(0);
    }
    Ok(sqlx::query_scalar("select version from required_schema").fetch_one(conn).await?)
}

/// Stores the required version. If a pending migration raises it above the `newest` applied
/// version, waits until the jobs of older programs have ended.
///
/// The caller holds the migration lock, so a stored version above `newest` belongs to a migration
/// that was interrupted before it ran. It is then replaced by the correct one.
async fn require(conn: &mut PgConnection, required: i64, newest: i64) -> Result<(), StoreError> {
    let exists: bool =
        sqlx::query_scalar("select to_regclass('required_schema') is not null").fetch_one(&mut *conn).await?;
    if !exists {
        // The database is empty, or its programs do not read the table.
        return Ok(());
    }
    sqlx::query("update required_schema set version = $1 where version <> $1")
        .bind(required)
        .execute(&mut *conn)
        .await?;
    if required > newest { wait_for_older_programs(conn).await } else { Ok(()) }
}

async fn wait_for_older_programs(conn: &mut PgConnection) -> Result<(), StoreError> {
    // Programs without a job read the version in this time.
    tokio::time::sleep(2 * WATCH_INTERVAL).await;
    let (started, mut logged) = (Instant::now(), None::<Instant>);
    loop {
        let mut tx = conn.begin().await?;
        // Waits for transactions that claim a job and began before the version was raised.
        sqlx::raw_sql("lock table jobs in share row exclusive mode").execute(&mut *tx).await?;
        let running: i64 =
            sqlx::query_scalar("select count(*) from jobs where state = 'running' and lease_until > now()")
                .fetch_one(&mut *tx)
                .await?;
        tx.commit().await?;
        if running == 0 {
            return Ok(());
        }
        if started.elapsed() >= WAIT_LIMIT {
            return Err(StoreError::Unsupported(format!(
                "{running} jobs of an older version of facecrawl still run after {} minutes: stop its processes, then start this version again",
                WAIT_LIMIT.as_secs() / 60
            )));
        }
        if logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            tracing::info!(running, "waiting for the jobs of an older version before the migration");
            logged = Some(Instant::now());
        }
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}
