//! Creates crawls, and starts their runs. Their jobs are handled in `page`, `image` and `webhook`.
pub(crate) mod closing;
pub(crate) mod context;
mod control;
pub(crate) mod image;
pub(crate) mod job_error;
pub(crate) mod page;
pub(crate) mod page_outcome;
mod page_storing;
pub mod politeness;
pub(crate) mod webhook;
use crate::domain::jobs::{ImageJob, PageJob, VideoJob};
use crate::domain::{
    CrawlError, CrawlOptions, Secret, SeedCounts, VideoRequest, check_webhook, collection_id,
};
pub use control::{Reconciled, Retried};
use crawler::frontier::depth_priority;
use crawler::{extract, urls};
use domain::CrawlKind;
use queue::{Claim, NewJob, Queue};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use store::crawls::Crawl;
use store::crawls::pages::{NewImageUrl, NewPage};
use store::videos::crawled::NewVideoUrl;
use store::{Store, StoreError, Tx, retried};
use url::Url;
use uuid::Uuid;
pub use webhook::NewWebhookSecret;

/// Politeness and other settings that apply to every crawl of the service.
#[derive(Clone, Debug)]
pub struct Config {
    /// `CRAWL_DELAY_MS`: minimum time between two requests to a host, for crawls that set no delay.
    pub default_delay: Duration,
    /// Maximum time that a job waits in the process for a host permit. A job that would wait longer
    /// returns to the queue. This is also the maximum time between a pause and the start of the
    /// last request.
    pub max_permit_wait: Duration,
    /// Maximum time that the database may take to grant a host permit. A permit expires a minute
    /// after it was granted, so a request with a late permit could be too close to the next one.
    pub grant_time_limit: Duration,
    /// Time for which a robots.txt is cached (RFC 9309 2.4 requires at most 24 hours).
    pub robots_ttl: Duration,
    /// Wait before a robots.txt that could not be fetched is requested again.
    pub robots_retry: Duration,
    /// Maximum delay that a slow host, robots.txt or `Retry-After` can cause.
    pub max_delay: Duration,
    /// Rules for the markup of sites: `[[recipe]]` in `facecrawl.toml`.
    pub recipes: crawler::Recipes,
    /// `CRAWL_TRAILING_SLASH`, `CRAWL_DROP_PARAMETERS`: the normalisation of the URLs of pages.
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
            max_permit_wait: Duration::from_secs(1),
            grant_time_limit: Duration::from_secs(20),
            robots_ttl: Duration::from_secs(24 * 3600),
            robots_retry: Duration::from_secs(30),
            max_delay: Duration::from_secs(3600),
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

    /// Checks the URL of a webhook without DNS, and that this service can sign messages.
    ///
    /// # Errors
    /// Fails with [`CrawlError::Invalid`] for the field `webhook`.
    pub fn check_webhook(&self, url: &Url) -> Result<(), CrawlError> {
        check_webhook(url)?;
        if self.config.webhook_secret.is_none() {
            return Err(CrawlError::invalid(
                "webhook",
                "webhook messages are signed with WEBHOOK_SECRET, which is not set on this service; set it or omit the webhook",
            ));
        }
        Ok(())
    }

    /// Checks seeds (1 to 10,000 http or https URLs) and options, and inserts the crawl and its
    /// first jobs in one transaction.
    ///
    /// A seed whose path has the extension of an image file is fetched as an image. If the crawl
    /// reads videos, a seed with the extension of a video file or a playlist is read as a video.
    /// The collection must exist; `default` always exists.
    ///
    /// # Errors
    /// Fails with [`CrawlError::Invalid`], which contains the field and its allowed values.
    pub async fn create(
        &self,
        collection: &str,
        seeds: &[String],
        options: CrawlOptions,
    ) -> Result<Crawl, CrawlError> {
        options.check()?;
        let seeds = parse_seeds(seeds)?;
        options.check_seed_counts(count_seeds(&seeds, &options))?;
        if let Some(webhook) = &options.webhook {
            self.check_webhook(webhook)?;
        }
        let seeds: Vec<String> = seeds.iter().map(|url| url.to_string()).collect();
        let crawl = retried("create_crawl", || self.insert_with_seeds(collection, &seeds, &options)).await?;
        metrics::counter!("facecrawl_crawls_total", "event" => "created").increment(1);
        Ok(crawl)
    }

