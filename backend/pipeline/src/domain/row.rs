//! A row of the page ledger or of the image ledger that a job has to settle. The SQL statements are
//! in the crate `store`.

use domain::{Reason, Unprocessed};
use store::crawls::ledger::Ledger;
use store::crawls::pages::{ImageUrlResult, PageResult};
use store::{Store, StoreError, Tx};
use uuid::Uuid;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    ledger: Ledger,
    id: Uuid,
}

/// The final state of a row without a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowEnd<'a> {
    pub(crate) state: Unprocessed,
    pub(crate) reason: &'a Reason,
    /// The human-readable reason.
    pub(crate) detail: &'a str,
    /// The HTTP status, if the server responded.
    pub(crate) status: Option<u16>,
}

impl Row {
    pub(crate) fn new(ledger: Ledger, id: Uuid) -> Self {
        Self { ledger, id }
    }

    /// Settles the row without a result. Has no effect if the row is not queued.
    pub(crate) async fn settle(self, store: &Store, tx: &mut Tx, end: RowEnd<'_>) -> Result<(), StoreError> {
        let RowEnd { state, reason, detail, status } = end;
        match self.ledger {
            Ledger::Pages => {
                let result = PageResult {
                    reason: Some(reason.clone()),
                    detail: Some(detail.into()),
                    status: status.map(i32::from),
                    ..PageResult::new(state.into())
                };
                store.settle_page(tx.conn(), self.id, &result).await
            }
            Ledger::ImageUrls => {
                let result = ImageUrlResult {
                    state: state.into(),
                    reason: Some(reason.clone()),
                    detail: Some(detail),
                    image: None,
                };
                store.settle_image_url(tx.conn(), self.id, result).await
            }
        }
    }

    /// Returns `page` or `image`, for metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self.ledger {
            Ledger::Pages => "page",
            Ledger::ImageUrls => "image",
        }
    }
}
