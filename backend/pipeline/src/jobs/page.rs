//! `scan_page`: fetch a page, a sitemap or a feed, enter the links and images into the ledgers, enqueue their jobs.

use super::context::{Context, CrawlView};
use super::harvest::{self, Harvest};
use super::hops::{Area, Hops};
use super::ledger::Row;
use super::payload::{self, ImageJob, PageJob};
use super::setback::Setback;
use crate::crawl::completion::Watch;
use crawler::fetch::Kind;
use crawler::{FetchError, Fetched, Request, extract_page, sitemap};
use queue::{Claim, ClaimedJob, Handler, NewJob, Outcome};
use std::sync::Arc;
use std::time::Duration;
use store::ledger::Ledger;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

/// A sitemap can be fifty times as large as a page: the process holds one at a time, and jobs that have to wait for it come back.
const MAP_PAUSE: Duration = Duration::from_millis(500);

/// The handler.
pub(super) struct ScanPage(pub(super) Arc<Context>);

#[async_trait::async_trait]
impl Handler for ScanPage {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> Outcome {
        let page: PageJob = match payload::read(&job.payload) {
            Ok(page) => page,
            Err(error) => return Outcome::Discard(error),
        };
        let row = Row::new(Ledger::Pages, page.page_id);
        self.0.drive(&job, page.crawl_id, row, cancel, scan(&self.0, &page, job.claim)).await
    }
}

async fn scan(context: &Context, job: &PageJob, claim: Claim) -> Result<(), Setback> {
    let view = context.running(job.crawl_id).await?;
    let kind = if looks_like_map(job) { Kind::Sitemap } else { Kind::Page };
    let _one_at_a_time = match kind {
        Kind::Sitemap => Some(
            context.maps.try_acquire().map_err(|_| Setback::Later(OffsetDateTime::now_utc() + MAP_PAUSE))?,
        ),
        _ => None,
    };
    let hops = Hops::new(context, &view, Area::Page(job));
    let fetched = match hops.fetch(Request::new(job.url.clone(), kind)).await {
        // It was worth a try.
        Err(FetchError::Status { status: 400..=499, .. }) if job.sitemap.is_some() => {
            return Err(Setback::skipped("no_sitemap", "the site has no sitemap there"));
        }
        fetched => fetched.map_err(|error| Setback::of_fetch(error, context.config.robots_retry))?,
    };
    let harvest = match content(job, &fetched) {
        Content::Html if job.sitemap.is_some() => {
            return Err(Setback::skipped("no_sitemap", "a page was sent in the place of a sitemap"));
        }
        Content::Html => read_page(context, &view, job, fetched).await?,
        Content::Map => read_map(context, &view, job, fetched).await?,
        Content::Image => harvest::of_image(&fetched),
        Content::Other => {
            let found = fetched.content_type.as_deref().unwrap_or("no content type");
            return Err(Setback::Final {
                state: "skipped",
                code: "not_html".into(),
                detail: format!("the content is {found}"),
                status: Some(fetched.status),
            });
        }
    };
    store(context, &view, job, harvest, claim).await
}

/// Whether the address is that of a sitemap or a feed, which may be larger than a page. What it is, is seen when it has been fetched.
fn looks_like_map(job: &PageJob) -> bool {
    let path = job.url.path().to_ascii_lowercase();
    job.sitemap.is_some() || [".xml", ".xml.gz", ".rss", ".atom"].iter().any(|end| path.ends_with(end))
}

enum Content {
    Html,
    Map,
    Image,
    Other,
}

