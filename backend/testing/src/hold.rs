//! Stops a process during its work, at a database statement that the test selects.

use crate::TestDatabase;
use sqlx::{AssertSqlSafe, PgConnection};

/// The advisory lock for which the held statements wait.
const LOCK: i64 = 0x686f_6c64;

/// Makes statements of one kind wait in a database until [`Hold::release`] is called.
pub struct Hold {
    connection: PgConnection,
    table: &'static str,
}

impl Hold {
    /// Makes every `event` (`insert` or `update`) on `table` wait if `condition` (SQL) is true when
    /// the event begins. Panics if the database fails.
    pub async fn at(
        database: &TestDatabase,
        event: &'static str,
        table: &'static str,
        condition: &'static str,
    ) -> Self {
        let mut connection = database.connection().await;
        for statement in [
            format!("select pg_advisory_lock({LOCK})"),
            format!(
                "create function hold() returns trigger language plpgsql as $$ begin
                   if {condition} then perform pg_advisory_xact_lock_shared({LOCK}); end if;
                   return null;
                 end $$"
            ),
            format!(
                "create trigger hold before {event} on {table} for each statement execute function hold()"
            ),
        ] {
            run(&mut connection, statement).await;
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
            format!("select pg_advisory_unlock({LOCK})"),
        ] {
            run(&mut self.connection, statement).await;
        }
    }
}

async fn run(connection: &mut PgConnection, statement: String) {
    sqlx::query(AssertSqlSafe(statement)).execute(connection).await.expect("the statement runs");
}
