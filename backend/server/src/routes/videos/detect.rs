//! Analyses a short video while its result is sent. Nothing is stored.
use super::upload::rules;
use crate::admission::ResponseReservation;
use crate::auth::Caller;
use crate::extract::{Query, Score};
use crate::request::CallerId;
use crate::routes::shared::analysis::{DetectedFace, ModelNames, RotateParam};
use crate::routes::shared::spool::{refuse, spool};
use crate::routes::shared::values::{Binary, TrackBox, milliseconds, to_ms, track_box};
use crate::routes::videos::upload::{MaxGap, check_type, video_request};
use crate::{ApiError, AppState, Code, Result, Scope, Spec, request};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use inference::{Engine, Priority};
use pipeline::{
    FrameFaces, Rotate, VideoAnalysis, VideoAnalyzer, VideoOptions, VideoProgress, VideoTrack, profile_of,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;
use utoipa::IntoParams;
use video::{Decoder, Index};

/// Maximum size of a clip in bytes.
const MAX_BYTES: u64 = 100 << 20;

/// Options of an analysis that stores nothing.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DetectVideoParams {
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
    params(DetectVideoParams),
    request_body(content((Binary = "video/*"), (Binary = "application/octet-stream"))),
    responses((status = 200, description = "One line per frame, and a last line with the tracks", content(
        (String = "application/x-ndjson", example = json!(detect_example())),
    ))),
)]
pub(super) async fn detect_video(
    state: AppState,
    caller: Caller,
    Query(params): Query<DetectVideoParams>,
    request: Request,
) -> Result<Response> {
    let type_check = check_type(request.headers(), &[]);
    let preparation = async {
        // The permit is acquired before the first database statement, because it limits the
        // connections of uploads.
        let permit = state.uploads.admit()?;
        let collection = caller.settings_collection(params.collection.as_deref()).await?;
        type_check?;
        let requested =
            video_request(params.sampling.as_deref(), params.max_gap_ms, params.refine, params.rotate)?;
        let tools = state.video_tools()?.clone();
        let collection_threshold = collection.as_ref().and_then(|collection| collection.match_threshold);
        let options = VideoOptions {
            match_threshold: Some(state.match_threshold(None, collection_threshold).value),
            min_score: params.min_score.map(Score::get),
            quality_profile: collection.as_ref().and_then(profile_of),
            ..VideoOptions::from(requested)
        };
        // Without this, a busy service would refuse the clip only after the upload. The permit
        // is not kept meanwhile, because an upload can be slow.
        drop(state.analyses.admit(1)?);
        Ok((options, tools, permit))
    };
    let (options, tools, permit) = match preparation.await {
        Ok(preparation) => preparation,
        Err(error) => return refuse(request, error).await,
    };
    let spooled = spool(request, &tools.spool, rules(MAX_BYTES.min(state.config.max_video_bytes))).await?;
    let file = spooled.file.into_std().await;
    let admission = state.analyses.admit(1)?;
    let options = (options, params.embeddings.unwrap_or(false));
    let lines = analyze_clip(&state, tools.decoder, file, options, (permit, admission)).await?;
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

fn detect_example() -> String {
    let frame = json!({"at_ms": 200, "faces": [{"box": [136.5, 108.5, 185.75, 244.25], "det_score": 0.93}]});
    format!("{frame}\n{}\n", VideoResult::example())
}

/// Longest duration of a clip.
const MAX_DURATION: Duration = Duration::from_secs(60);
/// Longest time of an analysis.
const MAX_TIME: Duration = Duration::from_secs(600);
/// Maximum number of bytes of lines that wait for their reader. 60 s at 25 frames per second have
/// that many with 40 faces in each frame.
const MAX_WAITING: usize = 4 << 20;

#[derive(Serialize)]
struct FrameLine {
    at_ms: i64,
    faces: Vec<FaceOfFrame>,
}

#[derive(Serialize)]
struct FaceOfFrame {
    #[serde(rename = "box")]
    bbox: (f32, f32, f32, f32),
    det_score: f32,
}

/// Returns the lines of the result. They begin when the first frame was analysed, so that earlier
/// errors get an error response. `guards` is dropped when the analysis ends.
///
/// The analysis does not wait for a slow reader, because it holds frames and a permit meanwhile.
/// Lines that have not been read wait in memory, at most [`MAX_WAITING`] bytes.
///
/// # Errors
/// Fails if the file is not a usable video, if none of its frames can be decoded, or if there is no
/// memory for the lines.
async fn analyze_clip<H: Send + 'static>(
    state: &AppState,
    decoder: Decoder,
    file: File,
    (options, with_embeddings): (VideoOptions, bool),
    guards: H,
) -> Result<impl Stream<Item = Result<Bytes>> + use<H>> {
    let memory = state.response_memory.try_acquire(MAX_WAITING as u64)?;
    let (sender, lines) = unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let caller = CallerId::current().into();
    let analyzer = state.services.analyzer.on_behalf_of(caller).with_deadline(Instant::now() + MAX_TIME);
    let mut progress = Lines {
        sender: sender.clone(),
        waiting: waiting.clone(),
        too_slow: CancellationToken::new(),
        min_score: options.min_score.unwrap_or(analyzer.engine().detector().min_score),
    };
    let (too_slow, waiting_bytes) = (progress.too_slow.clone(), waiting.clone());
    let analysis = async move {
        let _guards = guards;
        let decoder = decoder.with_max_duration(MAX_DURATION);
        // A clip has many frames. With the priority of calls for one image, it would delay these
        // calls.
        let priority = Priority::Background;
        let video = VideoAnalyzer { analyzer: &analyzer, decoder: &decoder, options: &options, priority };
        let analysis = video.analyze(file, &mut progress).await?;
        Ok(line(&VideoResult::new(&analysis, analyzer.engine(), with_embeddings)))
    };
    let too_long = || {
        let minutes = MAX_TIME.as_secs() / 60;
        let sentence = format!("the analysis takes longer than {minutes} minutes; store the video instead");
        ApiError::new(Code::Timeout, sentence)
    };
    let task = async move {
        let last = tokio::select! {
            biased;
            () = too_slow.cancelled() => Err(read_too_slowly()),
            analyzed = tokio::time::timeout(MAX_TIME, analysis) => analyzed.unwrap_or_else(|_| Err(too_long())),
        };
        let length = last.as_ref().map_or(0, Bytes::len);
        let before = waiting_bytes.fetch_add(length, Ordering::Relaxed);
        let last = if before > 0 && before + length > MAX_WAITING { Err(read_too_slowly()) } else { last };
        // Fails only if the response was dropped.
        let _ = sender.send(last);
    };
    // Errors contain the id of the request.
    let task = request::with_id(request::id(), task);
    let task = AbortOnDropHandle::new(tokio::spawn(task.in_current_span()));
    let mut clip = Clip { lines, waiting, _task: task, _memory: memory };
    let first = clip.next().await.transpose()?;
    let later_lines = futures::stream::unfold(clip, async |mut clip| Some((clip.next().await?, clip)));
    Ok(futures::stream::iter(first.map(Ok)).chain(later_lines))
}

