//! Handles `scan_page`: fetches a page, sitemap or feed, adds its links and images to the ledgers,
//! and enqueues their jobs. Scope and depth are applied in `page_outcome`.
use super::context::{
    Area, Context, CrawlView, FetchPolicy, NOT_MODIFIED, accept_incomplete, accepts_incomplete, count_saved,
    validators, visit_of,
};
use super::page_outcome::{self, PageOutcome, Rules, VisitChange};
use crate::admission::places::{FairSemaphore, Permit};
use crate::crawls::job_error::JobError;
use crate::domain::jobs::{ImageJob, PageJob, ShownOn, VideoJob};
use crate::domain::{ChangeError, Row, VideoRequest, check_live, count_outcome, forget_jobs, jobs};
use crawler::fetch::Kind;
use crawler::frontier::Yield;
use crawler::{FetchError, Fetched, Page, Request, extract, extract_page, frontier, hls, sitemap, urls};
use domain::{ImageState, Reason, Unprocessed};
use inference::Requester;
use queue::{Claim, ClaimedJob, Handler, NewJob, RunEnd};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::crawls::Crawl;
use store::crawls::http_cache::CachedPage;
use store::crawls::ledger::{DirectoryYield, Ledger};
use store::crawls::pages::{AdmittedUrl, PageResult};
use store::{Store, StoreError, Tx, retried};
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

/// Number of bytes at the beginning of a body that determine its kind.
const DETECTION_BYTES: usize = 4 << 10;
/// Detail of an image whose URL has no valid host name.
const NO_HOST: &str = "the host name in the address is longer than allowed";

pub(crate) struct ScanPage {
    context: Arc<Context>,
    sitemaps: SitemapPermits,
}

impl ScanPage {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, sitemaps: SitemapPermits::default() }
    }
}

#[async_trait::async_trait]
impl Handler for ScanPage {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> RunEnd {
        let page: PageJob = match jobs::parse(&job.payload) {
            Ok(page) => page,
            Err(error) => return RunEnd::Discard(error),
        };
        let row = Row::new(Ledger::Pages, page.page_id);
        let incomplete = accepts_incomplete(job.attempt, job.max_attempts);
        let work = scan(&self.context, &self.sitemaps, &page, job.claim, incomplete);
        self.context.run_and_end(&job, page.crawl_id, row, cancel, work).await
    }
}

async fn scan(
    context: &Context,
    permits: &SitemapPermits,
    job: &PageJob,
    claim: Claim,
    accepts_incomplete: bool,
) -> Result<(), JobError> {
    let view = context.running_crawl(job.crawl_id).await?;
    let page = PageScan { context, view: &view, job };
    let is_sitemap = looks_like_sitemap(job);
    let extractor = page.extractor_id(&job.url);
    let mut cached = match view.options.revalidate && !is_sitemap {
        true => {
            context.store.hosts().cached_page(view.crawl.collection_id, job.url.as_str(), &extractor).await?
        }
        false => None,
    };
    let mut fetch_permit = None;
    // This function holds the permit for reading until it has stored the result.
    let (outcome, _read_permit) = loop {
        if is_sitemap && fetch_permit.is_none() {
            fetch_permit = permits.try_acquire_fetch(job.page_id)?;
        }
        let kind = match (is_sitemap, &fetch_permit) {
            (false, _) => Kind::Page,
            (true, None) => Kind::SmallSitemap,
            (true, Some(_)) => Kind::Sitemap,
        };
        let policy = FetchPolicy::new(context, &view, Area::Page(job));
        let validators = cached.as_ref().and_then(|cached| validators(&cached.response));
        let request = Request { validators, ..Request::new(job.url.clone(), kind) };
        let fetched = match accept_incomplete(policy.fetch(request).await, accepts_incomplete) {
            // The sitemap was guessed or only listed, so its absence is not an error.
            Err(FetchError::Status { status: 400..=499, .. }) if job.sitemap.is_some() => {
                return Err(JobError::skipped(Reason::NoSitemap, "the site has no sitemap at this address"));
            }
            Err(FetchError::TooLarge { .. }) if kind == Kind::SmallSitemap => {
                permits.record_large(job.page_id);
                continue;
            }
            fetched => fetched.map_err(|error| JobError::from_fetch(error, context.config.robots_retry))?,
        };
        if fetched.status == NOT_MODIFIED
            && let Some(cached) = cached.take()
        {
            match page.reuse_stored(fetched, cached).await? {
                Some(outcome) => break (outcome, None),
                // The stored visit cannot be read, so fetch the complete page.
                None => continue,
            }
        }
        let content = detect_content(job, &fetched);
        let read_permit = match content {
            Content::Sitemap => Some(permits.acquire_read().await),
            _ => None,
        };
        break (page.read(fetched, content).await?, read_permit);
    };
    page.store(outcome, claim, &extractor).await
}

