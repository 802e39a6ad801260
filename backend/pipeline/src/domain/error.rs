//! Errors that several modules share.
use super::transient::transient;
use queue::QueueError;
use store::StoreError;

/// Why a crawl was refused.
#[derive(Debug, thiserror::Error)]
pub enum CrawlError {
    /// A seed or an option is wrong: which, and what is allowed.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// A sentence.
        reason: String,
    },
    /// The store failed, has no such crawl, or the crawl's state does not allow the change.
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

/// Why the transaction that ends a crawl failed.
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
