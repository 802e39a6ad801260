//! Errors that several modules share, and which of them are transient errors of the database
//! ([`store::retried`]). Errors of a single job are in `crawls::job_error`.
//!
//! A transaction that calls the queue for a claim can safely be repeated. If the first attempt was
//! committed, the claim is stale in the second attempt.
use queue::QueueError;
use store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum CrawlError {
    /// A seed or an option is invalid. The reason states what is allowed.
    #[error("{field}: {reason}")]
    Invalid { field: &'static str, reason: String },
    /// The store failed, the crawl does not exist, or its state does not allow the change.
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl CrawlError {
    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { field, reason: reason.into() }
    }
}

/// Why a transaction that changes rows and their jobs together failed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl From<ChangeError> for CrawlError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Store(error) => error.into(),
            ChangeError::Queue(error) => error.into(),
        }
    }
}

transient!(CrawlError, ChangeError);

macro_rules! transient {
    ($($error:ident),*) => {
        $(impl store::db::transient::Transient for $error {
            fn cause(&self) -> Option<store::db::transient::Cause> {
                match self {
                    Self::Store(error) => error.cause(),
                    Self::Queue(error) => error.database().and_then(store::db::transient::Cause::of),
                    #[allow(unreachable_patterns, reason = "some have further errors, which do not pass")]
                    _ => None,
                }
            }
        })*
    };
}

pub(crate) use transient;
