//! Stores read pages: their links, images and videos enter the ledgers with their jobs, their rows
//! are settled, and their jobs are completed.
//!
//! Admission locks the row of the crawl, so the pages of a crawl are stored one after another.
//! Pages that are read while a transaction runs wait for the next one, which stores several of
//! them. docs/explanation/QUEUE.md describes why this keeps every guarantee.
use super::context::{Context, CrawlView};
use super::page_outcome::{self, PageOutcome, VisitChange};
use crate::domain::jobs::{ImageJob, PageJob, ShownOn, VideoJob};
use crate::domain::{ChangeError, VideoRequest, check_live, count_outcome, forget_jobs};
use crawler::frontier::{self, Yield};
use crawler::urls;
use domain::{ImageState, Reason};
use queue::{Claim, NewJob};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::crawls::http_cache::PageVisit;
use store::crawls::ledger::{DirectoryYield, PageYield};
use store::crawls::pages::{AdmittedUrl, NewImageUrl, NewPage, PageResult};
use store::erasures::PageMentions;
use store::videos::crawled::NewVideoUrl;
use store::{Tx, retried};
use tokio::sync::oneshot;
use uuid::Uuid;

/// Maximum number of pages in one transaction.
const MAX_PAGES: usize = 32;
/// Maximum number of addresses on the pages in one transaction, if there are several pages. It
/// limits the time for which the transaction locks the crawl and the rows of its images.
const MAX_ADDRESSES: usize = 5_000;
/// Time limit of a transaction. It is longer than the time limit of a statement, so that it usually
/// ends only transactions whose connection was lost without an error.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Detail of an image whose URL has no valid host name.
const NO_HOST: &str = "the host name in the address is longer than allowed";

/// A page that was read, with everything that it adds to its crawl.
pub(super) struct ReadPage {
    pub(super) view: Arc<CrawlView>,
    pub(super) job: PageJob,
    pub(super) claim: Claim,
    /// The id of the extractor; see `cache_pages`.
    pub(super) extractor: String,
    pub(super) outcome: PageOutcome,
}

impl ReadPage {
    /// Returns the number of addresses that the transaction stores or looks up.
    fn addresses(&self) -> usize {
        let PageOutcome { pages, sitemaps, images, videos, mentions, shown_videos, .. } = &self.outcome;
        let lists = [pages.len(), sitemaps.len(), images.len(), videos.len()];
        lists.iter().sum::<usize>() + mentions.len() + shown_videos.len()
    }
}

struct Waiting {
    page: Arc<ReadPage>,
    /// Receives whether the page was stored.
    stored: oneshot::Sender<bool>,
}

/// The pages that wait to be stored, by crawl. A crawl has an entry while a task stores its pages.
#[derive(Clone)]
pub(super) struct PageStoring {
    context: Arc<Context>,
    waiting: Arc<Mutex<HashMap<Uuid, Vec<Waiting>>>>,
}

