//! The engine: loads the models once and serves all callers. The module `batcher` forms batches.
mod attempts;
mod build;
mod candidate;
mod candidate_image_operation;
mod candidates;
mod cpu_backend;
mod detectors;
mod external;
mod fallbacks;
mod forms;
mod load;
mod loading;
mod pixels;
mod placement;
mod prepared;
mod selftest;
mod warmup;

pub use build::{BuiltEngine, build_engines};
pub use detectors::Detector;
pub use external::{DeviceFailure, VIDEO_DECODING, VideoPlacement, no_video_decoding, place_video_decoding};
pub use forms::fp32_model;
pub use selftest::{DeviceTest, SelfTest, TestOutcome, self_test};

use crate::batcher::{Batcher, Priority, Terms, Timed};
use crate::fair_queue::Requester;
use crate::models::{EmbedderModel, QualityModel, check_chip};
use crate::{Config, DeviceReport, Embedding, Operation, ResolvedPack, RunError, StartError};
use detectors::LoadedDetector;
use std::sync::Arc;
use std::time::Instant;
use vision::{Detection, Frame, Letterbox};

#[derive(Clone, Debug, serde::Serialize)]
pub struct DetectorInfo {
    /// File name without extension.
    pub name: String,
    /// SHA-256 of the file, hex.
    pub sha256: String,
    /// Default `min_score`.
    pub min_score: f32,
    /// IoU above which two boxes are treated as one face.
    pub nms_iou: f32,
    /// The only canvas size that the model accepts. `None` if it accepts any multiple of 32 pixels;
    /// SCRFD with five levels requires multiples of 128.
    pub fixed_size: Option<(u32, u32)>,
    /// Whether the model detects landmarks; otherwise those of the mean face are used.
    pub landmarks: bool,
}

#[derive(Clone, Debug, serde::Serialize)]
pub struct EmbedderInfo {
    /// File name without extension.
    pub name: String,
    /// Identity stored with every face: hex SHA-256 of the file's hash and the preprocessing.
    pub identity: String,
    pub dimensions: usize,
    /// Default similarity at which two faces are treated as one person.
    pub match_threshold: f32,
    /// Share of pairs of different people that reach `match_threshold`, if it was measured.
    pub match_fmr: Option<f64>,
    /// How far the similarity of two clusters must exceed `match_threshold` before they are merged.
    pub cluster_margin: f32,
    /// Maximum number of bits that differ between two sketches of one person, if it was measured.
    pub sketch_bits: Option<u32>,
}

/// The loaded model of the learned quality score.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ScorerInfo {
    /// File name without extension.
    pub name: String,
    /// SHA-256 of the file, hex.
    pub sha256: String,
}

/// Loaded models behind queues. Cloning is cheap; the last clone releases the sessions.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
    requester: Requester,
    deadline: Option<Instant>,
}

struct Inner {
    detector: LoadedDetector,
    /// A cheaper detector for first looks, if the pack has one and it saves time on this device.
    first_look: Option<LoadedDetector>,
    embedding: Batcher<EmbedderModel>,
    embedder: EmbedderInfo,
    scoring: Option<(Batcher<QualityModel>, ScorerInfo)>,
    report: DeviceReport,
    pixels: pixels::PixelDevices,
    /// Whether every device of the detector takes images.
    detects_frames: bool,
    force_gpu_only: bool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("detector", &self.inner.detector.info.name)
            .field("embedder", &self.inner.embedder.name)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads the library and the pack's models, and warms them up. This blocks; do not call it on
    /// an async thread.
    pub fn start(config: &Config, pack: &ResolvedPack) -> Result<Self, StartError> {
        load::engine(config, pack).map(|inner| Self {
            inner: Arc::new(inner),
            requester: Requester::default(),
            deadline: None,
        })
    }