    async fn insert_with_seeds(
        &self,
        collection: &str,
        seeds: &[String],
        options: &CrawlOptions,
    ) -> Result<Crawl, CrawlError> {
        let collection = collection_id(&self.store, collection).await?;
        let stored = serde_json::to_value(options).expect("options are plain data");
        let mut tx = self.store.begin().await?;
        let mut crawl =
            self.store.crawls().insert(tx.conn(), collection, CrawlKind::Web, seeds, &stored).await?;
        if options.every.is_some() {
            crawl = self.store.crawls().begin_schedule(tx.conn(), crawl.id).await?;
        }
        self.enqueue_seeds(&mut tx, &crawl, options).await?;
        tx.commit().await?;
        Ok(crawl)
    }

    async fn enqueue_seeds(
        &self,
        tx: &mut Tx,
        crawl: &Crawl,
        options: &CrawlOptions,
    ) -> Result<(), CrawlError> {
        let (mut pages, mut images, mut videos) = (Vec::new(), Vec::new(), Vec::new());
        for seed in &crawl.seeds {
            let (url, parsed) = (seed.clone(), Url::parse(seed));
            match parsed.as_ref().map_or(SeedKind::Page, |url| SeedKind::guess(url, options)) {
                SeedKind::Page => pages.push(NewPage { url, depth: 0 }),
                SeedKind::Image => {
                    images.push(NewImageUrl { url, page_url: None, requested_url: None, alt: None });
                }
                SeedKind::Video => videos.extend(parsed.ok().map(|parsed| NewVideoUrl {
                    url,
                    host: urls::host_key(&parsed),
                    page_url: None,
                    requested_url: None,
                })),
            }
        }
        let pages = self.store.ledger().admit_pages(tx.conn(), crawl.id, options.max_pages, &pages).await?;
        let images =
            self.store.ledger().admit_images(tx.conn(), crawl.id, options.max_images, &images).await?;
        let request = serde_json::to_value(VideoRequest::of_crawl(options)).expect("options are plain data");
        let limits = options.video_limits();
        let videos =
            self.store.crawled_videos().admit(tx.conn(), crawl.id, limits, &request, &videos).await?;
        let jobs: Vec<NewJob> = (pages
            .into_iter()
            .map(|row| PageJob::new(crawl.id, row, None).queue_job(crawl.collection_id, depth_priority(0))))
        .chain(images.into_iter().map(|row| ImageJob::new(crawl.id, row, 0).queue_job(crawl.collection_id)))
        .chain(videos.into_iter().map(|video_id| VideoJob { video_id }.fetch_job(crawl.collection_id)))
        .collect();
        self.queue.enqueue(tx.conn(), &jobs).await?;
        Ok(())
    }

    /// Starts the run that was scheduled after `previous`, and completes the job of the schedule.
    /// Returns `None` if the schedule was cancelled or the crawl was deleted. Two processes with
    /// the same job start only one run, because the claim of one of them is stale.
    pub(crate) async fn start_next(&self, previous: Uuid, claim: Claim) -> Result<Option<Crawl>, CrawlError> {
        let mut tx = self.store.begin().await?;
        self.queue.complete(tx.conn(), claim).await?;
        let mut started = None;
        if self.store.crawls().claim_next_run(tx.conn(), previous).await? {
            let previous = self.store.crawls().get(previous).await?;
            let options: CrawlOptions = serde_json::from_value(previous.options.clone())
                .map_err(|error| StoreError::Invalid(format!("the options cannot be parsed: {error}")))?;
            let crawl = self.store.crawls().insert_next_run(tx.conn(), &previous).await?;
            self.enqueue_seeds(&mut tx, &crawl, &options).await?;
            started = Some(crawl);
        }
        tx.commit().await?;
        if started.is_some() {
            metrics::counter!("facecrawl_crawls_total", "event" => "created").increment(1);
        }
        Ok(started)
    }
}

