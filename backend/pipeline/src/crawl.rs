//! Crawls as the API and the command line see them.
use crawler::Scope;
use queue::Queue;
use store::{Store, StoreError, crawls::Crawl};
use uuid::Uuid;

/// How duplicates are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dedupe {
    /// Same bytes.
    Exact,
    /// Same bytes, or the same picture by its perceptual hashes.
    #[default]
    Near,
    /// Same bytes only share storage; every URL is processed.
    Off,
}

/// A crawl's options, as they are stored.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrawlOptions {
    /// Borders.
    pub scope: Scope,
    /// Hosts for `Scope::List`.
    pub allow: Vec<String>,
    /// Links from a seed.
    pub max_depth: i32,
    /// Pages in all.
    pub max_pages: i64,
    /// Image URLs in all.
    pub max_images: i64,
    /// Least time between two requests to a host; `None` lets robots.txt and the host's speed decide.
    pub delay_ms: Option<u64>,
    /// Obey robots.txt and directives.
    pub respect_robots: bool,
    /// Duplicates.
    pub dedupe: Dedupe,
}

impl Default for CrawlOptions {
    fn default() -> Self {
        Self {
            scope: Scope::Host,
            allow: Vec::new(),
            max_depth: 3,
            max_pages: 1000,
            max_images: 5000,
            delay_ms: None,
            respect_robots: true,
            dedupe: Dedupe::Near,
        }
    }
}

/// Why a crawl was refused.
#[derive(Debug, thiserror::Error)]
pub enum CrawlError {
    /// A seed or an option is wrong: which, and what is allowed.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// A sentence.
        reason: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] queue::QueueError),
}

/// Creates and steers crawls; cheap to clone.
#[derive(Clone)]
pub struct Crawls {
    _store: Store,
    _queue: Queue,
}

impl Crawls {
    /// On a store and a queue.
    pub fn new(_store: Store, _queue: Queue) -> Self {
        todo!()
    }
    /// Checks seeds (1 to 10,000 http or https URLs) and options, inserts the crawl and its first jobs in one transaction.
    pub async fn create(
        &self,
        _collection: &str,
        _seeds: &[String],
        _options: CrawlOptions,
    ) -> Result<Crawl, CrawlError> {
        todo!()
    }
    /// Holds its jobs.
    pub async fn pause(&self, _id: Uuid) -> Result<Crawl, CrawlError> {
        todo!()
    }
    /// Lets them run again.
    pub async fn resume(&self, _id: Uuid) -> Result<Crawl, CrawlError> {
        todo!()
    }
    /// Ends it; what is still queued is skipped with the reason `cancelled`.
    pub async fn cancel(&self, _id: Uuid) -> Result<Crawl, CrawlError> {
        todo!()
    }
}