/// A page whose job is running.
struct PageScan<'a> {
    context: &'a Context,
    view: &'a Arc<CrawlView>,
    job: &'a PageJob,
}

impl PageScan<'_> {
    /// Returns the id of the extractor for a URL. The visit of another extractor is not reused.
    fn extractor_id(&self, url: &Url) -> String {
        extract::extractor_id(self.context.fetcher.agent(), self.context.config.recipes.for_url(url))
    }

    async fn read(&self, fetched: Fetched, content: Content) -> Result<PageOutcome, JobError> {
        match content {
            Content::Html if self.job.sitemap.is_some() => {
                Err(JobError::skipped(Reason::NoSitemap, "the response is an HTML page, not a sitemap"))
            }
            Content::Html => self.read_page(fetched).await,
            Content::Sitemap => self.read_sitemap(fetched).await,
            Content::Image => Ok(page_outcome::from_image(self.job, &fetched)),
            Content::Video => Ok(page_outcome::from_video(self.view, self.job, &fetched)),
            Content::Other if fetched.is_incomplete && fetched.body.len() < DETECTION_BYTES => {
                Err(JobError::Retry {
                    reason: Reason::IncompleteTransfer,
                    detail: "too little of the response arrived to tell what it is".into(),
                    wait: None,
                })
            }
            Content::Other => {
                let content_type = fetched.content_type.as_deref().unwrap_or("(none)");
                Err(JobError::Final {
                    state: Unprocessed::Skipped,
                    reason: Reason::NotHtml,
                    detail: format!("the response has the content type {content_type}"),
                    status: Some(fetched.status),
                })
            }
        }
    }

    async fn read_page(&self, fetched: Fetched) -> Result<PageOutcome, JobError> {
        let Self { context, view, job } = *self;
        let agent = context.fetcher.agent().to_owned();
        let recipes = context.config.recipes.clone();
        let (page, visit, fetched) = offload(move || {
            let Fetched { body, url, content_type, .. } = &fetched;
            let mut page = extract_page(body, url, content_type.as_deref(), &agent, recipes.for_url(url));
            page.referrer_policy = fetched.referrer_policy;
            let visit = visit_of(&fetched).and_then(|visit| {
                let content = page.to_stored_bytes(&fetched.robots_tags)?;
                Some(CachedPage {
                    response: visit,
                    content,
                    mentions: page.addresses().map(str::to_owned).collect(),
                })
            });
            (page, visit, fetched)
        })
        .await?;
        // After a redirect to a host with a different recipe, the visit is not stored.
        let visit = visit.filter(|_| self.extractor_id(&fetched.url) == self.extractor_id(&job.url));
        let sitemaps = page_outcome::sitemaps_of(context, view, job, &fetched.url).await;
        let rules = Rules::new(context, view, job);
        let outcome = offload(move || page_outcome::from_page(&rules, fetched, page, sitemaps)).await?;
        Ok(PageOutcome { visit_change: VisitChange::Replaced(visit), ..outcome })
    }

    /// Reuses the stored content of an unchanged page. Returns `None` if it cannot be unpacked.
    async fn reuse_stored(
        &self,
        mut fetched: Fetched,
        cached: CachedPage,
    ) -> Result<Option<PageOutcome>, JobError> {
        let Self { context, view, job } = *self;
        let CachedPage { response: visit, content, .. } = cached;
        let Some((mut page, mut tags)) = offload(move || Page::from_stored_bytes(&content)).await? else {
            return Ok(None);
        };
        // The directives of both responses apply.
        fetched.robots_tags.append(&mut tags);
        page.referrer_policy = fetched.referrer_policy.or(page.referrer_policy);
        fetched.etag = fetched.etag.or(visit.etag);
        fetched.last_modified = fetched.last_modified.or(visit.last_modified);
        let sitemaps = page_outcome::sitemaps_of(context, view, job, &fetched.url).await;
        let rules = Rules::new(context, view, job);
        let mut outcome = offload(move || page_outcome::from_page(&rules, fetched, page, sitemaps)).await?;
        outcome.result.reason.get_or_insert(Reason::NotModified);
        count_saved("page", visit.bytes);
        Ok(Some(PageOutcome { visit_change: VisitChange::Renewed, ..outcome }))
    }

    async fn read_sitemap(&self, fetched: Fetched) -> Result<PageOutcome, JobError> {
        let Self { context, view, job } = *self;
        let rules = Rules::new(context, view, job);
        offload(move || {
            let map = sitemap::parse(&fetched.body, &fetched.url);
            page_outcome::from_sitemap(&rules, fetched, map)
        })
        .await
    }

    /// Stores the new rows and their jobs, settles this row and completes this job.
    async fn store(&self, outcome: PageOutcome, claim: Claim, extractor: &str) -> Result<(), JobError> {
        let stored = retried("store_page", || self.store_once(&outcome, claim, extractor)).await?;
        let forbidden = ImageState::Skipped.as_str();
        (0..stored.forbidden_images)
            .for_each(|_| count_outcome("image", forbidden, Some(&Reason::ForbiddenUrl)));
        for (reason, count) in stored.links_left_out {
            let left_out =
                metrics::counter!("facecrawl_crawl_links_left_out_total", "reason" => reason.code());
            left_out.increment(count.cast_unsigned());
        }
        let PageResult { state, reason, .. } = &outcome.result;
        count_outcome("page", state.as_str(), reason.as_ref());
        tracing::debug!(url = %self.job.url, jobs = stored.jobs, "page read");
        Ok(())
    }

    async fn store_once(
        &self,
        outcome: &PageOutcome,
        claim: Claim,
        extractor: &str,
    ) -> Result<StoredPage, ChangeError> {
        let Self { context: Context { store, queue, .. }, view, job } = *self;
        let PageOutcome {
            sitemaps,
            sitemap_depth,
            images,
            videos,
            redirected_seed,
            visit_change,
            mentions,
            shown_videos,
            result,
            ..
        } = outcome;
        let (mut pages, mut links_left_out) = (outcome.pages.clone(), outcome.left_out.clone());
        let (crawl, collection, options) = (job.crawl_id, view.crawl.collection_id, &view.options);
        let mut tx = store.begin().await?;
        queue.complete(tx.conn(), claim).await?;
        check_live(store, &mut tx, crawl, claim).await?;
        let mut jobs: Vec<NewJob> = Vec::new();
        if !sitemaps.is_empty() {
            let admitted = store.ledger().admit_pages(tx.conn(), crawl, options.max_pages, sitemaps).await?;
            let to_job = |row| {
                let page = PageJob {
                    sitemap: Some(*sitemap_depth),
                    ..PageJob::new(crawl, row, redirected_seed.clone())
                };
                page.queue_job(collection, frontier::depth_priority(0))
            };
            jobs.extend(admitted.into_iter().map(to_job));
        }
        if let Some(budget) = options.max_pages_per_directory {
            let over_budget;
            (pages, over_budget) = store
                .ledger()
                .within_directory_budget(tx.conn(), crawl, budget, page_outcome::by_directory(pages))
                .await?;
            if over_budget > 0 {
                links_left_out.insert(Reason::DirectoryFull, over_budget);
            }
        }
        store.crawls().count_links_left_out(tx.conn(), crawl, &links_left_out).await?;
        let (mut found_images, mut forbidden_images) = (0, 0);
        if !images.is_empty() {
            let admitted = store.ledger().admit_images(tx.conn(), crawl, options.max_images, images).await?;
            let to_image_job = |row: AdmittedUrl| {
                let policy = outcome.referrer_policies.get(&row.url).copied();
                let shown_on = policy.map(|policy| ShownOn { page_id: job.page_id, policy });
                ImageJob { shown_on, ..ImageJob::new(crawl, row, job.depth) }
            };
            // The queue rejects jobs with an invalid host name. The row of such an image is settled
            // here, and the rest of the page is stored.
            let (fetchable, unfetchable): (Vec<_>, Vec<_>) = admitted
                .into_iter()
                .map(to_image_job)
                .partition(|image| urls::host_error(&image.url).is_none());
            (found_images, forbidden_images) = (fetchable.len() as i64, unfetchable.len());
            jobs.extend(fetchable.iter().map(|image| image.queue_job(collection)));
            let unfetchable: Vec<Uuid> = unfetchable.iter().map(|image| image.image_url_id).collect();
            store.ledger().skip_image_urls(tx.conn(), &unfetchable, Reason::ForbiddenUrl, NO_HOST).await?;
        }
        if !videos.is_empty() {
            let request =
                serde_json::to_value(VideoRequest::of_crawl(options)).expect("options are plain data");
            let admitted = store
                .crawled_videos()
                .admit(tx.conn(), crawl, options.video_limits(), &request, videos)
                .await?;
            let to_job = |video_id| VideoJob { video_id }.fetch_job(collection);
            jobs.extend(admitted.into_iter().map(to_job));
        }
        count_yield(store, &mut tx, crawl, &job.url, found_images).await?;
        if !pages.is_empty() {
            let admitted = store.ledger().admit_pages(tx.conn(), crawl, options.max_pages, &pages).await?;
            let rows =
                admitted.into_iter().map(|row| PageJob::new(crawl, row, redirected_seed.clone())).collect();
            jobs.extend(page_jobs(store, &mut tx, &view.crawl, rows).await?);
        }
        store.ledger().settle_page(tx.conn(), job.page_id, result).await?;
        match visit_change {
            VisitChange::Unchanged => {}
            VisitChange::Renewed => {
                store.hosts().renew_cached_page(tx.conn(), crawl, job.url.as_str()).await?
            }
            VisitChange::Replaced(visit) => {
                store
                    .hosts()
                    .cache_page(tx.conn(), crawl, job.url.as_str(), extractor, visit.as_ref())
                    .await?;
            }
        }
        store.erasures().clear_page_with_suppressed(tx.conn(), job.page_id, mentions, shown_videos).await?;
        if let (Some(Reason::IsAnImage), Some(image)) = (&result.reason, &result.final_url) {
            let suppressed =
                store.erasures().erase_page_of_suppressed_image(tx.conn(), job.page_id, image).await?;
            forget_jobs(queue, &mut tx, &suppressed).await?;
        }
        if let (Some(Reason::IsAVideo), Some(video)) = (&result.reason, &result.final_url) {
            let suppressed =
                store.erasures().erase_page_of_suppressed_video(tx.conn(), job.page_id, video).await?;
            forget_jobs(queue, &mut tx, &suppressed).await?;
        }
        queue.enqueue(tx.conn(), &jobs).await?;
        tx.commit().await?;
        Ok(StoredPage { jobs: jobs.len(), forbidden_images, links_left_out })
    }
}

