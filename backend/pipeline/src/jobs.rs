//! The job bodies: `scan_page`, `scan_image`, `start_crawl`, `deliver_webhook`, `erase_collection` and `cluster_collection`.

mod clustering;
mod context;
mod crowd;
mod deliveries;
mod erase_collection;
mod harvest;
mod hops;
mod image;
pub(crate) mod ledger;
mod maps;
mod next_run;
mod page;
pub(crate) mod payload;
mod robots;
pub(crate) mod setback;
mod turns;
mod visits;
mod webhook;
mod yields;

use crate::{Crawls, Ingest};
use context::Context;
use crawler::Fetcher;
use queue::{Handler, Queue};
use std::collections::HashMap;
use std::sync::Arc;
use store::Store;

/// Kind of the job that fetches a page.
pub const SCAN_PAGE: &str = "scan_page";
/// Kind of the job that fetches and stores an image.
pub const SCAN_IMAGE: &str = "scan_image";

/// Kind of the job that begins the next run of a crawl that starts again.
pub const START_CRAWL: &str = "start_crawl";
/// Kind of the job that tells a crawl's webhook that it has ended.
pub const DELIVER_WEBHOOK: &str = "deliver_webhook";
/// Kind of the job that erases what is in a deleted collection.
pub const ERASE_COLLECTION: &str = "erase_collection";
/// Kind of the job that finds out which of a collection's faces are one person.
pub const CLUSTER_COLLECTION: &str = "cluster_collection";

pub use deliveries::DELIVERY_PLACES;
pub use erase_collection::erase_collection;

/// The handlers of a worker, by kind.
pub fn handlers(
    store: Store,
    queue: Queue,
    crawls: Crawls,
    ingest: Ingest,
    fetcher: Fetcher,
) -> HashMap<String, Arc<dyn Handler>> {
    let webhook = webhook::DeliverWebhook::new(store.clone(), crawls.config(), fetcher.clone());
    let erase = erase_collection::EraseCollection::new(store.clone(), crawls.clone(), ingest.blobs().clone());
    let clustering = cluster_handler(store.clone(), queue.clone());
    let context = Arc::new(Context::new(store, queue, &crawls, ingest, fetcher));
    HashMap::from([
        (SCAN_PAGE.to_owned(), Arc::new(page::ScanPage(context.clone())) as Arc<dyn Handler>),
        (SCAN_IMAGE.to_owned(), Arc::new(image::ScanImage(context))),
        (START_CRAWL.to_owned(), Arc::new(next_run::StartCrawl(crawls))),
        (DELIVER_WEBHOOK.to_owned(), Arc::new(webhook)),
        (ERASE_COLLECTION.to_owned(), Arc::new(erase)),
        (CLUSTER_COLLECTION.to_owned(), clustering),
    ])
}

/// The handler of [`CLUSTER_COLLECTION`] alone: it needs no models.
pub fn cluster_handler(store: Store, queue: Queue) -> Arc<dyn Handler> {
    Arc::new(clustering::ClusterCollection::new(store, queue))
}

/// Feeds `facecrawl_crawl_outcomes_total{ledger,state,reason}`.
pub(crate) fn count_outcome(ledger: &'static str, state: &'static str, reason: Option<&str>) {
    let reason = reason.unwrap_or("none").to_owned();
    metrics::counter!("facecrawl_crawl_outcomes_total", "ledger" => ledger, "state" => state, "reason" => reason)
        .increment(1);
}
