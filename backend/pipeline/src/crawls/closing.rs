//! Ends a crawl after the transaction that settles its last row, and enqueues the jobs that follow:
//! the message to its webhook and its next run. Cancellation is in `control`.
//!
//! Two transactions can settle the last two rows at the same time, and neither sees the change of
//! the other. The check for queued rows therefore runs after the commit. The check that follows the
//! last commit sees all changes, so it ends the crawl. The check locks the crawl's row only if no
//! row is queued, so that it does not make workers wait for each other.
//!
//! `Crawls::reconcile` ends a crawl whose last check failed or did not run. The jobs that follow
//! are enqueued in the transaction that ends the crawl.
use crate::Crawls;
use crate::domain::jobs::{NextRun, WebhookMessage};
use crate::domain::{ChangeError, CrawlError, CrawlOptions, forget_jobs, jobs};
use domain::{CrawlState, Reason};
use queue::{ClaimedJob, Handler, Queue, QueueError, RunEnd};
use store::crawls::ledger::LedgerCount;
use store::crawls::{Crawl, CrawlProgress};
use store::{Store, StoreError, Tx, retried};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Ends the crawl if no row is queued. Call it after the commit of a transaction that settled a
/// row. The row is settled in any case. A failure is therefore only logged, and `Crawls::reconcile`
/// ends the crawl later.
pub(crate) async fn end_if_done(store: &Store, queue: &Queue, crawl: Uuid) {
    let ended: Result<(), ChangeError> = retried("end_crawl", || async {
        if store.crawls().has_queued_rows(store.pool(), crawl).await? {
            return Ok(());
        }
        let mut tx = store.begin().await?;
        match store.crawls().lock(tx.conn(), crawl).await {
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
    let is_live = store.crawls().state(tx.conn(), crawl).await?.is_some_and(CrawlState::is_live);
    if !is_live || store.crawls().has_queued_rows(tx.conn(), crawl).await? {
        return Ok(false);
    }
    let (state, error) = match failure_reason(&store.ledger().outcomes(tx.conn(), crawl).await?) {
        None => (CrawlState::Completed, None),
        Some(error) => (CrawlState::Failed, Some(error)),
    };
    let ended =
        store.crawls().set_state(tx.conn(), crawl, &CrawlState::LIVE, state, error.as_deref()).await?;
    enqueue_followups(store, queue, tx, &ended).await?;
    Ok(true)
}

/// Returns `None` if the crawl fetched something, and otherwise a sentence with the reasons.
fn failure_reason(outcomes: &[LedgerCount]) -> Option<String> {
    if outcomes.iter().any(|outcome| outcome.fetched) {
        return None;
    }
    let reason = |outcome: &LedgerCount| outcome.reason.as_ref().map_or("no reason".into(), Reason::code);
    let reasons: Vec<String> =
        outcomes.iter().map(|outcome| format!("{} ({})", reason(outcome), outcome.count)).collect();
    let occurred = |reason: &Reason| outcomes.iter().any(|outcome| outcome.reason.as_ref() == Some(reason));
    let remedies: String = REMEDIES
        .iter()
        .filter(|(reason, _)| occurred(reason))
        .map(|(_, remedy)| format!("; {remedy}"))
        .collect();
    Some(format!("nothing could be fetched: {}{remedies}", reasons.join(", ")))
}

/// Settings with which the operator can allow a fetch that the service itself rejected.
const REMEDIES: [(Reason, &str); 2] = [
    (Reason::ForbiddenAddress, "add the range of the private address to CRAWL_ALLOW_PRIVATE to allow it"),
    (Reason::ForbiddenUrl, "add the port of the URL to CRAWL_PORTS to allow it"),
];

/// Enqueues the jobs for a crawl that has ended. The jobs belong to no group, so that a
/// cancellation does not cancel the message to the webhook.
pub(crate) async fn enqueue_followups(
    store: &Store,
    queue: &Queue,
    tx: &mut Tx,
    crawl: &Crawl,
) -> Result<(), ChangeError> {
    metrics::counter!("facecrawl_crawls_total", "event" => crawl.state.as_str()).increment(1);
    // A scan of local files has different options, without webhook and interval.
    let Ok(options) = serde_json::from_value::<CrawlOptions>(crawl.options.clone()) else { return Ok(()) };
    let mut jobs = Vec::new();
    if options.webhook.is_some() {
        jobs.push(WebhookMessage::new(crawl).queue_job(crawl.collection_id));
    }
    if let Some(every) = options.every
        && crawl.state != CrawlState::Cancelled
        && crawl.series_id.is_some()
    {
        let at = store.crawls().schedule_next_run(tx.conn(), crawl.id, every.duration()).await?;
        jobs.push(NextRun { crawl_id: crawl.id }.queue_job(crawl.collection_id, at));
    }
    queue.enqueue(tx.conn(), &jobs).await?;
    Ok(())
}

/// Returns the crawl in the form of a webhook message. The message is the same as the response to
/// `GET /crawls/{id}`, except that it omits the seeds and the options, which can be long.
pub(crate) fn webhook_message(crawl: &Crawl, progress: &CrawlProgress) -> serde_json::Value {
    let time = |at: time::OffsetDateTime| at.format(&time::format_description::well_known::Rfc3339).ok();
    serde_json::json!({
        "id": crawl.id,
        "state": crawl.state,
        "kind": crawl.kind,
        "collection": crawl.collection,
        "created_at": time(crawl.created_at),
        "finished_at": crawl.finished_at.and_then(time),
        "series_id": crawl.series_id,
        "next_run_at": crawl.next_run_at.and_then(time),
        "error": crawl.error,
        "counts": {
            "pages": progress.pages,
            "images": progress.images,
            "videos": progress.videos,
            "faces": progress.faces,
            "over_limit": progress.over_limit,
            "links_left_out": progress.links_left_out,
        },
        "reasons": progress.reasons,
    })
}

pub(crate) struct StartCrawl(pub(crate) Crawls);

#[async_trait::async_trait]
impl Handler for StartCrawl {
    async fn run(&self, job: ClaimedJob, _cancel: CancellationToken) -> RunEnd {
        let run: NextRun = match jobs::parse(&job.payload) {
            Ok(run) => run,
            Err(error) => return RunEnd::Discard(error),
        };
        match self.0.start_next(run.crawl_id, job.claim).await {
            Ok(started) => {
                if let Some(crawl) = started {
                    tracing::info!(crawl = %crawl.id, series = ?crawl.series_id, "started the next run of a crawl");
                }
                RunEnd::Settled
            }
            Err(CrawlError::Queue(QueueError::Stale(_))) => RunEnd::Stale,
            // The crawl was deleted after its next run was scheduled.
            Err(CrawlError::Store(StoreError::NotFound { .. })) => RunEnd::Done,
            Err(error @ CrawlError::Store(StoreError::Invalid(_))) => RunEnd::Discard(error.to_string()),
            Err(error) => RunEnd::Retry(error.to_string(), None),
        }
    }
}

/// Error text in the record of a scan whose lease expired.
const SCAN_EXPIRED: &str = "the scan command ended before the scan was complete; run it again, and stored images are not analysed again";

/// Detail of a video whose scan ended first.
pub(crate) const SCAN_ENDED: &str =
    "the scan ended before the end of the video; scan the file again with the same options to continue";

/// Ends the scans whose lease expired and returns their number. The state becomes `failed`; rows
/// that are still queued are skipped as `not_scanned`.
pub(crate) async fn end_expired_scans(store: &Store, queue: &Queue) -> Result<u64, ChangeError> {
    let mut ended = 0;
    for scan in store.crawls().expired_scans().await? {
        let mut tx = store.begin().await?;
        match store.suppressions().lock_for_crawl(tx.conn(), scan).await {
            // The scan was deleted in the meantime.
            Err(StoreError::NotFound { .. }) => continue,
            locked => locked?,
        };
        if store.crawls().end_expired_scan(tx.conn(), scan, SCAN_EXPIRED).await? {
            let skipped = store.crawls().skip_queued(tx.conn(), scan, Reason::NotScanned, i64::MAX).await?;
            forget_jobs(queue, &mut tx, &skipped.jobs).await?;
            tx.commit().await?;
            tracing::warn!(%scan, "scan lease expired; scan ended as failed");
            ended += 1;
        }
    }
    let mut tx = store.begin().await?;
    let jobs = store.crawled_videos().end_videos_of_ended_scans(tx.conn(), SCAN_ENDED).await?;
    forget_jobs(queue, &mut tx, &jobs).await?;
    tx.commit().await?;
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_reason_lists_causes_with_remedies() {
        let outcome = |reason| LedgerCount { fetched: false, reason: Some(reason), count: 2 };
        let missing = outcome(Reason::Http(404));
        assert_eq!(failure_reason(&[missing]).as_deref(), Some("nothing could be fetched: http_404 (2)"));
        let forbidden = failure_reason(&[outcome(Reason::ForbiddenAddress)]).unwrap_or_default();
        assert!(
            forbidden.contains("forbidden_address (2); ") && forbidden.contains("CRAWL_ALLOW_PRIVATE"),
            "{forbidden}"
        );
        let repeated = failure_reason(&[outcome(Reason::ForbiddenUrl), outcome(Reason::ForbiddenUrl)]);
        assert_eq!(repeated.unwrap_or_default().matches("CRAWL_PORTS").count(), 1, "the remedy appears once");
        assert_eq!(
            failure_reason(&[
                outcome(Reason::OutOfScope),
                LedgerCount { fetched: true, reason: None, count: 1 }
            ]),
            None
        );
    }
}