    /// Returns the same engine with a deadline. A request that still waits at `deadline` is never
    /// run and fails with [`RunError::DeadlineExceeded`].
    pub fn before(&self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self.clone() }
    }

    /// Returns the same engine for work on behalf of `requester`. Requesters are served in turn.
    pub fn on_behalf_of(&self, requester: Requester) -> Self {
        Self { requester, ..self.clone() }
    }

    pub fn requester(&self) -> Requester {
        self.requester
    }

    fn terms(&self, priority: Priority) -> Terms {
        Terms { priority, requester: self.requester, deadline: self.deadline }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Checks whether the detector would accept an image immediately. All other requests wait if a
    /// queue is full. Processing of an image that has started is always completed, and the image
    /// may contain more faces than a queue has room for.
    ///
    /// # Errors
    /// Fails with [`RunError::Overloaded`] if the queue is full, and with [`RunError::Stopped`] if
    /// the engine is stopping.
    pub fn check_room(&self, priority: Priority) -> Result<(), RunError> {
        self.inner.detector.batcher.check_room(priority)
    }

    pub fn faces(&self) -> Detector<'_> {
        Detector { engine: self, loaded: &self.inner.detector }
    }

    /// Returns the detector of first looks: the cheaper detector if [`Self::has_first_look`],
    /// otherwise the detector of faces.
    pub fn first_look(&self) -> Detector<'_> {
        let loaded = self.inner.first_look.as_ref().unwrap_or(&self.inner.detector);
        Detector { engine: self, loaded }
    }

    pub fn has_first_look(&self) -> bool {
        self.inner.first_look.is_some()
    }

    /// Detects faces on a finished canvas ([`Detector::detect`]).
    ///
    /// # Errors
    /// Fails with the errors of [`Detector::detect`].
    pub async fn detect(
        &self,
        canvas: Arc<Frame>,
        min_score: f32,
        priority: Priority,
    ) -> Result<Timed<Vec<Detection>>, RunError> {
        let letterbox = Letterbox::identity((canvas.width(), canvas.height()));
        self.faces().detect(canvas, letterbox, min_score, priority).await
    }

    /// Returns the embedding of an aligned 112x112 chip. Dropping the future cancels the request.
    pub async fn embed(&self, chip: Arc<Frame>, priority: Priority) -> Result<Timed<Embedding>, RunError> {
        check_chip(&chip).map_err(|reason| unfit(Operation::FaceEmbedding, reason))?;
        self.inner.embedding.run(chip, self.terms(priority)).await
    }

    /// Returns the raw output of the learned quality model for an aligned 112x112 chip. Dropping
    /// the future cancels the request.
    ///
    /// # Errors
    /// Fails with [`RunError::Failed`] if the pack has no such model ([`Self::scorer`]).
    pub async fn score(&self, chip: Arc<Frame>, priority: Priority) -> Result<Timed<f32>, RunError> {
        let unfit = |reason| unfit(Operation::QualityChecks, reason);
        let (batcher, _) = self
            .inner
            .scoring
            .as_ref()
            .ok_or_else(|| unfit("the pack contains no quality model".to_owned()))?;
        check_chip(&chip).map_err(unfit)?;
        batcher.run(chip, self.terms(priority)).await
    }

    /// Returns whether the detector's own device draws the canvases, so that callers need not.
    pub fn detects_frames(&self) -> bool {
        self.inner.detects_frames
    }

    pub fn detector(&self) -> &DetectorInfo {
        &self.inner.detector.info
    }

    pub fn embedder(&self) -> &EmbedderInfo {
        &self.inner.embedder
    }

    /// Returns the learned quality score, if the pack has one.
    pub fn scorer(&self) -> Option<&ScorerInfo> {
        self.inner.scoring.as_ref().map(|(_, info)| info)
    }

    /// Returns which device runs each operation, and why.
    pub fn report(&self) -> DeviceReport {
        DeviceReport { devices: crate::devices::discover(), ..self.inner.report.clone() }
    }

    /// Returns the operations of [`Self::report`] without querying the machine's devices. This is
    /// cheap enough for every response.
    pub fn operations(&self) -> Vec<crate::OperationReport> {
        self.inner.report.operations.clone()
    }

    /// Checks that every operation can still be served.
    pub fn ready(&self) -> Result<(), String> {
        self.inner.detector.batcher.ready()?;
        self.inner.first_look.as_ref().map_or(Ok(()), |look| look.batcher.ready())?;
        self.inner.embedding.ready()?;
        self.inner.scoring.as_ref().map_or(Ok(()), |(batcher, _)| batcher.ready())?;
        self.inner.pixels.ready()
    }
}

/// Returns the error for an input that does not fit the model.
fn unfit(operation: Operation, reason: String) -> RunError {
    RunError::Failed { operation: operation.name(), reason }
}
