//! Gets and lists crawls with their progress, and lists the images that they did not process.
use crate::auth::Caller;
use crate::extract::{Bounded, Id, List, Query, uuid};
use crate::follow::Snapshot;
use crate::{Result, Spec};
use axum::Json;
use domain::{CrawlKind, CrawlState, ImageState, PageState, Reason, VideoState};
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use store::crawls::ledger::UnprocessedImage;
use store::crawls::{Crawl, CrawlFilter};
use store::keys::Scope;
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

pub(super) const READ: Spec = Spec::needs(Scope::Read);

/// Pages of a crawl by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct PageCounts {
    #[schema(example = 4)]
    queued: i64,
    #[schema(example = 12)]
    fetched: i64,
    #[schema(example = 1)]
    skipped: i64,
    #[schema(example = 0)]
    failed: i64,
}

/// Image URLs of a crawl by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ImageCounts {
    #[schema(example = 9)]
    queued: i64,
    #[schema(example = 30)]
    processed: i64,
    #[schema(example = 4)]
    duplicate: i64,
    #[schema(example = 2)]
    skipped: i64,
    #[schema(example = 1)]
    failed: i64,
    #[schema(example = 0)]
    suppressed: i64,
}

/// Videos of a crawl by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct VideoCounts {
    #[schema(example = 1)]
    queued: i64,
    #[schema(example = 1)]
    running: i64,
    #[schema(example = 0)]
    paused: i64,
    #[schema(example = 2)]
    completed: i64,
    #[schema(example = 0)]
    cancelled: i64,
    #[schema(example = 1)]
    failed: i64,
}

/// How often a limit kept the crawl from adding an address that it did not know. An address that is
/// found on several pages counts each time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct OverLimitCounts {
    /// Because of `max_pages`.
    #[schema(example = 310)]
    pages: i64,
    /// Because of `max_images`.
    #[schema(example = 0)]
    images: i64,
    /// Because of `max_videos` or `max_videos_per_host`.
    #[schema(example = 0)]
    videos: i64,
}

/// The progress of a crawl. Every page, image URL and video is counted in exactly one state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Counts {
    pages: PageCounts,
    images: ImageCounts,
    videos: VideoCounts,
    /// Number of faces found in its images and videos.
    #[schema(example = 41)]
    faces: i64,
    over_limit: OverLimitCounts,
    /// Number of links that its pages did not follow, by reason: `directory_full` because of
    /// `max_pages_per_directory`, the others because of the URL. A link counts on each page.
    #[schema(value_type = BTreeMap<String, i64>, example = json!({"directory_full": 12}))]
    links_left_out: BTreeMap<Reason, i64>,
}

/// A crawl.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct CrawlView {
    /// Its id.
    id: Uuid,
    /// Its state.
    state: CrawlState,
    /// `web` for a web crawl, `scan` for a scan of local files.
    kind: CrawlKind,
    /// The seeds. Lists and events contain at most the first 100 seeds, and fewer if these exceed
    /// 16 KiB. `GET /crawls/{id}` returns all seeds.
    #[schema(example = json!(["https://example.org/"]))]
    seeds: Vec<String>,
    /// Number of seeds.
    #[schema(example = 1)]
    seed_count: i32,
    /// The collection of the crawl.
    #[schema(example = "default")]
    collection: String,
    /// The options of the crawl. With a key without the scope `write`, `webhook` contains only
    /// scheme and host.
    #[schema(value_type = Object, example = json!({"scope": "host", "max_depth": 2, "max_pages": 200}))]
    options: serde_json::Value,
    /// Time of creation.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// Time of its end; null while it has not ended.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(example = json!(null))]
    finished_at: Option<OffsetDateTime>,
    /// Id of the first run of its series; null for a crawl without a schedule.
    #[schema(example = json!(null))]
    series_id: Option<Uuid>,
    /// Time at which the next run of its series begins; null while the crawl runs and if there is
    /// no further run.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(example = json!(null))]
    next_run_at: Option<OffsetDateTime>,
    /// Reason for the failure; null if the crawl did not fail.
    #[schema(example = json!(null))]
    error: Option<String>,
    counts: Counts,
    /// Numbers of pages, images and videos that were not processed, by reason code.
    #[schema(value_type = BTreeMap<String, i64>, example = json!({"robots_disallowed": 1, "not_an_image": 1}))]
    reasons: BTreeMap<Reason, i64>,
}

