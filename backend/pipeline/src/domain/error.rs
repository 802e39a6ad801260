//! Errors that several modules share. Errors of a single job are in `worker::job_error`.
use super::transient::transient;
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