impl PageStoring {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context, waiting: Arc::default() }
    }

    /// Stores a page, together with others of its crawl if some wait. If the caller is dropped
    /// during the transaction, the page may be stored nevertheless.
    ///
    /// # Errors
    /// Fails with [`queue::QueueError::Stale`] if the claim is lost or the crawl has ended.
    pub(super) async fn store(&self, page: ReadPage) -> Result<(), ChangeError> {
        let page = Arc::new(page);
        let (stored, answer) = oneshot::channel();
        self.push(Waiting { page: page.clone(), stored });
        if answer.await.unwrap_or(false) {
            return Ok(());
        }
        let pages = [page];
        retried("store_page", || store_pages(&self.context, &pages)).await.map(drop)
    }

    /// Adds a page to those that wait. Starts the task of the crawl if none runs.
    fn push(&self, waiting: Waiting) {
        let crawl = waiting.page.job.crawl_id;
        let mut crawls = self.lock();
        let is_running = crawls.contains_key(&crawl);
        crawls.entry(crawl).or_default().push(waiting);
        drop(crawls);
        if !is_running {
            let task = CrawlTask { storing: self.clone(), crawl, max_pages: MAX_PAGES, has_ended: false };
            tokio::spawn(task.run());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Vec<Waiting>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that stores the pages of one crawl until none waits. If it panics, the pages that wait
/// are returned to their callers, which store them alone.
struct CrawlTask {
    storing: PageStoring,
    crawl: Uuid,
    /// Maximum number of pages in the next transaction. It is 1 after a failure and doubles with
    /// each success, because all pages of a failed transaction are stored again.
    max_pages: usize,
    /// Whether the task removed the crawl's entry. The entry may then be that of another task.
    has_ended: bool,
}

impl Drop for CrawlTask {
    fn drop(&mut self) {
        if !self.has_ended {
            self.storing.lock().remove(&self.crawl);
        }
    }
}

impl CrawlTask {
    async fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            let (pages, answers): (Vec<Arc<ReadPage>>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.page, waiting.stored)).unzip();
            let stored = tokio::time::timeout(MAX_TIME, store_pages(&self.storing.context, &pages)).await;
            let stored = match stored {
                Ok(Ok(stored)) => stored,
                Ok(Err(error)) => {
                    tracing::debug!(%error, pages = pages.len(), "failed to store pages together; they are stored alone");
                    Vec::new()
                }
                Err(_) => {
                    tracing::warn!("the database does not respond; pages are stored alone");
                    Vec::new()
                }
            };
            self.max_pages = if stored.is_empty() { 1 } else { (2 * self.max_pages).min(MAX_PAGES) };
            for (page, answer) in pages.iter().zip(answers) {
                // A caller that was dropped needs no answer.
                let _ = answer.send(stored.contains(&page.claim));
            }
        }
    }

    /// Returns the pages to store next. If none waits, returns `None` and removes the crawl's
    /// entry, so that the next page starts a new task.
    fn next_batch(&mut self) -> Option<Vec<Waiting>> {
        let mut crawls = self.storing.lock();
        let waiting = crawls.get_mut(&self.crawl)?;
        // The page of a caller that was dropped must not be stored.
        waiting.retain(|waiting| !waiting.stored.is_closed());
        let mut addresses = 0;
        let fits = |waiting: &&Waiting| {
            addresses += waiting.page.addresses();
            addresses <= MAX_ADDRESSES
        };
        let count = waiting.iter().take(self.max_pages).take_while(fits).count().max(1).min(waiting.len());
        if count == 0 {
            crawls.remove(&self.crawl);
            self.has_ended = true;
            return None;
        }
        Some(waiting.drain(..count).collect())
    }
}