fn read_too_slowly() -> ApiError {
    let sentence = format!("{} MiB of the response wait to be read; read it faster", MAX_WAITING >> 20);
    ApiError::new(Code::Timeout, sentence)
}

/// The lines of a result that have not been read. Dropping it ends the analysis and its decoder.
struct Clip {
    /// The lines, and then the last line or the error.
    lines: UnboundedReceiver<Result<Bytes>>,
    /// Number of bytes in `lines`.
    waiting: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
    _memory: ResponseReservation,
}

impl Clip {
    async fn next(&mut self) -> Option<Result<Bytes>> {
        let line = self.lines.recv().await?;
        self.waiting.fetch_sub(line.as_ref().map_or(0, Bytes::len), Ordering::Relaxed);
        Some(line)
    }
}

/// Sends a line for each frame.
struct Lines {
    sender: UnboundedSender<Result<Bytes>>,
    waiting: Arc<AtomicUsize>,
    /// Fires when too many bytes wait.
    too_slow: CancellationToken,
    min_score: f32,
}

impl VideoProgress for Lines {
    fn on_open(&mut self, _: &Index) {}

    fn on_frame(&mut self, frame: FrameFaces<'_>) {
        let faces = frame.faces.iter().map(|tracked| &tracked.face.detection);
        let faces = faces.filter(|face| face.det_score >= self.min_score).map(|face| FaceOfFrame {
            bbox: (face.bbox.x, face.bbox.y, face.bbox.width, face.bbox.height),
            det_score: face.det_score,
        });
        let line = line(&FrameLine { at_ms: to_ms(frame.at_us), faces: faces.collect() });
        if self.waiting.fetch_add(line.len(), Ordering::Relaxed) + line.len() > MAX_WAITING {
            self.too_slow.cancel();
            return;
        }
        // Fails only if the response was dropped, and then the analysis is dropped too.
        let _ = self.sender.send(Ok(line));
    }
}

