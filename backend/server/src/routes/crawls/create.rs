//! Starts crawls. The rules for their options are in the crate `pipeline`.
use super::view::CrawlView;
use crate::auth::Caller;
use crate::extract::{Bounded, Json as JsonBody, interval};
use crate::routes::shared::analysis::RotateParam;
use crate::routes::shared::values::{check_name, parse_webhook, with_location};
use crate::{ApiError, AppState, Code, Result, Spec};
use axum::http::StatusCode;
use axum::response::Response;
use crawler::{Guard, Scope};
use pipeline::{CrawlOptions, Dedupe, Interval, Rotate, Sitemaps};
use serde::Deserialize;
use utoipa::ToSchema;

/// Which pages a crawl includes.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "only describes crawler::Scope in the OpenAPI document")]
enum ScopeParam {
    Host,
    Domain,
    Prefix,
    List,
}

/// How duplicates are detected.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "only describes pipeline::Dedupe in the OpenAPI document")]
enum DedupeParam {
    Exact,
    Near,
    Off,
}

/// Which sitemaps are read.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "only describes pipeline::Sitemaps in the OpenAPI document")]
enum SitemapsParam {
    Off,
    Robots,
    Always,
}

/// A crawl to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"seeds": ["https://example.org/"], "scope": "host", "max_depth": 2, "max_pages": 200}))]
pub(crate) struct CreateCrawl {
    /// URLs at which the crawl begins: pages or single images, http or https.
    #[schema(value_type = Vec<Url>, min_items = 1, max_items = 10000)]
    seeds: Vec<String>,
    /// The collection that stores the faces; it must exist. The default is the collection of the
    /// key, else `default`.
    #[schema(pattern = "^[a-z0-9_-]{1,64}$")]
    collection: Option<String>,
    /// `host`: the seeds' hosts. `domain`: their registrable domains. `prefix`: URLs in or below
    /// the directory of a seed. `list`: the hosts in `allow`.
    #[schema(inline, value_type = Option<ScopeParam>, default = "host")]
    scope: Option<Scope>,
    /// Hosts for `list`; a leading `*.` covers subdomains.
    allow: Option<Vec<String>>,
    /// Maximum number of links between a seed and a page.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 50, default = 3)]
    max_depth: Option<Bounded<0, 50>>,
    /// Maximum number of pages.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000000, default = 1000)]
    max_pages: Option<Bounded<1, 1_000_000>>,
    /// Maximum number of image URLs.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10000000, default = 5000)]
    max_images: Option<Bounded<1, 10_000_000>>,
    /// Minimum time in milliseconds between two requests to a host. Null means that robots.txt and
    /// the host's response time determine it.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 300000)]
    delay_ms: Option<Bounded<0, 300_000>>,
    /// Obey robots.txt and robots directives.
    #[schema(default = true)]
    respect_robots: Option<bool>,
    /// Send conditional requests for URLs that the collection has visited. Unchanged pages and
    /// images are not downloaded again (`not_modified`). `false` downloads everything again.
    #[schema(default = true)]
    revalidate: Option<bool>,
    /// `exact` detects files with the same bytes. `near` also detects the same image in different
    /// files; images of different people always stay apart. `off` processes every URL.
    #[schema(inline, value_type = Option<DedupeParam>, default = "near")]
    dedupe: Option<Dedupe>,
    /// `auto`: if no face of an image is certainly upright, also search the rotated image (see
    /// `POST /faces/detect`). It also applies to frames of videos.
    #[schema(inline, value_type = Option<RotateParam>, default = "off")]
    rotate: Option<Rotate>,
    /// Also read the videos to which pages, sitemaps and feeds refer: `<video>`, `og:video`,
    /// JSON-LD, links and enclosures. A crawl ends after the last of its videos.
    #[schema(default = false)]
    videos: Option<bool>,
    /// Maximum number of videos.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10000, default = 100)]
    max_videos: Option<Bounded<1, 10_000>>,
    /// Maximum number of videos of one host. Null means no limit per host.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10000)]
    max_videos_per_host: Option<Bounded<1, 10_000>>,
    /// `robots` reads the sitemaps that the robots.txt of a seed lists. `always` also reads
    /// `/sitemap.xml` if robots.txt lists none. `off` reads none. A sitemap counts as a page, and
    /// its URLs count as links of the seed.
    #[schema(inline, value_type = Option<SitemapsParam>, default = "robots")]
    sitemaps: Option<Sitemaps>,
    /// Maximum number of pages in one directory. Pages that differ only in numbers or queries
    /// belong to one directory. The limit ends crawls of endless calendars. Null means no limit.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000000)]
    max_pages_per_directory: Option<Bounded<1, 1_000_000>>,
    /// Repeats the crawl. The value is the time from the start of one run to the start of the next,
    /// `5m` to `366d` (`m`, `h`, `d`, `w`). Every run is a separate crawl of the same series with
    /// the same options. A run begins only after the previous run has ended.
    #[schema(value_type = Option<String>, pattern = "^[0-9]+[mhdw]$", example = "24h")]
    #[serde(default, deserialize_with = "interval")]
    every: Option<Interval>,
    /// An http or https URL that receives a signed `POST` when a run has ended. The `POST` is
    /// repeated until the response status is 2xx. The URL must pass the same guard as the pages of
    /// a crawl, and the service requires a `WEBHOOK_SECRET`.
    #[schema(format = Uri, example = "https://example.org/hooks/crawls")]
    webhook: Option<String>,
}

