//! Crawls as the API and the command line see them.

mod control;
mod reconcile;
mod runs;
mod seeds;
pub(crate) mod webhook_secrets;

pub use control::Retried;
pub use reconcile::Reconciled;
pub use webhook_secrets::NewWebhookSecret;

use crate::domain::{CrawlError, CrawlOptions, Secret, collection_id};
use queue::Queue;
use std::time::Duration;
use store::{Store, crawls::Crawl, retried};
use uuid::Uuid;

/// Manners that hold for every crawl of the service.
#[derive(Clone, Debug)]
pub struct Config {
    /// `CRAWL_DELAY_MS`: least time between two requests to a host for crawls that name none.
    pub default_delay: Duration,
    /// Longest in-process wait for a host's turn, and so the longest time after a pause in which another request can go out; a job that would
    /// wait longer goes back to the queue.
    pub patience: Duration,
    /// How long robots.txt is believed (RFC 9309 2.4 asks for at most 24 hours).
    pub robots_ttl: Duration,
    /// How long a host whose robots.txt cannot be had is left alone before it is asked again.
    pub robots_retry: Duration,
    /// Longest delay that a host's slowness, robots.txt or `Retry-After` can impose.
    pub longest_delay: Duration,
    /// What is known of sites' markup: `[[recipe]]` in `facecrawl.toml`.
    pub recipes: crawler::Recipes,
    /// `CRAWL_TRAILING_SLASH`, `CRAWL_DROP_PARAMETERS`: how links to pages are spelled.
    pub spelling: crawler::urls::Spelling,
    /// `WEBHOOK_SECRET`: signs messages to webhooks of collections without a secret of their own, and makes those secrets; without it there
    /// are no webhooks.
    pub webhook_secret: Option<Secret>,
    /// Wait after the first failed delivery to a webhook; triples with every further one, up to an hour.
    pub webhook_retry: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_delay: Duration::from_millis(500),
            patience: Duration::from_secs(1),
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

/// Creates and steers crawls; cheap to clone.
///
/// Interval transaction that touches jobs and rows, here and in the job bodies, takes its locks in one order: the group of jobs (by a word to the
/// queue), the crawl, near pictures' rendezvous, images, ledger rows.
#[derive(Clone)]
pub struct Crawls {
    store: Store,
    queue: Queue,
    config: Config,
}

impl Crawls {
    /// On a store and a queue, with the default manners.
    pub fn new(store: Store, queue: Queue) -> Self {
        Self { store, queue, config: Config::default() }
    }

    /// The same with other manners.
    #[must_use]
    pub fn with_config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// The manners in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Checks seeds (1 to 10,000 http or https URLs) and options, inserts the crawl and its first jobs in one transaction.
    ///
    /// A seed whose path ends like an image file is fetched as one. The collection must exist; `default` always does.
    ///
    /// # Errors
    /// [`CrawlError::Invalid`] names the field and what is allowed.
    pub async fn create(
        &self,
        collection: &str,
        seeds: &[String],
        options: CrawlOptions,
    ) -> Result<Crawl, CrawlError> {
        options.check()?;
        let seeds = seeds::parse(seeds)?;
        let images = seeds.iter().filter(|url| seeds::is_image_file(url)).count();
        options.check_room(seeds.len() - images, images)?;
        if options.webhook.is_some() && self.config.webhook_secret.is_none() {
            return Err(CrawlError::invalid(
                "webhook",
                "messages are signed, and this service has no WEBHOOK_SECRET; set it, or leave the webhook out",
            ));
        }
        let seeds: Vec<String> = seeds.iter().map(|url| url.to_string()).collect();
        let crawl = retried("create_crawl", || self.admit(collection, &seeds, &options)).await?;
        metrics::counter!("facecrawl_crawls_total", "event" => "created").increment(1);
        Ok(crawl)
    }

    /// The transaction of [`Self::create`].
    async fn admit(
        &self,
        collection: &str,
        seeds: &[String],
        options: &CrawlOptions,
    ) -> Result<Crawl, CrawlError> {
        let collection = self.collection(collection).await?;
        let stored = serde_json::to_value(options).expect("options are plain data");
        let mut tx = self.store.begin().await?;
        let mut crawl = self.store.insert_crawl(tx.conn(), collection, "web", seeds, &stored).await?;
        if options.every.is_some() {
            crawl = self.store.begin_series(tx.conn(), crawl.id).await?;
        }
        self.sow(&mut tx, &crawl, options).await?;
        tx.commit().await?;
        Ok(crawl)
    }

    /// The id of a collection that exists.
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