const MAX_SEEDS: usize = 10_000;
/// Maximum total size, in bytes, of the seeds of one crawl in their normal form, which the service
/// stores. Percent escapes can make the normal form three times as long as the seed in the request.
const MAX_SEED_BYTES: usize = 1 << 20;

/// Parses and normalises seeds and removes duplicates. Keeps the order.
fn parse_seeds(seeds: &[String]) -> Result<Vec<Url>, CrawlError> {
    if seeds.is_empty() || seeds.len() > MAX_SEEDS {
        return Err(CrawlError::invalid(
            "seeds",
            format!("the list has {} entries; 1 to {MAX_SEEDS} http or https URLs are allowed", seeds.len()),
        ));
    }
    let mut bytes = 0;
    let mut unique = HashSet::new();
    let mut urls = Vec::with_capacity(seeds.len());
    for (index, seed) in seeds.iter().enumerate() {
        let error = |reason: String| CrawlError::invalid("seeds", format!("number {}: {reason}", index + 1));
        let url = crawler::urls::parse(seed.trim()).map_err(&error)?;
        if let Some(reason) = crawler::urls::credentials_error(&url) {
            return Err(error(format!("the URL is not allowed: {reason}; send it without them")));
        }
        if unique.insert(url.clone()) {
            bytes += url.as_str().len();
            urls.push(url);
        }
        if bytes > MAX_SEED_BYTES {
            return Err(CrawlError::invalid(
                "seeds",
                format!(
                    "the normalised URLs have more than {MAX_SEED_BYTES} bytes in total; start several crawls instead"
                ),
            ));
        }
    }
    Ok(urls)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeedKind {
    Page,
    Image,
    Video,
}

impl SeedKind {
    /// Returns the kind of a seed, guessed by its extension. The guess saves one fetch.
    fn guess(url: &Url, options: &CrawlOptions) -> Self {
        match url {
            url if is_image_file(url) => Self::Image,
            url if options.videos && extract::has_video_extension(url.path()) => Self::Video,
            _ => Self::Page,
        }
    }
}

fn count_seeds(seeds: &[Url], options: &CrawlOptions) -> SeedCounts {
    let count = |kind| seeds.iter().filter(|url| SeedKind::guess(url, options) == kind).count();
    let mut videos_by_host: HashMap<String, usize> = HashMap::new();
    for url in seeds.iter().filter(|url| SeedKind::guess(url, options) == SeedKind::Video) {
        *videos_by_host.entry(crawler::urls::host_key(url)).or_default() += 1;
    }
    SeedCounts {
        pages: count(SeedKind::Page),
        images: count(SeedKind::Image),
        videos: count(SeedKind::Video),
        videos_of_host: videos_by_host.into_values().max().unwrap_or(0),
    }
}

/// Returns `true` if the last path segment has the extension of an image file. The handler of pages
/// adds other images to the image ledger, and other videos to those of the crawl.
fn is_image_file(url: &Url) -> bool {
    let name = url.path_segments().and_then(|mut segments| segments.next_back()).unwrap_or_default();
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    const EXTENSIONS: [&str; 14] = [
        "jpg", "jpeg", "jpe", "png", "webp", "gif", "bmp", "avif", "heic", "heif", "jxl", "tif", "tiff",
        "jp2",
    ];
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn detects_image_files_by_extension() {
        for (url, image) in [
            ("http://a.test/b/c.JPG?size=2", true),
            ("http://a.test/photo.webp", true),
            ("http://a.test/jpg", false),
            ("http://a.test/gallery.html", false),
            ("http://a.test/", false),
        ] {
            assert_eq!(is_image_file(&Url::parse(url).unwrap()), image, "{url}");
        }
    }
}