impl CrawlView {
    /// Converts a crawl for a caller. Only a caller with the scope `write` sees the whole address
    /// of the webhook, because such an address can contain a token.
    pub(super) fn new(caller: &Caller, snapshot: Snapshot) -> Self {
        let Snapshot { mut crawl, progress } = snapshot;
        if !caller.allows(Scope::Write) {
            mask_webhook(&mut crawl.options);
        }
        let page = |state| progress.pages.get(&state).copied().unwrap_or_default();
        let video = |state| progress.videos.get(&state).copied().unwrap_or_default();
        let image = |state| progress.images.get(&state).copied().unwrap_or_default();
        Self {
            id: crawl.id,
            state: crawl.state,
            kind: crawl.kind,
            seeds: crawl.seeds,
            seed_count: crawl.seed_count,
            collection: crawl.collection,
            options: crawl.options,
            created_at: crawl.created_at,
            finished_at: crawl.finished_at,
            series_id: crawl.series_id,
            next_run_at: crawl.next_run_at,
            error: crawl.error,
            counts: Counts {
                pages: PageCounts {
                    queued: page(PageState::Queued),
                    fetched: page(PageState::Fetched),
                    skipped: page(PageState::Skipped),
                    failed: page(PageState::Failed),
                },
                images: ImageCounts {
                    queued: image(ImageState::Queued),
                    processed: image(ImageState::Processed),
                    duplicate: image(ImageState::Duplicate),
                    skipped: image(ImageState::Skipped),
                    failed: image(ImageState::Failed),
                    suppressed: image(ImageState::Suppressed),
                },
                videos: VideoCounts {
                    queued: video(VideoState::Queued),
                    running: video(VideoState::Running),
                    paused: video(VideoState::Paused),
                    completed: video(VideoState::Completed),
                    cancelled: video(VideoState::Cancelled),
                    failed: video(VideoState::Failed),
                },
                faces: progress.faces,
                over_limit: OverLimitCounts {
                    pages: progress.over_limit.pages,
                    images: progress.over_limit.images,
                    videos: progress.over_limit.videos,
                },
                links_left_out: progress.links_left_out,
            },
            reasons: progress.reasons,
        }
    }

    pub(super) async fn load(caller: &Caller, crawl: Crawl) -> Result<Self> {
        let progress = caller.store().crawls().progress(crawl.id).await?;
        Ok(Self::new(caller, Snapshot { crawl, progress }))
    }
}

/// Reduces the webhook to scheme, host and port. Removes user name, password, path and query.
fn mask_webhook(options: &mut serde_json::Value) {
    let Some(webhook) = options.get_mut("webhook") else { return };
    if let Some(text) = webhook.as_str() {
        let origin = url::Url::parse(text).map(|url| url.origin().ascii_serialization());
        *webhook = origin.unwrap_or_else(|_| "***".into()).into();
    }
}

/// Return a crawl with its progress.
#[utoipa::path(
    get, path = "/crawls/{id}", operation_id = "get_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl")),
    responses((status = 200, description = "The crawl", body = CrawlView)),
)]
pub(super) async fn get_crawl(caller: Caller, Id(id): Id) -> Result<Json<CrawlView>> {
    let crawl = caller.store().crawls().get(id).await?;
    CrawlView::load(&caller, crawl).await.map(Json)
}

/// Number of crawls whose counts are loaded at a time.
const CONCURRENT_COUNTS: usize = 4;

