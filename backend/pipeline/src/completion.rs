//! When a crawl ends: in the transaction that settles its last row.
//!
//! Two last rows can be settled at the same time, and neither transaction sees the other's. So whoever settles a row near the end locks the
//! crawl's row first, which lets those transactions pass one by one; the last of them sees that nothing is left. Far from the end nothing
//! is locked, so that workers do not wait for each other. A crawl that slips through (its last worker slept through all others'
//! ends) is found by `Crawls::reconcile`.

pub(crate) mod notifications;

use crate::domain::NotificationError;
use queue::{Claim, Queue, QueueError};
use store::{Store, StoreError, Tx};
use uuid::Uuid;

/// Rows from which the end counts as near: more than there are transactions open at once (Postgres allows 100 connections unless told otherwise), so that
/// the last ones to be settled all see it. Not much more, because near the end the transactions of a crawl pass one by one.
const NEAR_THE_END: i64 = 256;

/// Held through a transaction that settles a row.
pub(crate) struct CompletionCheck {
    crawl: Uuid,
    near_the_end: bool,
}

impl CompletionCheck {
    /// Said right after the word to the queue and before anything else, so that the crawl's row is locked before any ledger row is.
    ///
    /// # Errors
    /// The claim is stale when the crawl has ended: a cancellation waits for the word to the queue or comes before it, so nothing is stored
    /// after one.
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

    /// Last word before the commit: ends the crawl when nothing is queued any more.
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

/// Ends the crawl when it is live and nothing is queued; says whether it did. The crawl's row must be locked.
///
/// It is `completed`, with its reasons in the ledger; `failed` when neither a page could be fetched nor an image be had.
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
        // Cancelled, or ended by another: its end stands.
        Err(StoreError::Conflict(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// `None` for a crawl that got something; otherwise a sentence with the reasons.
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

/// What whoever runs the service can do where it refused by itself to fetch something.
const REMEDIES: [(&str, &str); 2] = [
    ("forbidden_address", "a private address is reached only where CRAWL_ALLOW_PRIVATE has its range"),
    ("forbidden_url", "a port is reached only where CRAWL_PORTS has it"),
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
