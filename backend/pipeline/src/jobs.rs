//! The job bodies: `scan_page` and `scan_image`.
use crate::{Crawls, Ingest};
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
    _store: Store,
    _queue: Queue,
    _crawls: Crawls,
    _ingest: Ingest,
    _fetcher: Fetcher,
) -> HashMap<String, Arc<dyn Handler>> {
    todo!()
}
