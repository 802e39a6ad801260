//! Creates and controls crawls for the API and the command line. The jobs of a crawl run in the
//! module `worker`.

pub(crate) mod closing;
pub(crate) mod context;
mod control;
pub(crate) mod deliveries;
pub(crate) mod http_cache;
pub(crate) mod image;
pub(crate) mod job_error;
pub(crate) mod live_jobs;
pub(crate) mod next_run;
pub(crate) mod page;
pub(crate) mod page_outcome;
pub mod politeness;
mod reconcile;
mod runs;
mod seeds;
pub(crate) mod sitemap_permits;
pub(crate) mod webhook;
pub(crate) mod webhook_secrets;
pub(crate) mod yields;

pub use control::Retried;
use domain::CrawlKind;
pub use reconcile::Reconciled;
pub use webhook_secrets::NewWebhookSecret;

use crate::domain::{CrawlError, CrawlOptions, Secret, collection_id};
use queue::Queue;
use std::time::Duration;
use store::{Store, crawls::Crawl, retried};
use uuid::Uuid;

/// Politeness and other settings that apply to every crawl of the service.
#[derive(Clone, Debug)]
pub struct Config {
    /// `CRAWL_DELAY_MS`: minimum time between two requests to a host, for crawls that set no delay.
    pub default_delay: Duration,
    /// Maximum time that a job waits in the process for a host permit. A job that would wait longer
    /// returns to the queue. This is also the maximum time between a pause and the start of the
    /// last request.
    pub patience: Duration,
    /// Maximum time that the database may take to grant a host permit. A permit expires a minute
    /// after it was granted, so a request with a late one could be too close to the next.
    pub grant_time_limit: Duration,
    /// How long a robots.txt is cached (RFC 9309 2.4 requires at most 24 hours).
    pub robots_ttl: Duration,
    /// Wait before a robots.txt that could not be fetched is requested again.
    pub robots_retry: Duration,
    /// Maximum delay that a slow host, robots.txt or `Retry-After` can cause.
    pub longest_delay: Duration,
    /// Rules for the markup of sites: `[[recipe]]` in `facecrawl.toml`.
    pub recipes: crawler::Recipes,
    /// `CRAWL_TRAILING_SLASH`, `CRAWL_DROP_PARAMETERS`: how URLs of pages are normalised.
    pub spelling: crawler::urls::Spelling,
    /// `WEBHOOK_SECRET`: signs messages to webhooks of collections without their own secret, and
    /// derives the secrets of collections. Without it, webhooks are disabled.
    pub webhook_secret: Option<Secret>,
    /// Wait after the first failed delivery to a webhook. It triples with each failure, up to 1 h.
    pub webhook_retry: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_delay: Duration::from_millis(500),
            patience: Duration::from_secs(1),
            grant_time_limit: Duration::from_secs(20),
            robots_ttl: Duration::from_secs(24 * 3600),
            robots_retry: Duration::from_secs(30),
            longest_delay: Duration::from_secs(3600),
            recipes: crawler::Recipes::default(),
            spelling: crawler::urls::Spelling::default(),
            webhook_secret: None,
            webhook_retry: Duration::from_secs(10),
        }
    }
}

/// Creates and controls crawls. Cloning it is cheap.
///
/// Every transaction that changes jobs and rows, here and in the job handlers, acquires its locks
/// in one order: the group of jobs (by a call to the queue), the crawl, the lock keys of near
/// images, images, ledger rows.
#[derive(Clone)]
pub struct Crawls {
    store: Store,
    queue: Queue,
    config: Config,
}

impl Crawls {
    /// Creates a `Crawls` value with the default settings.
    pub fn new(store: Store, queue: Queue) -> Self {
        Self { store, queue, config: Config::default() }
    }

    #[must_use]
    pub fn with_config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Checks seeds (1 to 10,000 http or https URLs) and options, and inserts the crawl and its
    /// first jobs in one transaction.
    ///
    /// A seed whose path has the extension of an image file is fetched as an image. If the crawl
    /// reads videos, a seed with the extension of a video file or a playlist is read as a video.
    /// The collection must exist; `default` always exists.
    ///
    /// # Errors
    /// Fails with [`CrawlError::Invalid`], which contains the field and what is allowed.
    pub async fn create(
        &self,
        collection: &str,
        seeds: &[String],
        options: CrawlOptions,
    ) -> Result<Crawl, CrawlError> {
        options.check()?;
        let seeds = seeds::parse(seeds)?;
        options.check_room(seeds::counts(&seeds, &options))?;
        if options.webhook.is_some() && self.config.webhook_secret.is_none() {
            return Err(CrawlError::invalid(
                "webhook",
                "webhook messages are signed with WEBHOOK_SECRET, which is not set on this service; set it or omit the webhook",
            ));
        }
        let seeds: Vec<String> = seeds.iter().map(|url| url.to_string()).collect();
        let crawl = retried("create_crawl", || self.admit(collection, &seeds, &options)).await?;
        metrics::counter!("facecrawl_crawls_total", "event" => "created").increment(1);
        Ok(crawl)
    }

    /// Runs the transaction of [`Self::create`].
    async fn admit(
        &self,
        collection: &str,
        seeds: &[String],
        options: &CrawlOptions,
    ) -> Result<Crawl, CrawlError> {
        let collection = self.collection(collection).await?;
        let stored = serde_json::to_value(options).expect("options are plain data");
        let mut tx = self.store.begin().await?;
        let mut crawl =
            self.store.insert_crawl(tx.conn(), collection, CrawlKind::Web, seeds, &stored).await?;
        if options.every.is_some() {
            crawl = self.store.begin_schedule(tx.conn(), crawl.id).await?;
        }
        self.enqueue_seeds(&mut tx, &crawl, options).await?;
        tx.commit().await?;
        Ok(crawl)
    }

    /// Returns the id of an existing collection.
    pub(crate) async fn collection(&self, name: &str) -> Result<Uuid, CrawlError> {
        collection_id(&self.store, name).await
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }
}