impl CreateCrawl {
    fn options(&self, guard: &Guard) -> Result<CrawlOptions> {
        let defaults = CrawlOptions::default();
        Ok(CrawlOptions {
            scope: self.scope.unwrap_or(defaults.scope),
            allow: self.allow.clone().unwrap_or_default(),
            max_depth: self
                .max_depth
                .map_or(defaults.max_depth, |n| i32::try_from(n.get()).unwrap_or(defaults.max_depth)),
            max_pages: self.max_pages.map_or(defaults.max_pages, Bounded::get),
            max_images: self.max_images.map_or(defaults.max_images, Bounded::get),
            delay_ms: self.delay_ms.map(|n| n.get().unsigned_abs()),
            respect_robots: self.respect_robots.unwrap_or(defaults.respect_robots),
            revalidate: self.revalidate.unwrap_or(defaults.revalidate),
            dedupe: self.dedupe.unwrap_or(defaults.dedupe),
            rotate: self.rotate.unwrap_or(defaults.rotate),
            videos: self.videos.unwrap_or(defaults.videos),
            max_videos: self.max_videos.map_or(defaults.max_videos, Bounded::get),
            max_videos_per_host: self.max_videos_per_host.map(Bounded::get),
            sitemaps: self.sitemaps.unwrap_or(defaults.sitemaps),
            max_pages_per_directory: self.max_pages_per_directory.map(Bounded::get),
            every: self.every,
            webhook: self.webhook.as_deref().map(|text| parse_webhook(text, guard)).transpose()?,
        })
    }
}

pub(super) const SPEC: Spec = Spec::needs(store::keys::Scope::Crawl).problems(&[&[
    Code::ForbiddenUrl,
    Code::NotFound,
    Code::VideoUnavailable,
]]);

/// Start a crawl.
///
/// It runs in the background. `GET /crawls/{id}` and `GET /crawls/{id}/events` report its progress.
#[utoipa::path(
    post, path = "/crawls", operation_id = "create_crawl", tag = "crawls",
    request_body = CreateCrawl,
    responses(
        (status = 201, description = "The crawl has started; its URL is in `Location`", body = CrawlView, headers(("location"))),
        (status = 422, description = "A seed or an option is invalid; `field` contains its name"),
    ),
)]
pub(super) async fn create_crawl(
    state: AppState,
    caller: Caller,
    JsonBody(body): JsonBody<CreateCrawl>,
) -> Result<Response> {
    if let Some(name) = &body.collection {
        check_name("collection", name)?;
    }
    let options = body.options(state.services.fetcher.guard())?;
    let collection = collection(&caller, body.collection.as_deref()).await?;
    if options.videos {
        state.video_tools()?;
    }
    let crawl = state.services.crawls.create(&collection, &body.seeds, options).await?;
    let path = format!("/crawls/{}", crawl.id);
    with_location(StatusCode::CREATED, &path, CrawlView::load(&caller, crawl).await?)
}

/// Returns the name of a collection that the caller may access. A collection that the caller may
/// not access gives the same error as one that does not exist.
async fn collection(caller: &Caller, name: Option<&str>) -> Result<String> {
    let result = caller.collection(name).await;
    result.map(|collection| collection.name).map_err(|error| match (error.code(), name) {
        (Code::NotFound, Some(name)) => {
            let message = format!("collection: there is no collection {name:?}; create it first");
            ApiError::new(Code::InvalidField, message).field("collection")
        }
        _ => error,
    })
}
