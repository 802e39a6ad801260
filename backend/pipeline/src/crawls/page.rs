//! Handles `scan_page`: fetches and reads a page, sitemap or feed. Scope and depth are applied in
//! `page_outcome`, and `page_storing` stores the result.
use super::context::{
    Area, Context, CrawlView, FetchPolicy, NOT_MODIFIED, accept_incomplete, accepts_incomplete, count_saved,
    validators, visit_of,
};
use super::page_outcome::{self, PageOutcome, Rules, VisitChange};
use super::page_storing::{PageStoring, ReadPage};
use crate::admission::places::{FairSemaphore, Permit};
use crate::crawls::job_error::JobError;
use crate::domain::jobs::PageJob;
use crate::domain::{Row, jobs};
use crawler::fetch::Kind;
use crawler::{FetchError, Fetched, Page, Request, extract, extract_page, hls, sitemap};
use domain::{Reason, Unprocessed};
use inference::Requester;
use queue::{Claim, ClaimedJob, Handler, RunEnd};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::crawls::http_cache::CachedPage;
use store::crawls::ledger::Ledger;
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

/// Number of bytes at the beginning of a body that determine its kind.
const DETECTION_BYTES: usize = 4 << 10;

pub(crate) struct ScanPage {
    context: Arc<Context>,
    sitemaps: SitemapPermits,
    storing: PageStoring,
}

impl ScanPage {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let storing = PageStoring::new(context.clone());
        Self { context, sitemaps: SitemapPermits::default(), storing }
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
        let work = scan(self, &page, job.claim, incomplete);
        self.context.run_and_end(&job, page.crawl_id, row, cancel, work).await
    }
}

async fn scan(
    ScanPage { context, sitemaps: permits, storing }: &ScanPage,
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
    let page = ReadPage { job: job.clone(), claim, extractor, outcome, view };
    storing.store(page).await?;
    tracing::debug!(url = %job.url, "page read");
    Ok(())
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