/// Returns `true` if the URL looks like that of a sitemap or a feed, which may be larger than a
/// page. After the fetch, [`detect_content`] decides.
fn looks_like_sitemap(job: &PageJob) -> bool {
    let path = job.url.path().to_ascii_lowercase();
    job.sitemap.is_some() || [".xml", ".xml.gz", ".rss", ".atom"].iter().any(|end| path.ends_with(end))
}

enum Content {
    Html,
    Sitemap,
    Image,
    /// A video file or a playlist.
    Video,
    Other,
}

/// Returns the kind of the fetched content. The `Content-Type` header determines the kind. The
/// first bytes determine it if the header is missing or specifies only XML, or if they are the
/// signature of an image or a video. A text can begin like a video, so HTML is not a video.
fn detect_content(job: &PageJob, fetched: &Fetched) -> Content {
    let header = fetched.content_type.as_deref().unwrap_or_default().trim().to_ascii_lowercase();
    let mime = header.split(';').next().unwrap_or_default().trim();
    if vision::Format::sniff(&fetched.body).is_some() {
        return Content::Image;
    }
    let is_html = matches!(mime, "text/html" | "application/xhtml+xml");
    if !is_html && video::is_video(&fetched.body) || hls::is_playlist(&fetched.body) {
        return Content::Video;
    }
    let root = sitemap::root_element(&fetched.body);
    match (mime, root) {
        (_, Some(root)) if sitemap::is_sitemap_root(&root) => Content::Sitemap,
        _ if is_html => Content::Html,
        ("" | "application/xml" | "text/xml", Some(root)) if root == "html" => Content::Html,
        ("", _) if begins_like_markup(&fetched.body) => Content::Html,
        // A text sitemap: a list of URLs.
        ("text/plain", _) if job.sitemap.is_some() => Content::Sitemap,
        _ => Content::Other,
    }
}