/// Stores pages of one crawl in one transaction. Returns the claims of the stored pages. A page is
/// left out if its claim is lost, or if another transaction has locked its job.
///
/// # Errors
/// Fails with [`queue::QueueError::Stale`] if the crawl has ended, or if the only claim is lost.
async fn store_pages(context: &Context, pages: &[Arc<ReadPage>]) -> Result<Vec<Claim>, ChangeError> {
    let Context { store, queue, .. } = context;
    let mut tx = store.begin().await?;
    let pages: Vec<&ReadPage> = pages.iter().map(|page| &**page).collect();
    let pages = complete_jobs(context, &mut tx, pages).await?;
    let Some(first) = pages.first() else { return Ok(Vec::new()) };
    let (crawl, collection) = (first.job.crawl_id, first.view.crawl.collection_id);
    check_live(store, &mut tx, crawl, first.claim).await?;
    let mut jobs = admit_sitemaps(context, &mut tx, &pages).await?;
    let (linked, links_left_out) = within_directory_budget(context, &mut tx, &pages).await?;
    store.crawls().count_links_left_out(tx.conn(), crawl, &links_left_out).await?;
    let images = admit_images(context, &mut tx, &pages).await?;
    jobs.extend(images.jobs);
    jobs.extend(admit_videos(context, &mut tx, &pages).await?);
    let yields = pages.iter().zip(images.counts).map(|(page, images)| PageYield {
        directories: vec![urls::directory(&page.job.url), urls::host_key(&page.job.url)],
        images,
    });
    store.ledger().count_yields(tx.conn(), crawl, &yields.collect::<Vec<_>>()).await?;
    jobs.extend(admit_pages(context, &mut tx, &pages, &linked).await?);
    let settled: Vec<(Uuid, &PageResult)> =
        pages.iter().map(|page| (page.job.page_id, &page.outcome.result)).collect();
    store.ledger().settle_pages(tx.conn(), &settled).await?;
    change_visits(context, &mut tx, &pages).await?;
    let mentions = pages.iter().map(|page| PageMentions {
        page: page.job.page_id,
        mentions: &page.outcome.mentions,
        videos: &page.outcome.shown_videos,
    });
    store.erasures().clear_pages_with_suppressed(tx.conn(), &mentions.collect::<Vec<_>>()).await?;
    for page in &pages {
        erase_suppressed_file(context, &mut tx, page).await?;
    }
    queue.enqueue(tx.conn(), &jobs).await?;
    tx.commit().await?;

    metrics::histogram!("facecrawl_storing_batch_size", "ledger" => "page").record(pages.len() as f64);
    let forbidden = ImageState::Skipped.as_str();
    (0..images.forbidden_count).for_each(|_| count_outcome("image", forbidden, Some(&Reason::ForbiddenUrl)));
    for (reason, count) in links_left_out {
        let left_out = metrics::counter!("facecrawl_crawl_links_left_out_total", "reason" => reason.code());
        left_out.increment(count.cast_unsigned());
    }
    for page in &pages {
        let PageResult { state, reason, .. } = &page.outcome.result;
        count_outcome("page", state.as_str(), reason.as_ref());
    }
    tracing::debug!(%crawl, collection = %collection, pages = pages.len(), jobs = jobs.len(), "pages stored");
    Ok(pages.iter().map(|page| page.claim).collect())
}

/// Completes the jobs of the pages. Returns those whose claims are held.
async fn complete_jobs<'a>(
    context: &Context,
    tx: &mut Tx,
    pages: Vec<&'a ReadPage>,
) -> Result<Vec<&'a ReadPage>, ChangeError> {
    let queue = &context.queue;
    if let [page] = pages[..] {
        queue.complete(tx.conn(), page.claim).await?;
        return Ok(pages);
    }
    let claims: Vec<Claim> = pages.iter().map(|page| page.claim).collect();
    let held = queue.lock_claims(tx.conn(), &claims).await?;
    let pages: Vec<&ReadPage> = pages.into_iter().filter(|page| held.contains(&page.claim)).collect();
    let claims: Vec<Claim> = pages.iter().map(|page| page.claim).collect();
    queue.complete_locked(tx.conn(), &claims).await?;
    Ok(pages)
}

/// Items that several pages contain.
struct Found<'a, T> {
    items: Vec<T>,
    /// The index of the first page with an item, by the item's URL.
    finders: HashMap<&'a str, usize>,
}