/// Selects the crawls to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only crawls of this collection.
    collection: Option<String>,
    /// Only crawls in this state.
    #[param(inline)]
    state: Option<CrawlState>,
    /// Only runs of the series with this id, which is the id of its first run.
    #[serde(deserialize_with = "uuid")]
    series_id: Option<Uuid>,
    /// Maximum number of crawls in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 100, default = 20)]
    limit: Option<Bounded<1, 100>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of crawls, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct CrawlList {
    crawls: Vec<CrawlView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

/// List crawls.
#[utoipa::path(
    get, path = "/crawls", operation_id = "list_crawls", tag = "crawls",
    params(ListParams),
    responses((status = 200, description = "A page of crawls, newest first", body = CrawlList)),
)]
pub(super) async fn list_crawls(caller: Caller, Query(params): Query<ListParams>) -> Result<Json<CrawlList>> {
    let store = caller.store();
    if let Some(name) = &params.collection {
        store.collections().get(name).await?;
    }
    let limit = params.limit.map_or(20, Bounded::get);
    let filter = CrawlFilter {
        collection: params.collection.as_deref(),
        state: params.state,
        series: params.series_id,
    };
    let list = List::new("crawls", filter);
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let mut rows = store.crawls().list(&filter, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |crawl| crawl.id);
    let crawls = stream::iter(rows)
        .map(|crawl| CrawlView::load(&caller, crawl))
        .buffered(CONCURRENT_COUNTS)
        .try_collect()
        .await?;
    Ok(Json(CrawlList { crawls, next_cursor }))
}

/// Selects images that were not processed.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UnprocessedParams {
    /// Only images with this reason, such as `http_404`.
    reason: Option<String>,
    /// Maximum number of images in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// An image that a crawl found and did not process.
#[derive(Serialize, ToSchema)]
pub(super) struct UnprocessedImageView {
    /// Its address.
    #[schema(example = "https://example.org/portrait.jpg")]
    url: String,
    /// The first page that contained it; null if it was found on no page.
    #[schema(example = "https://example.org/team")]
    page_url: Option<String>,
    /// `skipped` or `failed`.
    #[schema(value_type = String, example = "failed")]
    state: ImageState,
    /// The code of the reason.
    #[schema(value_type = Option<String>, example = "http_404")]
    reason: Option<Reason>,
    /// The reason as a text.
    #[schema(example = "The server responded with HTTP 404")]
    explanation: Option<String>,
    /// Time at which this was decided.
    #[serde(with = "time::serde::rfc3339::option")]
    finished_at: Option<OffsetDateTime>,
}

impl From<UnprocessedImage> for UnprocessedImageView {
    fn from(image: UnprocessedImage) -> Self {
        Self {
            url: image.url,
            page_url: image.page_url,
            state: image.state,
            explanation: image.reason.as_ref().map(|reason| reason.explanation().into_owned()),
            reason: image.reason,
            finished_at: image.finished_at,
        }
    }
}

/// A page of images that were not processed, in the order in which they were found.
#[derive(Serialize, ToSchema)]
pub(super) struct UnprocessedImages {
    images: Vec<UnprocessedImageView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = json!(null))]
    next_cursor: Option<String>,
}

/// List the images of a crawl that were skipped or failed, with the reason of each.
///
/// Suppressed images are not listed.
#[utoipa::path(
    get, path = "/crawls/{id}/unprocessed-images", operation_id = "list_unprocessed_images", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl"), UnprocessedParams),
    responses((status = 200, description = "A page of images, in the order in which they were found", body = UnprocessedImages)),
)]
pub(super) async fn list_unprocessed_images(
    caller: Caller,
    Id(id): Id,
    Query(params): Query<UnprocessedParams>,
) -> Result<Json<UnprocessedImages>> {
    let store = caller.store();
    let crawl = store.crawls().get(id).await?;
    let reason = params.reason.as_deref().map(Reason::from);
    let list = List::new("unprocessed_images", (id, &reason));
    let after = list.decode_cursor(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut rows = store.ledger().unprocessed_images(crawl.id, reason.as_ref(), after, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |row| row.id);
    Ok(Json(UnprocessedImages { images: rows.into_iter().map(Into::into).collect(), next_cursor }))
}