fn line(value: &impl Serialize) -> Bytes {
    // The values are plain data, so serialising them does not fail.
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct VideoInfo {
    /// The container, such as `matroska,webm`.
    container: String,
    /// The codec, such as `h264`.
    codec: String,
    /// Width in pixels, before rotation.
    width: u32,
    /// Height in pixels, before rotation.
    height: u32,
    /// Duration in milliseconds, if the file reports it.
    duration_ms: Option<i64>,
    keyframes: usize,
    /// Number of frames that were analysed.
    frames: u64,
    /// Longest time, in milliseconds, by which a face is visible before the start or after the end
    /// of its track; null if the distance between analysed frames has no limit.
    tolerance_ms: Option<i64>,
    /// The reason why the video ends early or lacks frames.
    damage: Option<VideoDamage>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct VideoDamage {
    /// Whether the end of the file is missing.
    truncated: bool,
    /// The first message of the decoder.
    message: String,
}

/// A face in successive frames of one shot.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TrackResult {
    /// Number of the track, from 1, in order of the start.
    track: u32,
    /// Number of the person, from 1. `null` if no face of the track meets the quality profile.
    person: Option<u32>,
    /// Time of the first frame in milliseconds.
    start_ms: i64,
    /// Time of the last frame in milliseconds.
    end_ms: i64,
    /// Whether the face is visible in the last analysed frame of the video.
    to_end: bool,
    /// Number of analysed frames with the face.
    samples: u32,
    /// The best shots, best quality first.
    faces: Vec<TrackFaceResult>,
    /// Boxes over time: time in milliseconds, x, y, width and height in pixels. Long tracks omit
    /// boxes that linear interpolation predicts well.
    boxes: Vec<TrackBox>,
}

/// A best shot of a track.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TrackFaceResult {
    /// Time of the frame in milliseconds.
    at_ms: i64,
    #[serde(flatten)]
    face: DetectedFace,
}

/// Durations in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct VideoTimings {
    /// Duration until the keyframes were found.
    index: f64,
    total: f64,
}

/// The people of a video, and the times at which they are visible.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VideoResult {
    video: VideoInfo,
    people: u32,
    tracks: Vec<TrackResult>,
    models: ModelNames,
    timings_ms: VideoTimings,
}

impl VideoResult {
    pub(crate) fn new(analysis: &VideoAnalysis, engine: &Engine, with_embeddings: bool) -> Self {
        let index = &analysis.index;
        let track = |track| TrackResult::new(track, analysis.last_us, with_embeddings);
        let tracks = analysis.tracks.iter().map(track);
        Self {
            video: VideoInfo {
                container: index.container.clone(),
                codec: index.codec.clone(),
                width: index.width,
                height: index.height,
                duration_ms: index.duration_us.map(to_ms),
                keyframes: index.keyframes_us.len(),
                frames: analysis.frames,
                tolerance_ms: analysis.tolerance_us.map(to_ms),
                damage: analysis.damage.as_ref().map(|damage| VideoDamage {
                    truncated: damage.truncated,
                    message: damage.message.clone(),
                }),
            },
            people: analysis.people,
            tracks: tracks.collect(),
            models: ModelNames::new(engine),
            timings_ms: VideoTimings {
                index: milliseconds(analysis.indexing),
                total: milliseconds(analysis.total),
            },
        }
    }

    /// Returns an example with one track, without faces.
    pub(super) fn example() -> Value {
        json!({
            "video": {
                "container": "mov,mp4,m4a,3gp,3g2,mj2", "codec": "h264", "width": 1920, "height": 1080,
                "duration_ms": 8_000, "keyframes": 8, "frames": 40, "tolerance_ms": 200,
                "damage": null
            },
            "people": 1,
            "tracks": [{
                "track": 1, "person": 1, "start_ms": 200, "end_ms": 4_200, "to_end": false, "samples": 21,
                "faces": [], "boxes": [[200, 136.5, 108.5, 185.75, 244.25]]
            }],
            "models": {"detector": "yunet", "embedder": "sface"},
            "timings_ms": {"index": 41.5, "total": 912.25}
        })
    }
}

impl TrackResult {
    fn new(track: &VideoTrack, last_us: Option<i64>, with_embeddings: bool) -> Self {
        let face = |face: &pipeline::TrackFace| TrackFaceResult {
            at_ms: to_ms(face.at_us),
            face: DetectedFace::new(&face.face, with_embeddings),
        };
        Self {
            track: track.number,
            person: track.person,
            start_ms: to_ms(track.started_us),
            end_ms: to_ms(track.ended_us),
            to_end: last_us == Some(track.ended_us),
            samples: track.samples,
            faces: track.faces.iter().map(face).collect(),
            boxes: track.boxes.iter().map(|timed| track_box(timed.at_us, timed.bbox)).collect(),
        }
    }
}
