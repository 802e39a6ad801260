use super::answer::VideoAnswer;
use super::clip::{ClipOptions, analyze_clip};
use super::options::{MaxGap, check_type, video_request};
use super::upload::{place, refuse, spool};
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::values::Score;
use crate::routes::dto::Binary;
use crate::routes::faces::RotateParam;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use pipeline::{Rotate, VideoOptions, profile_of};
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

/// Maximum size of a clip in bytes.
const MAX_BYTES: u64 = 100 << 20;

/// Options of an analysis that stores nothing.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DetectParams {
    /// Use the settings of this collection; the default is the collection of the key. Nothing is
    /// stored in it.
    collection: Option<String>,
    /// Which frames are analysed; see `POST /videos`.
    #[param(pattern = r"^(auto|keyframes|fps=[0-9.]+)$", default = "auto", example = "fps=5")]
    sampling: Option<String>,
    /// Longest time without an analysed frame with `auto`, in milliseconds.
    #[param(value_type = Option<u32>, minimum = 200, maximum = 60000, default = 2000)]
    max_gap_ms: Option<MaxGap>,
    /// Whether `auto` analyses more frames where faces are visible; see `POST /videos`.
    #[param(default = false)]
    refine: Option<bool>,
    /// `auto`: if no face of a frame is certainly upright, also search the rotated frame (see `POST
    /// /faces/detect`). The rotation that the file states is always applied.
    #[param(inline, value_type = Option<RotateParam>)]
    rotate: Option<Rotate>,
    /// Minimum `det_score` of a face that starts a track; the default depends on the detector.
    #[param(value_type = Option<f32>, minimum = 0.1, maximum = 1, example = 0.7)]
    min_score: Option<Score>,
    /// Whether the best shots have embeddings.
    #[param(default = false)]
    embeddings: Option<bool>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Analyze)
    .problems(&[&[
        Code::NotAVideo,
        Code::UnsupportedCodec,
        Code::CorruptVideo,
        Code::VideoTooLarge,
        Code::VideoUnavailable,
        Code::NotReady,
        Code::DiskFull,
    ]])
    .uploads();

/// Find who appears in a short video, and when. Nothing is stored.
///
/// The body is the file: at most 60 seconds and 100 MiB. The response is a stream of lines of JSON.
/// Each analysed frame is a line with its time and its faces, sent when it was analysed; boxes are
/// x, y, width and height in pixels. The last line contains the people, the tracks and the timings.
/// If the analysis fails after the first line, the connection is aborted, so that a partial result
/// cannot be mistaken for a complete one.
#[utoipa::path(
    post, path = "/videos/detect", operation_id = "detect_video", tag = "videos",
    params(DetectParams),
    request_body(content((Binary = "video/*"), (Binary = "application/octet-stream"))),
    responses((status = 200, description = "One line per frame, and a last line with the tracks", content(
        (String = "application/x-ndjson", example = json!(example())),
    ))),
)]
pub(super) async fn detect_video(
    State(state): State<AppState>,
    caller: Caller,
    Query(params): Query<DetectParams>,
    request: Request,
) -> Result<Response, ApiError> {
    let typed = check_type(request.headers(), &[]);
    let prepared = async {
        // Before the first statement of the database: places limit the connections of uploads.
        let place = place(&state)?;
        let collection = caller.settings_collection(params.collection.as_deref()).await?;
        typed?;
        let requested =
            video_request(params.sampling.as_deref(), params.max_gap_ms, params.refine, params.rotate)?;
        let tools = state.video_tools()?.clone();
        let of_collection = collection.as_ref().and_then(|collection| collection.match_threshold);
        let options = VideoOptions {
            match_threshold: Some(state.match_threshold(None, of_collection).value),
            min_score: params.min_score.map(Score::get),
            quality_profile: collection.as_ref().and_then(profile_of),
            ..VideoOptions::from(requested)
        };
        // Without this, a busy service would refuse the clip only after the upload. The place in
        // the queue is not kept meanwhile, because an upload can be slow.
        drop(state.admit(1)?);
        Ok((options, tools, place))
    };
    let (options, tools, place) = match prepared.await {
        Ok(prepared) => prepared,
        Err(error) => return refuse(request, error).await,
    };
    let spooled = spool(request, &tools.spool, MAX_BYTES.min(state.config.max_video_bytes)).await?;
    let file = spooled.file.into_std().await;
    let admission = state.admit(1)?;
    let options = ClipOptions { options, with_embeddings: params.embeddings.unwrap_or(false) };
    let lines = analyze_clip(&state, tools.decoder, file, options, (place, admission)).await?;
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

fn example() -> String {
    let frame = json!({"at_ms": 200, "faces": [{"box": [136.5, 108.5, 185.75, 244.25], "det_score": 0.93}]});
    format!("{frame}\n{}\n", VideoAnswer::example())
}