/// What was fetched: by its header, and by its first bytes where the header says nothing, says only "XML", or is contradicted by an
/// image's signature.
fn content(job: &PageJob, fetched: &Fetched) -> Content {
    let header = fetched.content_type.as_deref().unwrap_or_default().trim().to_ascii_lowercase();
    let mime = header.split(';').next().unwrap_or_default().trim();
    if vision::Format::sniff(&fetched.body).is_some() {
        return Content::Image;
    }
    let root = sitemap::root(&fetched.body);
    match (mime, root) {
        (_, Some(root)) if sitemap::is_root(&root) => Content::Map,
        ("text/html" | "application/xhtml+xml", _) => Content::Html,
        ("" | "application/xml" | "text/xml", Some(root)) if root == "html" => Content::Html,
        ("", _) if fetched.body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'<') => {
            Content::Html
        }
        // A list of URLs.
        ("text/plain", _) if job.sitemap.is_some() => Content::Map,
        _ => Content::Other,
    }
}

async fn read_page(
    context: &Context,
    view: &CrawlView,
    job: &PageJob,
    fetched: Fetched,
) -> Result<Harvest, Setback> {
    let agent = context.fetcher.agent().to_owned();
    let recipes = context.config.recipes.clone();
    let (page, fetched) = on_a_thread(move || {
        let Fetched { body, url, content_type, .. } = &fetched;
        let page = extract_page(body, url, content_type.as_deref(), &agent, recipes.of(url));
        (page, fetched)
    })
    .await?;
    let sitemaps = harvest::sitemaps_of(context, view, job, &fetched.url).await;
    Ok(harvest::of_page(context, view, job, fetched, page, sitemaps))
}

async fn read_map(
    context: &Context,
    view: &CrawlView,
    job: &PageJob,
    fetched: Fetched,
) -> Result<Harvest, Setback> {
    let (map, fetched) = on_a_thread(move || (sitemap::parse(&fetched.body, &fetched.url), fetched)).await?;
    Ok(harvest::of_map(context, view, job, fetched, map))
}

/// Reading takes milliseconds of a core.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Setback> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Setback::failed("extract_panicked", error))
}

/// New rows, their jobs, this row and this job in one transaction.
async fn store(
    context: &Context,
    view: &CrawlView,
    job: &PageJob,
    harvest: Harvest,
    claim: Claim,
) -> Result<(), Setback> {
    let Context { store, queue, .. } = context;
    let Harvest { mut pages, sitemaps, nested, images, home, mut result } = harvest;
    let (crawl, options) = (job.crawl_id, &view.options);
    let mut tx = store.begin().await?;
    queue.complete(tx.conn(), claim).await?;
    let watch = Watch::begin(store, &mut tx, crawl, claim).await?;
    let mut jobs: Vec<NewJob> = Vec::new();
    if !sitemaps.is_empty() {
        let admitted = store.admit_pages(tx.conn(), crawl, options.max_pages, &sitemaps).await?;
        let job = |row| PageJob::new(crawl, row, home.clone()).sitemap(nested).job();
        jobs.extend(admitted.into_iter().map(job));
    }
    if let Some(budget) = options.max_pages_per_directory {
        let left_out;
        (pages, left_out) =
            store.within_directories(tx.conn(), crawl, budget, harvest::by_directory(pages)).await?;
        harvest::leave_out(&mut result, "directory_full", left_out);
    }
    if !pages.is_empty() {
        let admitted = store.admit_pages(tx.conn(), crawl, options.max_pages, &pages).await?;
        jobs.extend(admitted.into_iter().map(|row| PageJob::new(crawl, row, home.clone()).job()));
    }
    if !images.is_empty() {
        let admitted = store.admit_images(tx.conn(), crawl, options.max_images, &images).await?;
        jobs.extend(admitted.into_iter().map(|row| ImageJob::new(crawl, row, job.depth).job()));
    }
    store.settle_page(tx.conn(), job.page_id, &result).await?;
    queue.enqueue(tx.conn(), &jobs).await?;
    watch.end(store, queue, &mut tx).await?;
    tx.commit().await?;
    let state = if result.state == "fetched" { "fetched" } else { "skipped" };
    super::count_outcome("page", state, result.reason.as_deref());
    tracing::debug!(url = %job.url, jobs = jobs.len(), "page read");
    Ok(())
}