impl<'a, T: Clone + 'a> Found<'a, T> {
    fn collect(
        pages: &[&'a ReadPage],
        items_of: impl Fn(&'a PageOutcome) -> &'a [T],
        url: impl Fn(&'a T) -> &'a str,
    ) -> Self {
        let mut found = Self { items: Vec::new(), finders: HashMap::new() };
        for (index, page) in pages.iter().enumerate() {
            for item in items_of(&page.outcome) {
                found.finders.entry(url(item)).or_insert(index);
                found.items.push(item.clone());
            }
        }
        found
    }

    /// Returns the index of the first page with this URL.
    fn finder(&self, url: &str) -> usize {
        self.finders.get(url).copied().unwrap_or_default()
    }
}

async fn admit_sitemaps(
    context: &Context,
    tx: &mut Tx,
    pages: &[&ReadPage],
) -> Result<Vec<NewJob>, ChangeError> {
    let sitemaps = Found::collect(pages, |outcome| &outcome.sitemaps, |sitemap: &NewPage| &sitemap.url);
    let view = &pages[0].view;
    let (crawl, max_pages) = (view.crawl.id, view.options.max_pages);
    let admitted = context.store.ledger().admit_pages(tx.conn(), crawl, max_pages, &sitemaps.items).await?;
    let to_job = |row: AdmittedUrl| {
        let PageOutcome { sitemap_depth, redirected_seed, .. } = &pages[sitemaps.finder(&row.url)].outcome;
        let page =
            PageJob { sitemap: Some(*sitemap_depth), ..PageJob::new(crawl, row, redirected_seed.clone()) };
        page.queue_job(view.crawl.collection_id, frontier::depth_priority(0))
    };
    Ok(admitted.into_iter().map(to_job).collect())
}

/// Returns the linked pages that the limits of their directories allow, and the numbers of links
/// that are not followed, by reason.
async fn within_directory_budget<'a>(
    context: &Context,
    tx: &mut Tx,
    pages: &[&'a ReadPage],
) -> Result<(Found<'a, NewPage>, BTreeMap<Reason, i64>), ChangeError> {
    let mut left_out: BTreeMap<Reason, i64> = BTreeMap::new();
    for (reason, count) in pages.iter().flat_map(|page| &page.outcome.left_out) {
        *left_out.entry(reason.clone()).or_default() += count;
    }
    let mut found = Found::collect(pages, |outcome| &outcome.pages, |page: &NewPage| &page.url);
    let view = &pages[0].view;
    if let Some(budget) = view.options.max_pages_per_directory {
        let by_directory = page_outcome::by_directory(std::mem::take(&mut found.items));
        let over_budget;
        (found.items, over_budget) = context
            .store
            .ledger()
            .within_directory_budget(tx.conn(), view.crawl.id, budget, by_directory)
            .await?;
        if over_budget > 0 {
            *left_out.entry(Reason::DirectoryFull).or_default() += over_budget;
        }
    }
    Ok((found, left_out))
}

struct AdmittedImages {
    jobs: Vec<NewJob>,
    /// Number of new images of each page, in the order of the pages.
    counts: Vec<i64>,
    /// Number of new images that cannot be fetched.
    forbidden_count: usize,
}

async fn admit_images(
    context: &Context,
    tx: &mut Tx,
    pages: &[&ReadPage],
) -> Result<AdmittedImages, ChangeError> {
    let found = Found::collect(pages, |outcome| &outcome.images, |image: &NewImageUrl| &image.url);
    let (view, ledger) = (&pages[0].view, context.store.ledger());
    let (crawl, max_images) = (view.crawl.id, view.options.max_images);
    let admitted = ledger.admit_images(tx.conn(), crawl, max_images, &found.items).await?;
    let (mut jobs, mut counts, mut unfetchable) = (Vec::new(), vec![0; pages.len()], Vec::new());
    for row in admitted {
        let finder = found.finder(&row.url);
        let ReadPage { job, outcome, .. } = pages[finder];
        let policy = outcome.referrer_policies.get(&row.url).copied();
        let shown_on = policy.map(|policy| ShownOn { page_id: job.page_id, policy });
        let image = ImageJob { shown_on, ..ImageJob::new(crawl, row, job.depth) };
        // The queue rejects jobs with an invalid host name. The row of such an image is settled
        // here, and the rest of the page is stored.
        if urls::host_error(&image.url).is_some() {
            unfetchable.push(image.image_url_id);
        } else {
            counts[finder] += 1;
            jobs.push(image.queue_job(view.crawl.collection_id));
        }
    }
    ledger.skip_image_urls(tx.conn(), &unfetchable, Reason::ForbiddenUrl, NO_HOST).await?;
    Ok(AdmittedImages { jobs, counts, forbidden_count: unfetchable.len() })
}

async fn admit_videos(
    context: &Context,
    tx: &mut Tx,
    pages: &[&ReadPage],
) -> Result<Vec<NewJob>, ChangeError> {
    let found = Found::collect(pages, |outcome| &outcome.videos, |video: &NewVideoUrl| &video.url);
    if found.items.is_empty() {
        return Ok(Vec::new());
    }
    let CrawlView { crawl, options, .. } = &*pages[0].view;
    let request = serde_json::to_value(VideoRequest::of_crawl(options)).expect("options are plain data");
    let videos = context.store.crawled_videos();
    let admitted = videos.admit(tx.conn(), crawl.id, options.video_limits(), &request, &found.items).await?;
    Ok(admitted.into_iter().map(|video_id| VideoJob { video_id }.fetch_job(crawl.collection_id)).collect())
}

/// Admits the linked pages. Their priorities are derived from the current yields.
async fn admit_pages(
    context: &Context,
    tx: &mut Tx,
    pages: &[&ReadPage],
    linked: &Found<'_, NewPage>,
) -> Result<Vec<NewJob>, ChangeError> {
    let (view, ledger) = (&pages[0].view, context.store.ledger());
    let crawl = view.crawl.id;
    let admitted = ledger.admit_pages(tx.conn(), crawl, view.options.max_pages, &linked.items).await?;
    if admitted.is_empty() {
        return Ok(Vec::new());
    }
    let to_job = |row: AdmittedUrl| {
        let redirected_seed = pages[linked.finder(&row.url)].outcome.redirected_seed.clone();
        PageJob::new(crawl, row, redirected_seed)
    };
    let new_jobs: Vec<PageJob> = admitted.into_iter().map(to_job).collect();
    let names: Vec<String> =
        new_jobs.iter().flat_map(|page| [urls::directory(&page.url), urls::host_key(&page.url)]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let yields = ledger.yields(tx.conn(), crawl, &names).await?;
    let jobs = new_jobs.iter().zip(yields.chunks_exact(2)).map(|(page, yields)| {
        let priority = frontier::priority(page.depth, to_yield(yields[0]), to_yield(yields[1]));
        page.queue_job(view.crawl.collection_id, priority)
    });
    Ok(jobs.collect())
}

fn to_yield(yields: DirectoryYield) -> Yield {
    let count = |n: i64| n.max(0).unsigned_abs();
    Yield { pages: count(yields.pages), images: count(yields.images) }
}

/// Stores the cached responses of the pages, for conditional requests of the next run.
async fn change_visits(context: &Context, tx: &mut Tx, pages: &[&ReadPage]) -> Result<(), ChangeError> {
    let (hosts, crawl) = (context.store.hosts(), pages[0].job.crawl_id);
    let (mut renewed, mut replaced) = (Vec::new(), Vec::new());
    if pages.len() > 1 {
        let urls: Vec<&str> = pages.iter().map(|page| page.job.url.as_str()).collect();
        hosts.lock_cached_pages(tx.conn(), crawl, &urls).await?;
    }
    for page in pages {
        let url = page.job.url.as_str();
        match &page.outcome.visit_change {
            VisitChange::Unchanged => {}
            VisitChange::Renewed => renewed.push(url),
            VisitChange::Replaced(visit) => {
                replaced.push(PageVisit { url, reader: &page.extractor, page: visit.as_ref() });
            }
        }
    }
    hosts.renew_cached_pages(tx.conn(), crawl, &renewed).await?;
    Ok(hosts.cache_pages(tx.conn(), crawl, &replaced).await?)
}

/// Erases a page that turned out to be a suppressed image or video.
async fn erase_suppressed_file(context: &Context, tx: &mut Tx, page: &ReadPage) -> Result<(), ChangeError> {
    let (PageResult { reason, final_url, .. }, id) = (&page.outcome.result, page.job.page_id);
    let Some(url) = final_url else { return Ok(()) };
    let erasures = context.store.erasures();
    let suppressed = match reason {
        Some(Reason::IsAnImage) => erasures.erase_page_of_suppressed_image(tx.conn(), id, url).await?,
        Some(Reason::IsAVideo) => erasures.erase_page_of_suppressed_video(tx.conn(), id, url).await?,
        _ => return Ok(()),
    };
    Ok(forget_jobs(&context.queue, tx, &suppressed).await?)
}
