//! Adds videos, from an upload or an address.
use super::upload::rules;
use super::view::VideoView;
use crate::auth::Caller;
use crate::extract::{Query, content_length, is_json, read_small_json};
use crate::routes::shared::analysis::RotateParam;
use crate::routes::shared::spool::{refuse, spool};
use crate::routes::shared::values::{Binary, with_location};
use crate::routes::videos::upload::{MaxGap, check_type, file_address, video_request};
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use pipeline::{AddOutcome, Rotate, Upload, VideoLimits};
use serde::Deserialize;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// Maximum length of a JSON body in bytes: the longest URL, with space for escapes.
const MAX_JSON: usize = 32 << 10;
/// Time limit for a JSON body. The limits of an upload would allow an hour.
const JSON_TIME: Duration = Duration::from_secs(10);
/// Time after which a caller may try again if too many videos wait.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Options of a new video.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CreateParams {
    /// The collection of its faces; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Which frames are analysed. `auto`: keyframes, and frames between them where they are more
    /// than `max_gap_ms` apart. `keyframes`: only keyframes. `fps=N`: N frames per second, from 0.1
    /// to 30.
    #[param(pattern = r"^(auto|keyframes|fps=[0-9.]+)$", default = "auto", example = "fps=5")]
    sampling: Option<String>,
    /// Longest time without an analysed frame with `auto`, in milliseconds.
    #[param(value_type = Option<u32>, minimum = 200, maximum = 60000, default = 2000)]
    max_gap_ms: Option<MaxGap>,
    /// Whether `auto` analyses more frames where faces are visible: at least 4 frames per second
    /// between a frame with a face and the frames before and after it.
    #[param(default = false)]
    refine: Option<bool>,
    /// `auto`: if no face of a frame is certainly upright, also search the rotated frame (see `POST
    /// /faces/detect`). The rotation that the file states is always applied.
    #[param(inline, value_type = Option<RotateParam>)]
    rotate: Option<Rotate>,
}

/// A video that the service fetches.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"url": "https://example.org/film.mp4"}))]
pub(super) struct VideoByUrl {
    /// The http or https URL of a file, or of a playlist of HLS.
    #[schema(format = Uri)]
    url: String,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Write)
    .problems(&[&[
        Code::NotAVideo,
        Code::VideoUnavailable,
        Code::Conflict,
        Code::NotReady,
        Code::BadUrl,
        Code::ForbiddenUrl,
        Code::DiskFull,
    ]])
    .uploads();

/// Add a video: find who appears when, and store the faces.
///
/// The body is the file, or JSON with the URL of the file, which a worker fetches under the same
/// guard as the crawler. The video is analysed in the background; `GET /videos/{id}` reports the
/// progress. The file is deleted when the video has ended. If the collection has a video of the
/// same file, or a video of the same URL that has not ended, that one is returned. If another URL
/// leads to the same file, the video fails with `exact_duplicate`.
#[utoipa::path(
    post, path = "/videos", operation_id = "create_video", tag = "videos",
    params(CreateParams),
    request_body(content((Binary = "video/*"), (Binary = "application/octet-stream"), (VideoByUrl = "application/json"))),
    responses(
        (status = 202, description = "The video was added; its URL is in `Location`", body = VideoView, headers(("location"))),
        (status = 200, description = "The collection has a video of the same file, or a video of the same URL that has not ended", body = VideoView, headers(("location"))),
    ),
)]
pub(super) async fn create_video(
    state: AppState,
    caller: Caller,
    Query(params): Query<CreateParams>,
    request: Request,
) -> Result<Response> {
    let headers = request.headers();
    if is_json(headers) {
        let VideoByUrl { url } = read_small_json(request, MAX_JSON, JSON_TIME).await?;
        let collection = caller.collection(params.collection.as_deref()).await?;
        let options =
            video_request(params.sampling.as_deref(), params.max_gap_ms, params.refine, params.rotate)?;
        let address = file_address(&state, &url)?;
        state.video_tools()?;
        let videos = &state.services.videos;
        let added = videos.add_address(collection.id, &address, options).await?;
        return added_response(&caller, added, videos.limits()).await;
    }
    let type_check = check_type(headers, &["application/json"]);
    let preparation = async {
        // The permit is acquired before the first database statement, because it limits the
        // connections of uploads.
        let permit = state.uploads.admit()?;
        let collection = caller.collection(params.collection.as_deref()).await?;
        type_check?;
        let options =
            video_request(params.sampling.as_deref(), params.max_gap_ms, params.refine, params.rotate)?;
        let spool = state.video_tools()?.spool.clone();
        let videos = &state.services.videos;
        if !videos.has_capacity(collection.id, content_length(headers)).await? {
            return Err(too_many(videos.limits()));
        }
        Ok((options, collection, spool, permit))
    };
    let (options, collection, folder, _permit) = match preparation.await {
        Ok(preparation) => preparation,
        Err(error) => return refuse(request, error).await,
    };
    let mut spooled = spool(request, &folder, rules(state.config.max_video_bytes)).await?;
    let videos = &state.services.videos;
    let key = videos.blobs().put_file("videos", "bin", &spooled.sha256, &mut spooled.file).await?;
    let upload = Upload { sha256: spooled.sha256, bytes: spooled.bytes, key };
    let added = videos.add(collection.id, &upload, options).await;
    if !matches!(added, Ok(AddOutcome::New(_))) {
        videos.discard_upload(upload.key).await;
    }
    added_response(&caller, added?, videos.limits()).await
}

pub(super) fn too_many(limits: VideoLimits) -> ApiError {
    let VideoLimits { videos, bytes } = limits;
    let message = format!(
        "the collection may have {videos} videos that wait, with files of {} MiB; wait for some, or delete failed ones",
        bytes >> 20
    );
    ApiError::overloaded(message, RETRY_AFTER)
}

async fn added_response(caller: &Caller, added: AddOutcome, limits: VideoLimits) -> Result<Response> {
    let (status, id) = match added {
        AddOutcome::New(id) => (StatusCode::ACCEPTED, id),
        AddOutcome::Existing(id) => (StatusCode::OK, id),
        AddOutcome::LimitReached => return Err(too_many(limits)),
    };
    let view = VideoView::from(caller.store().videos().get(id).await?);
    with_location(status, &format!("/videos/{id}"), view)
}