/// Returns `true` if the first byte after white space is `<`. Reads only the first 4 KiB.
fn begins_like_markup(body: &[u8]) -> bool {
    body.iter().take(DETECTION_BYTES).find(|byte| !byte.is_ascii_whitespace()) == Some(&b'<')
}

/// Runs `work` on a blocking thread, because parsing takes milliseconds of CPU time.
async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JobError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| JobError::failed(Reason::ExtractPanicked, error))
}

struct StoredPage {
    /// Number of new jobs.
    jobs: usize,
    /// Number of new images that cannot be fetched.
    forbidden_images: usize,
    /// Numbers of links that are not followed, by reason.
    links_left_out: BTreeMap<Reason, i64>,
}

/// Counts a page that was read, and the `images` on it that were new to the crawl.
async fn count_yield(
    store: &Store,
    tx: &mut Tx,
    crawl: Uuid,
    page: &Url,
    images: i64,
) -> Result<(), StoreError> {
    let names = [urls::directory(page), urls::host_key(page)];
    store.ledger().count_yield(tx.conn(), crawl, &names.each_ref().map(String::as_str), images).await
}

/// Returns the jobs of new pages, with the priorities derived from the current yields.
async fn page_jobs(
    store: &Store,
    tx: &mut Tx,
    crawl: &Crawl,
    pages: Vec<PageJob>,
) -> Result<Vec<NewJob>, StoreError> {
    let names: Vec<String> =
        pages.iter().flat_map(|page| [urls::directory(&page.url), urls::host_key(&page.url)]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let yields = store.ledger().yields(tx.conn(), crawl.id, &names).await?;
    let jobs = pages.iter().zip(yields.chunks_exact(2)).map(|(page, yields)| {
        let priority = frontier::priority(page.depth, to_yield(yields[0]), to_yield(yields[1]));
        page.queue_job(crawl.collection_id, priority)
    });
    Ok(jobs.collect())
}

fn to_yield(yields: DirectoryYield) -> Yield {
    let count = |n: i64| n.max(0).unsigned_abs();
    Yield { pages: count(yields.pages), images: count(yields.images) }
}

/// Time after which a job is retried if another job is fetching a large sitemap.
const RETRY_WAIT: Duration = Duration::from_millis(500);
/// Maximum number of large sitemaps in the memory of a process.
const MAX_LARGE_SITEMAPS: usize = 10_000;

/// Permits for fetching and reading sitemaps.
///
/// A sitemap can be ten times as large as a page, and even larger after decompression. A process
/// reads one sitemap at a time and fetches one large sitemap at a time. No job holds the permit for
/// reading during a fetch. A slow host therefore delays only other large sitemaps.
struct SitemapPermits {
    reading: FairSemaphore,
    fetching: FairSemaphore,
    /// Ids of rows in the page ledger whose sitemap exceeds the size limit of a page.
    large: Mutex<HashSet<Uuid>>,
}

impl Default for SitemapPermits {
    fn default() -> Self {
        Self { reading: FairSemaphore::new(1), fetching: FairSemaphore::new(1), large: Mutex::default() }
    }
}

impl SitemapPermits {
    async fn acquire_read(&self) -> Permit {
        self.reading.acquire(Requester::default()).await
    }

    /// Acquires the permit to fetch a large sitemap. Returns `None` if the page's sitemap is not
    /// known to be large.
    ///
    /// # Errors
    /// Fails with [`JobError::Snooze`] if another job holds the permit.
    fn try_acquire_fetch(&self, page: Uuid) -> Result<Option<Permit>, JobError> {
        let is_large = self.large.lock().unwrap_or_else(PoisonError::into_inner).contains(&page);
        if !is_large {
            return Ok(None);
        }
        self.fetching.try_acquire().map(Some).ok_or(JobError::Snooze(RETRY_WAIT))
    }

    fn record_large(&self, page: Uuid) {
        let mut large = self.large.lock().unwrap_or_else(PoisonError::into_inner);
        if large.len() >= MAX_LARGE_SITEMAPS {
            // Jobs fetch the removed sitemaps as small ones and detect their size again.
            large.clear();
        }
        large.insert(page);
    }
}
