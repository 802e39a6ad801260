//! Connection, transaction, migration.
use crate::StoreError;
use sqlx::{PgConnection, PgPool, Postgres, Transaction};

/// Where the database is and how many connections may be open.
#[derive(Clone, Debug)]
pub struct Config {
    /// `postgres://…`; may name a socket folder with `?host=`.
    pub url: String,
    /// Pool size.
    pub max_connections: u32,
}

/// A handle on the database; cheap to clone.
#[derive(Clone)]
pub struct Store {
    pool: PgPool,
}

/// A transaction; rolls back when dropped.
pub struct Tx(Transaction<'static, Postgres>);

impl Store {
    /// Connects (lazily retried for a few seconds while the server comes up) and checks Postgres >= 15 and pgvector >= 0.8.4.
    pub async fn connect(_config: &Config) -> Result<Self, StoreError> {
        todo!()
    }
    /// Wraps a pool (tests).
    pub fn from_pool(pool: PgPool) -> Self {
        Self { pool }
    }
    /// Brings the schema up to date under an advisory lock; says how many migrations ran.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        todo!()
    }
    /// A short hex digest of all migrations in this build; changes whenever the schema does.
    pub fn schema_fingerprint() -> String {
        todo!()
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
        todo!()
    }
}

impl Tx {
    /// The connection to pass to calls that take part.
    pub fn conn(&mut self) -> &mut PgConnection {
        &mut self.0
    }
    /// Makes everything since `begin` permanent.
    pub async fn commit(self) -> Result<(), StoreError> {
        Ok(self.0.commit().await?)
    }
}
