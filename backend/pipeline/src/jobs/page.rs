//! `scan_page`: fetch a page, find links and images, enter them into the ledgers, enqueue their jobs.

use super::context::{Context, CrawlView};
use super::hops::{Area, Hops, in_scope};
use super::ledger::Row;
use super::payload::{self, ImageJob, PageJob};
use super::setback::Setback;
use crate::crawl::completion::Watch;
use crawler::fetch::Kind;
use crawler::{Directives, Fetched, Page, Request, extract_page, urls};
use queue::{Claim, ClaimedJob, Handler, NewJob, Outcome};
use std::sync::Arc;
use store::ledger::Ledger;
use store::pages::{NewImageUrl, NewPage, PageResult};
use tokio_util::sync::CancellationToken;
use url::Url;

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

/// What a page adds to the ledgers, and what its own row says.
struct Harvest {
    pages: Vec<NewPage>,
    images: Vec<NewImageUrl>,
    home: Option<Url>,
    result: PageResult,
}

async fn scan(context: &Context, job: &PageJob, claim: Claim) -> Result<(), Setback> {
    let view = context.running(job.crawl_id).await?;
    let hops = Hops::new(context, &view, Area::Page(job));
    let fetched = hops.fetch(Request::new(job.url.clone(), Kind::Page)).await;
    let fetched = fetched.map_err(|error| Setback::of_fetch(error, context.config.robots_retry))?;
    let harvest = match content(&fetched) {
        Content::Html => read(context, &view, job, fetched).await?,
        Content::Image => image_instead(&fetched),
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

enum Content {
    Html,
    Image,
    Other,
}

/// What was fetched: by its header, and by its first bytes where the header says nothing or is contradicted by an image's signature.
fn content(fetched: &Fetched) -> Content {
    let header = fetched.content_type.as_deref().unwrap_or_default().trim().to_ascii_lowercase();
    let mime = header.split(';').next().unwrap_or_default().trim();
    if vision::Format::sniff(&fetched.body).is_some() {
        return Content::Image;
    }
    match mime {
        "text/html" | "application/xhtml+xml" => Content::Html,
        "" if fetched.body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'<') => Content::Html,
        _ => Content::Other,
    }
}

/// The page was an image: it goes into the other ledger.
fn image_instead(fetched: &Fetched) -> Harvest {
    Harvest {
        pages: Vec::new(),
        images: vec![NewImageUrl { url: fetched.url.to_string(), page_url: None, alt: None }],
        home: None,
        result: PageResult {
            state: "skipped".into(),
            reason: Some("is_an_image".into()),
            detail: Some("the address is that of an image; it was entered as one".into()),
            status: Some(i32::from(fetched.status)),
            final_url: Some(fetched.url.to_string()),
            ..PageResult::default()
        },
    }
}

/// Reads the page and applies its directives, the scope and the limits of depth.
async fn read(
    context: &Context,
    view: &CrawlView,
    job: &PageJob,
    fetched: Fetched,
) -> Result<Harvest, Setback> {
    let agent = context.fetcher.agent().to_owned();
    let (page, fetched) = tokio::task::spawn_blocking(move || {
        let page = extract_page(&fetched.body, &fetched.url, fetched.content_type.as_deref(), &agent);
        (page, fetched)
    })
    .await
    .map_err(|error| Setback::failed("extract_panicked", error))?;

    let directives = if view.options.respect_robots {
        let tags = fetched.robots_tags.iter().map(String::as_str);
        page.directives.union(Directives::parse(tags, context.fetcher.agent()))
    } else {
        Directives::default()
    };
    let denied = directives.images_denied();
    let home = job.home.clone().or_else(|| {
        let moved = job.depth == 0 && !in_scope(view, None, &fetched.url);
        moved.then(|| fetched.url.clone())
    });
    let pages = if directives.nofollow { Vec::new() } else { links(view, job.depth, home.as_ref(), &page) };
    let page_url = fetched.url.to_string();
    let images = if denied.is_some() { Vec::new() } else { images(&page, &page_url) };
    let result = PageResult {
        state: "fetched".into(),
        reason: denied.map(Into::into),
        detail: denied.map(|code| format!("its images were not taken: {code}")),
        status: Some(i32::from(fetched.status)),
        final_url: Some(page_url),
        title: page.title,
        etag: fetched.etag,
        last_modified: fetched.last_modified,
    };
    Ok(Harvest { pages, images, home, result })
}

fn links(view: &CrawlView, depth: i32, home: Option<&Url>, page: &Page) -> Vec<NewPage> {
    if depth >= view.options.max_depth {
        return Vec::new();
    }
    (page.links.iter())
        .filter(|link| !(link.nofollow && view.options.respect_robots))
        .filter(|link| urls::trap(&link.url).is_none() && in_scope(view, home, &link.url))
        .map(|link| NewPage { url: link.url.to_string(), depth: depth + 1 })
        .collect()
}

fn images(page: &Page, page_url: &str) -> Vec<NewImageUrl> {
    (page.images.iter())
        .map(|image| NewImageUrl {
            url: image.url.to_string(),
            page_url: Some(page_url.to_owned()),
            alt: image.alt.clone(),
        })
        .collect()
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
    let Harvest { pages, images, home, result } = harvest;
    let (crawl, options) = (job.crawl_id, &view.options);
    let mut tx = store.begin().await?;
    queue.complete(tx.conn(), claim).await?;
    let watch = Watch::begin(store, &mut tx, crawl).await?;
    let mut jobs: Vec<NewJob> = Vec::new();
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
    watch.end(store, &mut tx).await?;
    tx.commit().await?;
    let state = if result.state == "fetched" { "fetched" } else { "skipped" };
    super::count_outcome("page", state, result.reason.as_deref());
    tracing::debug!(url = %job.url, jobs = jobs.len(), "page read");
    Ok(())
}
