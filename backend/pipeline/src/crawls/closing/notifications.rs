//! Enqueues the jobs that follow the end of a crawl: the message to its webhook and its next run.
//! The module `worker` runs these jobs. The jobs are enqueued in the transaction that ends the
//! crawl. They are therefore not lost, and they do not exist if the transaction is rolled back.

use crate::domain::jobs::{NextRun, WebhookMessage};
use crate::domain::{ChangeError, CrawlOptions};
use domain::CrawlState;
use queue::Queue;
use store::crawls::{Crawl, CrawlProgress};
use store::{Store, Tx};

/// Enqueues the jobs for a crawl that has ended. The jobs belong to no group, so that a
/// cancellation does not cancel the message to the webhook.
pub(crate) async fn ended(
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
        jobs.push(WebhookMessage::new(crawl).job(crawl.collection_id));
    }
    if let Some(every) = options.every
        && crawl.state != CrawlState::Cancelled
        && crawl.series_id.is_some()
    {
        let at = store.schedule_next_run(tx.conn(), crawl.id, every.duration()).await?;
        jobs.push(NextRun { crawl_id: crawl.id }.job(crawl.collection_id, at));
    }
    queue.enqueue(tx.conn(), &jobs).await?;
    Ok(())
}

/// Returns the crawl in the form of a webhook message. The message is the same as the response to
/// `GET /crawls/{id}`, except that it omits the seeds and the options, which can be long.
pub(crate) fn report(crawl: &Crawl, progress: &CrawlProgress) -> serde_json::Value {
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
