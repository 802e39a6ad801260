//! Errors that several modules share. Errors of a single job are in `worker::job_error`.
use super::transient::transient;
use queue::QueueError;
use store::StoreError;

/// Why an operation on a crawl failed.
#[derive(Debug, thiserror::Error)]
pub enum CrawlError {
    /// A seed or an option is invalid. The reason states what is allowed.
    #[error("{field}: {reason}")]
    Invalid {
        /// The name of the field.
        field: &'static str,
        /// The human-readable reason.
        reason: String,
    },
    /// The store failed, the crawl does not exist, or its state does not allow the change.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl CrawlError {
    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { field, reason: reason.into() }
    }
}

/// Why a transaction that settles a ledger row or ends a crawl failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotificationError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl From<NotificationError> for CrawlError {
    fn from(error: NotificationError) -> Self {
        match error {
            NotificationError::Store(error) => error.into(),
            NotificationError::Queue(error) => error.into(),
        }
    }
}

transient!(CrawlError, NotificationError);
