//! What the store can answer besides rows.

/// Why the store refused.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No row with that id (in that collection).
    #[error("there is no {what} {id}")]
    NotFound {
        /// `face`, `image`, …
        what: &'static str,
        /// As asked for.
        id: String,
    },
    /// A unique name is taken, or the row's state does not allow the change.
    #[error("{0}")]
    Conflict(String),
    /// A value that the schema does not allow; the sentence names it and what is allowed.
    #[error("{0}")]
    Invalid(String),
    /// A cursor that this service did not hand out.
    #[error("the cursor is not one that this service handed out")]
    BadCursor,
    /// The blob store failed.
    #[error("the blob store failed: {0}")]
    Blob(String),
    /// The server is too old or lacks pgvector; the sentence says what was found and what is needed.
    #[error("{0}")]
    Unsupported(String),
    /// The schema could not be brought up to date.
    #[error("the database schema could not be migrated: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
    /// The connection broke while a transaction was being committed.
    #[error("the connection to the database broke before it said whether the change was made: {0}")]
    CommitUnknown(#[source] sqlx::Error),
}

impl StoreError {
    pub(crate) fn not_found(what: &'static str, id: impl ToString) -> Self {
        Self::NotFound { what, id: id.to_string() }
    }
}
