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
use domain::{CrawlState, Reason};
use queue::{Claim, Queue, QueueError};
use store::ledger::Outcomes;
use store::{Store, StoreError, Tx};
use uuid::Uuid;

/// Number of queued rows below which a crawl is treated as near its end.
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
        if !state.is_some_and(CrawlState::is_live) {
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
    let (state, error) = match failure_reason(&store.outcomes(tx.conn(), crawl).await?) {
        None => (CrawlState::Completed, None),
        Some(error) => (CrawlState::Failed, Some(error)),
    };
    match store.set_crawl_state(tx.conn(), crawl, &CrawlState::LIVE, state, error.as_deref()).await {
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
fn failure_reason(outcomes: &[Outcomes]) -> Option<String> {
    if outcomes.iter().any(|outcome| outcome.fetched) {
        return None;
    }
    let reason = |outcome: &Outcomes| outcome.reason.as_ref().map_or("no reason".into(), Reason::code);
    let reasons: Vec<String> =
        outcomes.iter().map(|outcome| format!("{} ({})", reason(outcome), outcome.count)).collect();
    let refused = |reason: &Reason| outcomes.iter().any(|outcome| outcome.reason.as_ref() == Some(reason));
    let remedies: String = REMEDIES
        .iter()
        .filter(|(reason, _)| refused(reason))
        .map(|(_, remedy)| format!("; {remedy}"))
        .collect();
    Some(format!("nothing could be fetched: {}{remedies}", reasons.join(", ")))
}

/// Sentences for the reasons for which the service itself rejects a fetch. They describe what its
/// operator can change.
const REMEDIES: [(Reason, &str); 2] = [
    (Reason::ForbiddenAddress, "add the range of the private address to CRAWL_ALLOW_PRIVATE to allow it"),
    (Reason::ForbiddenUrl, "add the port of the URL to CRAWL_PORTS to allow it"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crawl_that_got_nothing_says_why_and_what_can_be_done() {
        let outcomes = |reason| Outcomes { fetched: false, reason: Some(reason), count: 2 };
        let missing = outcomes(Reason::Http(404));
        assert_eq!(failure_reason(&[missing]).as_deref(), Some("nothing could be fetched: http_404 (2)"));
        let guarded = failure_reason(&[outcomes(Reason::ForbiddenAddress)]).unwrap_or_default();
        assert!(
            guarded.contains("forbidden_address (2); ") && guarded.contains("CRAWL_ALLOW_PRIVATE"),
            "{guarded}"
        );
        let twice = failure_reason(&[outcomes(Reason::ForbiddenUrl), outcomes(Reason::ForbiddenUrl)]);
        assert_eq!(twice.unwrap_or_default().matches("CRAWL_PORTS").count(), 1, "of pages and of images");
        assert_eq!(
            failure_reason(&[
                outcomes(Reason::OutOfScope),
                Outcomes { fetched: true, reason: None, count: 1 }
            ]),
            None
        );
    }
}
