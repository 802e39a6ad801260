//! Tests that every constant SQL statement can be prepared against the migrated schema.
//!
//! The test reads the sources of the crates that contain SQL, finds each call of `sqlx::query`,
//! `query_as` and `query_scalar`, and evaluates the statement from literals, constants and
//! `concat!` macros ([`source`]). Postgres then checks its syntax, tables, columns and types. The
//! number of parameters must be the number of `.bind` calls, and a scalar has one column.
//!
//! `sqlx::query!` would check the Rust types as well. It would also compile the macros of sqlx,
//! require a file for each statement, and need a database for each change. Statements built with
//! `concat!` could not use it.
mod source;

use source::{Found, Statement};
use sqlx::{Either, Executor};
use std::path::Path;
use testing::TestDatabase;

/// Crates that contain SQL (`scripts/check-boundaries`).
const CRATES: [&str; 2] = ["queue", "store"];
/// Minimum number of statements. If there are fewer, the search no longer finds all statements.
const MIN_STATEMENTS: usize = 300;

#[testing::test]
async fn every_constant_statement_fits_the_schema() {
    let backend = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let found: Vec<Found> = CRATES.iter().map(|name| source::find(&backend.join(name).join("src"))).collect();
    let unknown: Vec<&String> = found.iter().flat_map(|found| &found.unknown).collect();
    assert!(unknown.is_empty(), "neither constant nor marked as built at run time: {unknown:#?}");
    let statements: Vec<&Statement> = found.iter().flat_map(|found| &found.statements).collect();
    assert!(statements.len() >= MIN_STATEMENTS, "only {} statements were found", statements.len());

    let database = TestDatabase::create().await;
    let mut wrong = Vec::new();
    for statement in &statements {
        if let Some(reason) = check(&database, statement).await {
            wrong.push(format!("{}: {reason}\n{}", statement.place, statement.sql));
        }
    }
    println!("{} statements were prepared", statements.len());
    assert!(wrong.is_empty(), "{} statements do not fit the schema:\n{}", wrong.len(), wrong.join("\n\n"));
}

/// Returns the errors of a statement.
async fn check(database: &TestDatabase, statement: &Statement) -> Option<String> {
    let mut conn = database.pool().acquire().await.unwrap();
    let sql = sqlx::AssertSqlSafe(statement.sql.clone());
    let described = match (&mut *conn).describe(sqlx::SqlSafeStr::into_sql_str(sql)).await {
        Ok(described) => described,
        Err(error) => return Some(error.to_string()),
    };
    let parameters = match described.parameters() {
        Some(Either::Left(types)) => types.len(),
        Some(Either::Right(count)) => count,
        None => 0,
    };
    if statement.binds.is_some_and(|binds| binds != parameters) {
        return Some(format!("{parameters} parameters, {:?} bound", statement.binds));
    }
    let columns = described.columns().len();
    let fits = match statement.function.as_str() {
        "query_scalar" => columns == 1,
        "query_as" => columns > 0,
        _ => true,
    };
    (!fits).then(|| format!("{columns} columns in a {}", statement.function))
}
