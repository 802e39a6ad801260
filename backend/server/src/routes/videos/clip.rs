//! Analyses a short video while its result is sent.
use super::answer::VideoAnswer;
use crate::answer_memory::AnswerMemory;
use crate::auth::CallerId;
use crate::routes::dto::to_ms;
use crate::{ApiError, AppState, Code, request};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use inference::Priority;
use pipeline::{FrameFaces, VideoOptions, VideoProgress};
use serde::Serialize;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;
use video::{Decoder, Index};

/// Longest duration of a clip.
const MAX_DURATION: Duration = Duration::from_secs(60);
/// Longest time of an analysis.
const MAX_TIME: Duration = Duration::from_secs(600);
/// Maximum number of bytes of lines that wait for their reader. 60 s at 25 frames per second have
/// that many with 40 faces in each frame.
const MAX_WAITING: usize = 4 << 20;

pub(super) struct ClipOptions {
    pub(super) options: VideoOptions,
    pub(super) with_embeddings: bool,
}

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
/// errors have a response of their own. `held` is dropped when the analysis ends.
///
/// The analysis does not wait for a slow reader, because it holds frames and a place meanwhile.
/// Lines that have not been read wait in memory, at most [`MAX_WAITING`] bytes.
///
/// # Errors
/// Fails if the file is not a usable video, if none of its frames can be decoded, or if there is no
/// memory for the lines.
pub(super) async fn analyze_clip<H: Send + 'static>(
    state: &AppState,
    decoder: Decoder,
    file: File,
    clip: ClipOptions,
    held: H,
) -> Result<impl Stream<Item = Result<Bytes, ApiError>> + use<H>, ApiError> {
    let memory = AnswerMemory::try_take(state, MAX_WAITING as u64)?;
    let (sender, lines) = unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let caller = CallerId::current().into();
    let analyzer = state.services.analyzer.on_behalf_of(caller).before(Instant::now() + MAX_TIME);
    let mut progress = Lines {
        sender: sender.clone(),
        waiting: waiting.clone(),
        too_slow: CancellationToken::new(),
        min_score: clip.options.min_score.unwrap_or(analyzer.engine().detector().min_score),
    };
    let (too_slow, of_last) = (progress.too_slow.clone(), waiting.clone());
    let analysis = async move {
        let _held = held;
        let decoder = decoder.with_max_duration(MAX_DURATION);
        let ClipOptions { options, with_embeddings } = clip;
        // A clip has many frames. At the priority of calls for one image it would delay them.
        let priority = Priority::Background;
        let analysis = analyzer.analyze_video(&decoder, file, &options, priority, &mut progress).await?;
        Ok(line(&VideoAnswer::of(&analysis, analyzer.engine(), with_embeddings)))
    };
    let task = async move {
        let last = tokio::select! {
            biased;
            () = too_slow.cancelled() => Err(read_too_slowly()),
            analyzed = tokio::time::timeout(MAX_TIME, analysis) => analyzed.unwrap_or_else(|_| Err(too_long())),
        };
        let length = last.as_ref().map_or(0, Bytes::len);
        let before = of_last.fetch_add(length, Ordering::Relaxed);
        let last = if before > 0 && before + length > MAX_WAITING { Err(read_too_slowly()) } else { last };
        // Fails only if the response was dropped.
        let _ = sender.send(last);
    };
    // Errors name the request.
    let task = request::with_id(request::id(), task);
    let task = AbortOnDropHandle::new(tokio::spawn(task.in_current_span()));
    let mut clip = Clip { lines, waiting, _task: task, _memory: memory };
    let first = clip.next().await.transpose()?;
    let rest = futures::stream::unfold(clip, async |mut clip| Some((clip.next().await?, clip)));
    Ok(futures::stream::iter(first.map(Ok)).chain(rest))
}

fn read_too_slowly() -> ApiError {
    let sentence = format!("{} MiB of the response wait to be read; read it faster", MAX_WAITING >> 20);
    ApiError::new(Code::Timeout, sentence)
}

fn too_long() -> ApiError {
    let sentence = format!(
        "the analysis takes longer than {} minutes; store the video instead",
        MAX_TIME.as_secs() / 60
    );
    ApiError::new(Code::Timeout, sentence)
}

/// The lines of a result that have not been read. Dropping it ends the analysis and its decoder.
struct Clip {
    /// The lines, and then the last line or the error.
    lines: UnboundedReceiver<Result<Bytes, ApiError>>,
    /// Number of bytes in `lines`.
    waiting: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
    _memory: AnswerMemory,
}

impl Clip {
    async fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        let line = self.lines.recv().await?;
        self.waiting.fetch_sub(line.as_ref().map_or(0, Bytes::len), Ordering::Relaxed);
        Some(line)
    }
}

/// Sends a line for each frame.
struct Lines {
    sender: UnboundedSender<Result<Bytes, ApiError>>,
    waiting: Arc<AtomicUsize>,
    /// Fires when too many bytes wait.
    too_slow: CancellationToken,
    min_score: f32,
}

impl VideoProgress for Lines {
    fn opened(&mut self, _: &Index) {}

    fn frame(&mut self, frame: FrameFaces<'_>) {
        let faces = frame.faces.iter().map(|found| &found.face.detection);
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
