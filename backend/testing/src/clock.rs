//! Databases whose clock differs from the clock of the machine: simulated ([`VirtualClock`]) or
//! shifted ([`TestDatabase::with_clock_shifted`]).
//!
//! The functions `now()`, `clock_timestamp()` and `statement_timestamp()` are replaced by functions
//! in a schema that is searched before the system's schema. They return the other time. The
//! product's statements therefore run unchanged, with real tables, locks and plans, but at another
//! time. Expressions that already exist, such as column defaults, and internal tasks of the
//! database (vacuum, timeouts of connections) use the real clock.
use crate::TestDatabase;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};
use time::OffsetDateTime;

/// The functions that return the current time.
const TIME_FUNCTIONS: [&str; 3] = ["now", "statement_timestamp", "clock_timestamp"];

/// A pool with one connection, whose current time is the last one that was set.
pub struct VirtualClock {
    pool: PgPool,
}

impl VirtualClock {
    pub async fn on(database: &TestDatabase, begin: OffsetDateTime) -> Self {
        database.execute("create schema virtual_time").await;
        for function in TIME_FUNCTIONS {
            let sql = format!(
                "create function virtual_time.{function}() returns timestamptz language sql stable
                 return current_setting('virtual_time.moment')::timestamptz"
            );
            sqlx::query(AssertSqlSafe(sql)).execute(database.pool()).await.expect("the function is created");
        }
        let options =
            PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None).after_connect(
                |conn, _| {
                    Box::pin(async move {
                        // Uses the settings of a runner's connections. The data of a simulation
                        // need not survive a crash.
                        let settings =
                        "set search_path = virtual_time, public, pg_catalog; set synchronous_commit = off;
                                    set plan_cache_mode = force_generic_plan; set jit = off";
                        sqlx::raw_sql(settings).execute(conn).await?;
                        Ok(())
                    })
                },
            );
        let options = options.test_before_acquire(false);
        let pool = options.connect_with(database.pool().connect_options().as_ref().clone()).await;
        let clock = Self { pool: pool.expect("the database responds") };
        clock.set(begin).await;
        clock
    }

    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Sets the time for all following statements.
    pub async fn set(&self, moment: OffsetDateTime) {
        sqlx::query("select set_config('virtual_time.moment', $1::text, false)")
            .bind(moment)
            .execute(&self.pool)
            .await
            .expect("the clock is set");
    }
}

impl TestDatabase {
    /// Creates a database with the current schema whose clock runs ahead of the machine's clock by
    /// this number of seconds, or behind it if the number is negative.
    pub async fn with_clock_shifted(seconds: i64) -> Self {
        let database = Self::create().await;
        database.execute("create schema shifted_time").await;
        for function in TIME_FUNCTIONS {
            let volatility = if function == "clock_timestamp" { "volatile" } else { "stable" };
            let sql = format!(
                "create function shifted_time.{function}() returns timestamptz language sql {volatility}
                 return pg_catalog.{function}() + interval '{seconds} seconds'"
            );
            sqlx::query(AssertSqlSafe(sql)).execute(database.pool()).await.expect("the function is created");
        }
        sqlx::query(
            "do $$ begin execute format(
                 'alter database %I set search_path = shifted_time, public, pg_catalog', current_database());
             end $$",
        )
        .execute(database.pool())
        .await
        .expect("the search path is set");
        database.reconnect().await
    }
}
