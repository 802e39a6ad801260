//! Computes the rows that a fetched page, sitemap or feed adds to a crawl's ledgers, from the
//! crawl's scope, depth and options. Fetching and storing are in `page`.

use super::context::{Context, CrawlView, in_scope};
use crate::domain::Sitemaps;
use crate::domain::jobs::PageJob;
use crawler::sitemap::VideoEntry;
use crawler::{Directives, Fetched, ImageCandidate, Page, ReferrerPolicy, Scope, Sitemap, extract, urls};
use domain::{PageState, Reason};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use store::crawls::http_cache::CachedPage;
use store::crawls::pages::{NewImageUrl, NewPage, PageResult};
use store::videos::crawled::NewVideoUrl;
use url::Url;

/// Maximum nesting depth of sitemaps: robots.txt, index, index, sitemap.
const MAX_SITEMAP_DEPTH: u8 = 3;

/// The pages, sitemaps, images and videos that a page yielded, and the result for its own row.
pub(crate) struct PageOutcome {
    pub(crate) pages: Vec<NewPage>,
    /// Numbers of links that are not followed, by reason.
    pub(crate) left_out: BTreeMap<Reason, i64>,
    /// Further sitemaps. Their rows have depth 0, so that their entries are like links of a seed.
    pub(crate) sitemaps: Vec<NewPage>,
    /// The nesting depth of `sitemaps`.
    pub(crate) sitemap_depth: u8,
    pub(crate) images: Vec<NewImageUrl>,
    /// The policy of each image of an HTML page, by the URL of the image.
    pub(crate) referrer_policies: HashMap<String, ReferrerPolicy>,
    /// Empty if the crawl does not read videos.
    pub(crate) videos: Vec<NewVideoUrl>,
    /// The addresses of the videos of an HTML page, also if the crawl does not read videos.
    pub(crate) shown_videos: Vec<String>,
    /// The URL to which the seed was redirected.
    pub(crate) redirected_seed: Option<Url>,
    pub(crate) result: PageResult,
    /// The addresses of everything that the page links to or contains.
    pub(crate) mentions: Vec<String>,
    pub(crate) visit_change: VisitChange,
}

impl PageOutcome {
    fn new(result: PageResult) -> Self {
        Self {
            pages: Vec::new(),
            left_out: BTreeMap::new(),
            sitemaps: Vec::new(),
            sitemap_depth: 0,
            images: Vec::new(),
            referrer_policies: HashMap::new(),
            videos: Vec::new(),
            shown_videos: Vec::new(),
            redirected_seed: None,
            result,
            mentions: Vec::new(),
            visit_change: VisitChange::Unchanged,
        }
    }
}

/// How the stored visit of a page changes.
pub(crate) enum VisitChange {
    /// No change, because the content is not an HTML page.
    Unchanged,
    /// This visit replaces the last one. `None` only deletes the last one, because this visit has
    /// no validators.
    Replaced(Option<CachedPage>),
    /// The last visit is still valid.
    Renewed,
}

pub(crate) struct Rules {
    view: Arc<CrawlView>,
    job: PageJob,
    normalization: urls::Spelling,
    agent: String,
}

impl Rules {
    pub(crate) fn new(context: &Context, view: &Arc<CrawlView>, job: &PageJob) -> Self {
        let agent = context.fetcher.agent().to_owned();
        Self { view: view.clone(), job: job.clone(), normalization: context.config.spelling.clone(), agent }
    }

    fn robots_directives(&self, fetched: &Fetched) -> Directives {
        if !self.view.options.respect_robots {
            return Directives::default();
        }
        Directives::parse(fetched.robots_tags.iter().map(String::as_str), &self.agent)
    }
}

/// Computes the outcome of an HTML page. `sitemaps` are the sitemaps of its host if the page is a
/// seed. A page has up to 10,000 links, so do not call this function or [`from_sitemap`] on a
/// thread of the async runtime.
pub(crate) fn from_page(rules: &Rules, fetched: Fetched, page: Page, sitemaps: Vec<Url>) -> PageOutcome {
    let Rules { view, job, .. } = rules;
    let mentions = page.addresses().map(str::to_owned).collect();
    let directives = page.directives.union(rules.robots_directives(&fetched));
    let directives = if view.options.respect_robots { directives } else { Directives::default() };
    let redirected_seed = job.redirected_seed.clone().or_else(|| {
        let left_scope = job.depth == 0 && !in_scope(view, None, &fetched.url);
        left_scope.then(|| fetched.url.clone())
    });
    let mut collector = PageCollector::new(rules, redirected_seed.as_ref());
    if !directives.nofollow {
        let links = page.links.iter().filter(|link| !(link.nofollow && view.options.respect_robots));
        links.for_each(|link| collector.add(&link.url));
        page.feeds.iter().for_each(|feed| collector.add(feed));
    }
    let (pages, left_out) = collector.finish();
    let final_url = fetched.url.clone();
    let page_url = final_url.to_string();
    let original_url = original_url(job, &fetched);
    let denied = directives.image_denial();
    let policy = |image: &ImageCandidate| (image.url.to_string(), page.referrer_policy_of(image));
    let referrer_policies = page.images.iter().map(policy).collect();
    let images = match &denied {
        Some(_) => Vec::new(),
        None => (page.images.into_iter())
            .map(|image| NewImageUrl {
                url: image.url.into(),
                page_url: Some(page_url.clone()),
                requested_url: original_url.clone(),
                alt: image.alt,
            })
            .collect(),
    };
    let shown_videos = page.videos.iter().map(|video| video.url.to_string()).collect();
    let videos = match &denied {
        None if view.options.videos => (page.videos.into_iter())
            .filter_map(|video| new_video(video.url, Some(page_url.clone()), original_url.clone()))
            .collect(),
        _ => Vec::new(),
    };
    let result = page_result(fetched, denied, page.title);
    let sitemaps = new_seed_pages(sitemaps.into_iter().filter(|url| may_list(url, &final_url)));
    PageOutcome {
        pages,
        left_out,
        sitemaps,
        sitemap_depth: 1,
        images,
        referrer_policies,
        videos,
        shown_videos,
        redirected_seed,
        result,
        mentions,
        visit_change: VisitChange::Unchanged,
    }
}

