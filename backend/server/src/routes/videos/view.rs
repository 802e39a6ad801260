//! Gets and lists videos.
use crate::auth::Caller;
use crate::extract::{Bounded, Id, List, Query, uuid};
use crate::routes::shared::values::to_ms;
use crate::{Result, Scope, Spec};
use axum::Json;
use domain::{Reason, VideoState};
use pipeline::VideoRequest;
use serde::{Deserialize, Serialize};
use store::videos::{Video, VideoFilter};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

pub(super) const READ: Spec = Spec::needs(Scope::Read);

/// A video.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct VideoView {
    /// Its id.
    id: Uuid,
    /// Its state.
    state: VideoState,
    /// The collection of its faces.
    #[schema(example = "default")]
    collection: String,
    /// The options of the analysis. `refine` is listed only if it is true.
    #[schema(value_type = Object, example = json!({"sampling": "auto", "max_gap_ms": 2000}))]
    options: serde_json::Value,
    /// The address of the file; null for an upload.
    #[schema(example = json!(null))]
    source_url: Option<String>,
    /// The crawl or scan that found the video; null if none did.
    #[schema(example = json!(null))]
    crawl_id: Option<Uuid>,
    /// The page on which the crawl first found it.
    #[schema(example = json!(null))]
    page_url: Option<String>,
    /// With the reason `exact_duplicate`, the video of the same file.
    #[schema(example = json!(null))]
    original_id: Option<Uuid>,
    /// SHA-256 hash of the file, in hexadecimal; null until the file is known.
    #[schema(example = "b7c0ab6c412b751031fb091d747ab6a7a41ff258fd2fc4879b826772c317530c")]
    sha256: Option<String>,
    /// Length of the file in bytes; null until the file is known.
    #[schema(example = 12_345_678)]
    bytes: Option<i64>,
    /// The codec, such as `h264`; null until the file was opened.
    #[schema(example = "h264")]
    codec: Option<String>,
    /// Width of a frame as a player shows it, in pixels; null until a part was read.
    #[schema(example = 1920)]
    width: Option<i32>,
    /// Height of a frame as a player shows it, in pixels; null until a part was read.
    #[schema(example = 1080)]
    height: Option<i32>,
    /// Duration in milliseconds, if the file reports it.
    #[schema(example = 125_000)]
    duration_ms: Option<i64>,
    /// Everything up to this time, in milliseconds, was read and is stored.
    #[schema(example = 125_000)]
    read_ms: Option<i64>,
    /// Number of analysed frames.
    #[schema(example = 63)]
    frames: i64,
    /// Longest time, in milliseconds, by which a face is visible before the start or after the end
    /// of its track; null if the distance between analysed frames has no limit.
    #[schema(example = 2_000)]
    tolerance_ms: Option<i64>,
    /// Number of people; null until the whole video was read.
    #[schema(example = 7)]
    people: Option<i32>,
    /// Number of tracks that are not stored, because no face of them can be recognised.
    #[schema(example = 0)]
    unidentified_tracks: i64,
    /// Why the video could not be read, or not to its end; null if there is nothing to report.
    #[schema(value_type = Option<String>, example = json!(null))]
    reason: Option<Reason>,
    /// Details of `reason`.
    #[schema(example = json!(null))]
    detail: Option<String>,
    /// The camera whose faces of one day (UTC) these are; null for a file.
    #[schema(example = json!(null))]
    stream: Option<String>,
    /// The time from which the times of its tracks count, for a camera; null for a file.
    #[serde(with = "time::serde::rfc3339::option")]
    started_at: Option<OffsetDateTime>,
    /// Whether it can be retried: it failed, and its file is kept or is at a URL that a caller
    /// sent.
    #[schema(example = false)]
    retryable: bool,
    /// Time at which it was added.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// Time of its end; null while it has not ended.
    #[serde(with = "time::serde::rfc3339::option")]
    finished_at: Option<OffsetDateTime>,
}

impl From<Video> for VideoView {
    fn from(video: Video) -> Self {
        let request: Option<VideoRequest> = serde_json::from_value(video.options.clone()).ok();
        let tolerance_us = request.and_then(|request| request.tolerance_us());
        let retryable = video.is_retryable();
        Self {
            id: video.id,
            state: video.state,
            collection: video.collection,
            options: video.options,
            source_url: video.source_url,
            crawl_id: video.crawl_id.or(video.scan_id),
            page_url: video.page_url,
            original_id: video.original_id,
            sha256: video.sha256.map(hex::encode),
            bytes: video.bytes,
            codec: video.codec,
            width: video.width,
            height: video.height,
            duration_ms: video.duration_us.map(to_ms),
            read_ms: video.checkpoint_us.map(to_ms),
            frames: video.frames,
            tolerance_ms: tolerance_us.map(to_ms),
            people: video.people,
            unidentified_tracks: video.unidentified,
            reason: video.reason,
            detail: video.detail,
            stream: video.stream,
            started_at: video.started_at,
            retryable,
            created_at: video.created_at,
            finished_at: video.finished_at,
        }
    }
}

/// Get a video and its progress.
#[utoipa::path(
    get, path = "/videos/{id}", operation_id = "get_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video")),
    responses((status = 200, description = "The video", body = VideoView)),
)]
pub(super) async fn get_video(caller: Caller, Id(id): Id) -> Result<Json<VideoView>> {
    Ok(Json(caller.store().videos().get(id).await?.into()))
}

/// Selects the videos to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Only videos in this state.
    #[param(inline)]
    state: Option<VideoState>,
    /// Only videos that this crawl or scan found.
    #[serde(deserialize_with = "uuid")]
    crawl_id: Option<Uuid>,
    /// Only what is stored of this camera.
    stream: Option<String>,
    /// Maximum number of videos in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 100, default = 20)]
    limit: Option<Bounded<1, 100>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of videos, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct VideoList {
    videos: Vec<VideoView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

/// List videos.
#[utoipa::path(
    get, path = "/videos", operation_id = "list_videos", tag = "videos",
    params(ListParams),
    responses((status = 200, description = "A page of videos, newest first", body = VideoList)),
)]
pub(super) async fn list_videos(caller: Caller, Query(params): Query<ListParams>) -> Result<Json<VideoList>> {
    let collection = caller.collection(params.collection.as_deref()).await?;
    let limit = params.limit.map_or(20, Bounded::get);
    let filter = VideoFilter {
        collection: collection.name,
        state: params.state,
        crawl_id: params.crawl_id,
        stream: params.stream,
    };
    let list = List::new("videos", &filter);
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let mut rows = caller.store().videos().list(&filter, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |video| video.id);
    Ok(Json(VideoList { videos: rows.into_iter().map(VideoView::from).collect(), next_cursor }))
}
