#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No row (of the collection) has this id or name.
    #[error("there is no {what} {id}")]
    NotFound {
        /// What was looked up, such as `face` or `image`.
        what: &'static str,
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
    pub(crate) fn not_found(what: &'static str, id: impl ToString) -> Self {
        Self::NotFound { what, id: id.to_string() }
    }
}
