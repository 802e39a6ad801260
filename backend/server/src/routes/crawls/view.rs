use crate::ApiError;
use crate::auth::Caller;
use crate::follow::Snapshot;
use domain::{CrawlKind, CrawlState, ImageState, PageState, Reason, VideoState};
use serde::Serialize;
use std::collections::BTreeMap;
use store::crawls::Crawl;
use store::keys::Scope;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

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
        if caller.key().is_some_and(|key| !key.allows(Scope::Write)) {
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

    pub(super) async fn of(caller: &Caller, crawl: Crawl) -> Result<Self, ApiError> {
        let progress = caller.store().crawl_progress(crawl.id).await?;
        Ok(Self::new(caller, Snapshot { crawl, progress }))
    }

    pub(super) async fn load(caller: &Caller, id: Uuid) -> Result<Self, ApiError> {
        let crawl = caller.store().crawl(id).await?;
        Self::of(caller, crawl).await
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
