//! Analyses a short video while its result is sent.
use super::answer::VideoAnswer;
use crate::routes::dto::to_ms;
use crate::{ApiError, AppState};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use inference::Priority;
use pipeline::{FrameFaces, VideoOptions, VideoProgress};
use serde::Serialize;
use std::fs::File;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use video::{Decoder, Index};

/// Longest duration of a clip.
const MAX_DURATION: Duration = Duration::from_secs(60);

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
/// errors have a response of their own. `held` is dropped at the end of the stream.
///
/// # Errors
/// Fails if the file is not a usable video, or if none of its frames can be decoded.
pub(super) async fn analyze_clip<H: Send + 'static>(
    state: &AppState,
    decoder: Decoder,
    file: File,
    clip: ClipOptions,
    held: H,
) -> Result<impl Stream<Item = Result<Bytes, ApiError>> + use<H>, ApiError> {
    let (sender, lines) = unbounded_channel();
    let analyzer = state.services.analyzer.clone();
    let analysis: Analysis = Box::pin(async move {
        let _held = held;
        let decoder = decoder.with_max_duration(MAX_DURATION);
        let ClipOptions { options, with_embeddings } = clip;
        let min_score = options.min_score.unwrap_or(analyzer.engine().detector().min_score);
        let mut progress = Lines { sender, min_score };
        // A clip has many frames. At the priority of calls for one image it would delay them.
        let priority = Priority::Background;
        let analysis = analyzer.analyze_video(&decoder, file, &options, priority, &mut progress).await?;
        Ok(line(&VideoAnswer::of(&analysis, analyzer.engine(), with_embeddings)))
    });
    let mut clip = Clip { lines, analysis: Some(analysis), last: None };
    let first = clip.next().await.transpose()?;
    let rest = futures::stream::unfold(clip, async |mut clip| Some((clip.next().await?, clip)));
    Ok(futures::stream::iter(first.map(Ok)).chain(rest))
}

type Analysis = BoxFuture<'static, Result<Bytes, ApiError>>;

/// The rest of a result. The analysis runs only while the caller takes its lines, so the lines that
/// wait are few. Dropping it ends the decoder.
struct Clip {
    lines: UnboundedReceiver<Bytes>,
    /// `None` after its end.
    analysis: Option<Analysis>,
    /// The last line, or the error, after the end of the analysis.
    last: Option<Result<Bytes, ApiError>>,
}

impl Clip {
    async fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        loop {
            let Some(analysis) = &mut self.analysis else {
                let line = self.lines.recv().await;
                return line.map(Ok).or_else(|| self.last.take());
            };
            tokio::select! {
                biased;
                Some(line) = self.lines.recv() => return Some(Ok(line)),
                end = analysis => (self.last, self.analysis) = (Some(end), None),
            }
        }
    }
}

struct Lines {
    sender: UnboundedSender<Bytes>,
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
        // Fails only if the response was dropped, and then the analysis is dropped too.
        let _ = self.sender.send(line(&FrameLine { at_ms: to_ms(frame.at_us), faces: faces.collect() }));
    }
}

fn line(value: &impl Serialize) -> Bytes {
    // The values are plain data, so serialising them does not fail.
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text.into()
}
