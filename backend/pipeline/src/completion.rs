//! Ends a crawl in the transaction that settles its last row. Cancellation is in `crawl::control`.
//!
//! Two transactions can settle the last two rows at the same time, and neither sees the change of
//! the other. Near the end of a crawl, each transaction therefore locks the crawl's row first. They
//! run one after the other, and the last one sees that no row is queued. Far from the end,
//! transactions do not lock the row, so that workers do not wait for each other.
//! `Crawls::reconcile` ends a crawl that this check misses, for example because a worker was
//! suspended while all others finished.

pub(crate) mod notifications;

use crate::domain::NotificationError;
use queue::{Claim, Queue, QueueError};
use store::{Store, StoreError, Tx};
use uuid::Uuid;

/// Number of queued rows below which a crawl counts as near its end.
///
/// It exceeds the number of concurrent transactions (Postgres allows 100 connections by default),
/// so that all transactions of the last rows acquire the lock. It is not much larger, because the
/// transactions of a crawl near its end run one after the other.
const NEAR_THE_END: i64 = 256;

/// Checks in a transaction that settles a row whether the crawl has ended.
pub(crate) struct CompletionCheck {
    crawl: Uuid,
    near_the_end: bool,
}

impl CompletionCheck {
    /// Begins the check. Call it right after the call to the queue and before any other statement,
    /// so that the crawl's row is locked before any ledger row.
    ///
    /// # Errors
    /// Fails with [`QueueError::Stale`] if the crawl has ended. A cancellation runs before the call
    /// to the queue or waits for it, so nothing is stored after a cancellation.
    pub(crate) async fn begin(
        store: &Store,
        tx: &mut Tx,
        crawl: Uuid,
        claim: Claim,
    ) -> Result<Self, NotificationError> {
        let state = store.crawl_state(tx.conn(), crawl).await?;
        if !matches!(state.as_deref(), Some("running" | "paused")) {
            return Err(QueueError::Stale(claim.id).into());
        }
        let near_the_end = store.queued_up_to(tx.conn(), crawl, NEAR_THE_END).await? < NEAR_THE_END;
        if near_the_end {
            store.lock_crawl(tx.conn(), crawl).await?;
        }
        Ok(Self { crawl, near_the_end })
    }

    /// Ends the crawl if no row is queued. Call it as the last step before the commit.
    pub(crate) async fn end(
        self,
        store: &Store,
        queue: &Queue,
        tx: &mut Tx,
    ) -> Result<(), NotificationError> {
        if self.near_the_end {
            finish_if_done(store, queue, tx, self.crawl).await?;
        }
        Ok(())
    }
}

/// Ends the crawl if it is live and no row is queued. Returns `true` if it ended the crawl. The
/// caller must have locked the crawl's row.
///
/// The state becomes `completed`, with the reasons in the ledger. It becomes `failed` if neither a
/// page nor an image could be fetched.
pub(crate) async fn finish_if_done(
    store: &Store,
    queue: &Queue,
    tx: &mut Tx,
    crawl: Uuid,
) -> Result<bool, NotificationError> {
    if store.queued_up_to(tx.conn(), crawl, 1).await? > 0 {
        return Ok(false);
    }
    let (state, error) = match verdict(&store.outcomes(tx.conn(), crawl).await?) {
        None => ("completed", None),
        Some(error) => ("failed", Some(error)),
    };
    match store.set_crawl_state(tx.conn(), crawl, &["running", "paused"], state, error.as_deref()).await {
        Ok(crawl) => {
            notifications::ended(store, queue, tx, &crawl).await?;
            Ok(true)
        }
        // Another transaction cancelled or ended the crawl. That state is kept.
        Err(StoreError::Conflict(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns `None` if the crawl fetched something, and otherwise a sentence with the reasons.
fn verdict(outcomes: &[store::ledger::Outcomes]) -> Option<String> {
    let got_something = outcomes
        .iter()
        .any(|o| matches!(o.state.as_str(), "fetched" | "processed" | "duplicate" | "suppressed"));
    if got_something {
        return None;
    }
    let reasons: Vec<String> = outcomes
        .iter()
        .map(|o| format!("{} ({})", o.reason.as_deref().unwrap_or(&o.state), o.count))
        .collect();
    let refused = |reason: &str| outcomes.iter().any(|o| o.reason.as_deref() == Some(reason));
    let remedies: String = REMEDIES
        .iter()
        .filter(|(reason, _)| refused(reason))
        .map(|(_, remedy)| format!("; {remedy}"))
        .collect();
    Some(format!("nothing could be fetched: {}{remedies}", reasons.join(", ")))
}

/// Sentences for the reasons for which the service itself rejects a fetch. They describe what its
/// operator can change.
const REMEDIES: [(&str, &str); 2] = [
    ("forbidden_address", "add the range of the private address to CRAWL_ALLOW_PRIVATE to allow it"),
    ("forbidden_url", "add the port of the URL to CRAWL_PORTS to allow it"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use store::ledger::Outcomes;

    #[test]
    fn a_crawl_that_got_nothing_says_why_and_what_can_be_done() {
        let outcomes = |state: &str, reason: &str| Outcomes {
            state: state.into(),
            reason: Some(reason.into()),
            count: 2,
        };
        let missing = outcomes("failed", "http_404");
        assert_eq!(verdict(&[missing]).as_deref(), Some("nothing could be fetched: http_404 (2)"));
        let guarded = verdict(&[outcomes("skipped", "forbidden_address")]).unwrap_or_default();
        assert!(
            guarded.contains("forbidden_address (2); ") && guarded.contains("CRAWL_ALLOW_PRIVATE"),
            "{guarded}"
        );
        let twice = verdict(&[outcomes("skipped", "forbidden_url"), outcomes("failed", "forbidden_url")]);
        assert_eq!(twice.unwrap_or_default().matches("CRAWL_PORTS").count(), 1, "of pages and of images");
        assert_eq!(verdict(&[outcomes("skipped", "out_of_scope"), outcomes("fetched", "")]), None);
    }
}
