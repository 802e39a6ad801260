//! The job bodies: `scan_page` and `scan_image`.

mod context;
mod harvest;
mod hops;
mod image;
pub(crate) mod ledger;
mod page;
pub(crate) mod payload;
mod robots;
pub(crate) mod setback;
mod turns;

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

/// The handlers of a worker, by kind.
pub fn handlers(
    store: Store,
    queue: Queue,
    crawls: Crawls,
    ingest: Ingest,
    fetcher: Fetcher,
) -> HashMap<String, Arc<dyn Handler>> {
    let context = Arc::new(Context::new(store, queue, &crawls, ingest, fetcher));
    HashMap::from([
        (SCAN_PAGE.to_owned(), Arc::new(page::ScanPage(context.clone())) as Arc<dyn Handler>),
        (SCAN_IMAGE.to_owned(), Arc::new(image::ScanImage(context)) as Arc<dyn Handler>),
    ])
}

/// Feeds `facecrawl_crawl_outcomes_total{ledger,state,reason}`.
pub(crate) fn count_outcome(ledger: &'static str, state: &'static str, reason: Option<&str>) {
    let reason = reason.unwrap_or("none").to_owned();
    metrics::counter!("facecrawl_crawl_outcomes_total", "ledger" => ledger, "state" => state, "reason" => reason)
        .increment(1);
}
