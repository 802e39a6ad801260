//! The handlers of the jobs `scan_page`, `scan_image`, `start_crawl`, `deliver_webhook`,
//! `erase_collection` and `cluster_collection`. The crate `queue` claims the jobs and calls the
//! handlers.

mod clustering;
mod context;
mod deliveries;
mod erase_collection;
mod fetch_policy;
mod host_concurrency;
mod host_throttle;
mod http_cache;
mod image;
mod job_error;
mod maps;
mod next_run;
mod page;
mod page_outcome;
mod robots;
mod webhook;
mod yields;

use crate::domain::jobs::{
    CLUSTER_COLLECTION, DELIVER_WEBHOOK, ERASE_COLLECTION, SCAN_IMAGE, SCAN_PAGE, START_CRAWL,
};
use crate::{Crawls, Ingest};
use context::Context;
use crawler::Fetcher;
use queue::{Handler, Queue};
use std::collections::HashMap;
use std::sync::Arc;
use store::Store;

pub use deliveries::DELIVERY_PLACES;

/// Returns the handlers of a worker by the kind of job.
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

/// Returns the handler of [`CLUSTER_COLLECTION`] alone. It needs no models.
pub fn cluster_handler(store: Store, queue: Queue) -> Arc<dyn Handler> {
    Arc::new(clustering::ClusterCollection::new(store, queue))
}