/// Computes the outcome of a sitemap or a feed. A `noindex` directive applies to the file itself,
/// not to its entries, and is ignored.
pub(crate) fn from_sitemap(rules: &Rules, fetched: Fetched, map: Sitemap) -> PageOutcome {
    let Rules { view, job, .. } = rules;
    let robots_directives = Directives { noindex: false, ..rules.robots_directives(&fetched) };
    let directives = if view.options.respect_robots { robots_directives } else { Directives::default() };
    let denied = directives.image_denial();
    let sitemap_url = fetched.url.to_string();
    let mut collector = PageCollector::new(rules, job.redirected_seed.as_ref());
    let mut images = Vec::new();
    let mut videos = map.videos;
    for entry in &map.pages {
        if extract::has_video_extension(entry.url.path()) {
            videos.push(VideoEntry { url: entry.url.clone(), page: None });
        } else if extract::has_image_extension(entry.url.path()) {
            images.push(NewImageUrl {
                url: entry.url.to_string(),
                page_url: Some(sitemap_url.clone()),
                requested_url: None,
                alt: None,
            });
        } else if !directives.nofollow {
            collector.add(&entry.url);
        }
    }
    images.extend(map.images.into_iter().map(|image| {
        // A page of another site is not recorded as the image's source. Otherwise an erasure of
        // that page would erase the image.
        let page = image.page.filter(|page| may_list(page, &fetched.url));
        NewImageUrl {
            url: image.url.into(),
            page_url: Some(page.map_or_else(|| sitemap_url.clone(), String::from)),
            requested_url: None,
            alt: None,
        }
    }));
    if denied.is_some() {
        images.clear();
    }
    let videos = match view.options.videos && denied.is_none() {
        true => (videos.into_iter())
            .filter_map(|video| {
                let page = video.page.filter(|page| may_list(page, &fetched.url));
                new_video(video.url, Some(page.map_or_else(|| sitemap_url.clone(), String::from)), None)
            })
            .collect(),
        false => Vec::new(),
    };
    let sitemap_depth = job.sitemap.unwrap_or(0) + 1;
    let children = map
        .sitemaps
        .into_iter()
        .filter(|url| sitemap_depth <= MAX_SITEMAP_DEPTH && may_list(url, &fetched.url));
    let sitemaps = if view.options.max_depth > job.depth { new_seed_pages(children) } else { Vec::new() };
    let (pages, left_out) = collector.finish();
    let result = page_result(fetched, denied, None);
    let redirected_seed = job.redirected_seed.clone();
    PageOutcome {
        pages,
        left_out,
        sitemaps,
        sitemap_depth,
        images,
        videos,
        redirected_seed,
        ..PageOutcome::new(result)
    }
}

/// Computes the outcome of a page that is an image. The image is added to the image ledger.
pub(crate) fn from_image(job: &PageJob, fetched: &Fetched) -> PageOutcome {
    let detail = "the URL is an image; it was added to the images of the crawl";
    let result = skipped_result(fetched, Reason::IsAnImage, detail);
    let requested_url = original_url(job, fetched);
    let images = vec![NewImageUrl { url: fetched.url.to_string(), page_url: None, requested_url, alt: None }];
    PageOutcome { images, ..PageOutcome::new(result) }
}

/// Computes the outcome of a page that is a video file or a playlist. The video is added to those
/// of the crawl, if the crawl reads videos.
pub(crate) fn from_video(view: &CrawlView, job: &PageJob, fetched: &Fetched) -> PageOutcome {
    let detail = match view.options.videos {
        true => "the URL is a video; it was added to the videos of the crawl",
        false => "the URL is a video, and the crawl reads no videos; start one with \"videos\": true",
    };
    let result = skipped_result(fetched, Reason::IsAVideo, detail);
    let video = new_video(fetched.url.clone(), None, original_url(job, fetched));
    let videos = video.filter(|_| view.options.videos).into_iter().collect();
    PageOutcome { videos, ..PageOutcome::new(result) }
}

