//! Ends a crawl after the transaction that settles its last row. Cancellation is in
//! `crawl::control`.
//!
//! Two transactions can settle the last two rows at the same time, and neither sees the change of
//! the other. The check for queued rows therefore runs after the commit. The check that follows the
//! last commit sees all changes, so it ends the crawl. The check locks the crawl's row only if no
//! row is queued, so that it does not make workers wait for each other.
//!
//! `Crawls::reconcile` ends a crawl whose last check failed or did not run, for example because the
//! process ended after the commit.

pub(crate) mod notifications;

use crate::domain::ChangeError;
use domain::{CrawlState, Reason};
use queue::{Claim, Queue, QueueError};
use store::crawls::ledger::Outcomes;
use store::{Store, StoreError, Tx, retried};
use uuid::Uuid;

/// Checks that the crawl is live. Call it in a transaction that settles a row, right after the call
/// to the queue and before any other statement.
///
/// # Errors
/// Fails with [`QueueError::Stale`] if the crawl has ended or was deleted. A cancellation runs
/// before the call to the queue or waits for it, so nothing is stored after a cancellation.
pub(crate) async fn check_live(
    store: &Store,
    tx: &mut Tx,
    crawl: Uuid,
    claim: Claim,
) -> Result<(), ChangeError> {
    match store.crawl_state(tx.conn(), crawl).await? {
        Some(state) if state.is_live() => Ok(()),
        _ => Err(QueueError::Stale(claim.id).into()),
    }
}

/// Ends the crawl if no row is queued. Call it after the commit of a transaction that settled a
/// row. The row is settled in any case. A failure is therefore only logged, and `Crawls::reconcile`
/// ends the crawl later.
pub(crate) async fn end_if_done(store: &Store, queue: &Queue, crawl: Uuid) {
    let ended: Result<(), ChangeError> = retried("end_crawl", || async {
        if store.has_queued_rows(store.pool(), crawl).await? {
            return Ok(());
        }
        let mut tx = store.begin().await?;
        match store.lock_crawl(tx.conn(), crawl).await {
            // The crawl was deleted.
            Err(StoreError::NotFound { .. }) => return Ok(()),
            locked => locked?,
        };
        finish_if_done(store, queue, &mut tx, crawl).await?;
        Ok(tx.commit().await?)
    })
    .await;
    if let Err(error) = ended {
        tracing::warn!(%crawl, %error, "failed to check whether the crawl has ended; reconciliation will check again");
    }
}

/// Ends the crawl if it is live and no row is queued. Returns `true` if it ended the crawl. The
/// caller must have locked the crawl's row. The state becomes `completed`, with the reasons in the
/// ledger. It becomes `failed` if neither a page nor an image could be fetched.
pub(crate) async fn finish_if_done(
    store: &Store,
    queue: &Queue,
    tx: &mut Tx,
    crawl: Uuid,
) -> Result<bool, ChangeError> {
    // Several workers can find that no row is queued. Only the first one reads the outcomes.
    let live = store.crawl_state(tx.conn(), crawl).await?.is_some_and(CrawlState::is_live);
    if !live || store.has_queued_rows(tx.conn(), crawl).await? {
        return Ok(false);
    }
    let (state, error) = match failure_reason(&store.outcomes(tx.conn(), crawl).await?) {
        None => (CrawlState::Completed, None),
        Some(error) => (CrawlState::Failed, Some(error)),
    };
    let ended = store.set_crawl_state(tx.conn(), crawl, &CrawlState::LIVE, state, error.as_deref()).await?;
    notifications::ended(store, queue, tx, &ended).await?;
    Ok(true)
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