fn skipped_result(fetched: &Fetched, reason: Reason, detail: &str) -> PageResult {
    PageResult {
        reason: Some(reason),
        detail: Some(detail.into()),
        status: Some(i32::from(fetched.status)),
        final_url: Some(fetched.url.to_string()),
        ..PageResult::new(PageState::Skipped)
    }
}

/// Returns a video to admit, or `None` if its host name is invalid.
fn new_video(url: Url, page_url: Option<String>, requested_url: Option<Arc<str>>) -> Option<NewVideoUrl> {
    if urls::host_error(&url).is_some() {
        return None;
    }
    Some(NewVideoUrl { host: urls::host_key(&url), url: url.into(), page_url, requested_url })
}

fn original_url(job: &PageJob, fetched: &Fetched) -> Option<Arc<str>> {
    (job.url != fetched.url).then(|| job.url.as_str().into())
}

/// Returns the sitemaps to read with a seed: those listed in robots.txt, or else `/sitemap.xml` if
/// the crawl's options request it.
pub(crate) async fn sitemaps_of(context: &Context, view: &CrawlView, job: &PageJob, url: &Url) -> Vec<Url> {
    let options = &view.options;
    if job.depth > 0 || options.max_depth == 0 || options.sitemaps == Sitemaps::Off {
        return Vec::new();
    }
    let mut urls = Vec::new();
    if options.respect_robots {
        // The fetch has just read these rules. If they are missing, the crawl has no sitemaps.
        urls = context
            .robots
            .rules(url, view.own_delay())
            .await
            .map(|rules| rules.sitemaps())
            .unwrap_or_default();
    }
    if urls.is_empty() && options.sitemaps == Sitemaps::Always {
        urls.extend(url.join("/sitemap.xml"));
    }
    urls
}

/// Returns `true` if a sitemap at `from` may list `url`: only on its own site (sitemaps.org).
fn may_list(url: &Url, from: &Url) -> bool {
    Scope::Domain.contains(std::slice::from_ref(from), &[], url) && urls::trap_reason(url).is_none()
}

fn new_seed_pages(urls: impl Iterator<Item = Url>) -> Vec<NewPage> {
    urls.map(|url| NewPage { url: url.into(), depth: 0 }).collect()
}

/// Collects the pages that belong to the crawl, and counts the others.
struct PageCollector<'a> {
    normalization: &'a urls::Spelling,
    view: &'a CrawlView,
    depth: i32,
    redirected_seed: Option<&'a Url>,
    pages: Vec<NewPage>,
    /// The number of omitted pages of the site, by reason. Pages of other sites are not counted,
    /// because they never belonged to the crawl.
    left_out: BTreeMap<Reason, i64>,
}

impl<'a> PageCollector<'a> {
    fn new(rules: &'a Rules, redirected_seed: Option<&'a Url>) -> Self {
        Self {
            normalization: &rules.normalization,
            view: &rules.view,
            depth: rules.job.depth,
            redirected_seed,
            pages: Vec::new(),
            left_out: BTreeMap::new(),
        }
    }

    fn add(&mut self, url: &Url) {
        if self.depth >= self.view.options.max_depth
            || !in_scope(self.view, self.redirected_seed, url)
            || !extract::is_page_path(url.path())
        {
            return;
        }
        let url = self.normalization.apply(url.clone());
        match urls::trap_reason(&url) {
            Some(reason) => *self.left_out.entry(reason).or_default() += 1,
            None => self.pages.push(NewPage { url: url.into(), depth: self.depth + 1 }),
        }
    }

    fn finish(self) -> (Vec<NewPage>, BTreeMap<Reason, i64>) {
        (self.pages, self.left_out)
    }
}

fn page_result(fetched: Fetched, denied: Option<Reason>, title: Option<String>) -> PageResult {
    let incomplete = fetched.is_incomplete.then_some(Reason::IncompleteTransfer);
    let detail = match (&denied, &incomplete) {
        (Some(reason), _) => Some(format!("its images were not processed: {reason}")),
        (None, Some(_)) => Some("the transfer ended early; only the received part was read".into()),
        (None, None) => None,
    };
    PageResult {
        state: PageState::Fetched,
        reason: denied.or(incomplete),
        detail,
        status: Some(i32::from(fetched.status)),
        final_url: Some(fetched.url.into()),
        title,
        etag: fetched.etag,
        last_modified: fetched.last_modified,
    }
}

/// Returns each page with the directory whose limit applies to it.
pub(crate) fn by_directory(pages: Vec<NewPage>) -> Vec<(NewPage, String)> {
    let directory =
        |page: &NewPage| Url::parse(&page.url).map(|url| urls::directory(&url)).unwrap_or_default();
    pages
        .into_iter()
        .map(|page| {
            let name = directory(&page);
            (page, name)
        })
        .collect()
}
