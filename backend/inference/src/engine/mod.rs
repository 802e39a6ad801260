//! The engine: models loaded once, called from everywhere.
mod attempts;
mod build;
mod candidates;
mod cpu_backend;
mod forms;
mod load;
mod loading;
mod picture_subject;
mod pixels;
mod placement;
mod prepared;
mod selftest;
mod subject;
mod warmup;

pub use build::{BuiltEngine, build_engines};
pub use forms::fp32_model;
pub use selftest::{DeviceTest, Outcome, SelfTest, self_test};

use crate::batcher::{Batcher, Terms};
use crate::fair_queue::Requester;
use crate::models::{DetectorModel, EmbedderModel, Probe, QualityModel, check_chip};
use crate::{Config, DeviceReport, Embedding, Operation, ResolvedPack, RunError, StartError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vision::{Detection, Frame, Letterbox};

/// Who waits for the answer; interactive work goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// A person or a caller of the API.
    Interactive,
    /// A crawl or a batch job.
    Background,
}

/// The detector in use.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DetectorInfo {
    /// File name without extension.
    pub name: String,
    /// sha256 of the file, hex.
    pub sha256: String,
    /// Default `min_score`.
    pub min_score: f32,
    /// IoU above which two boxes are one face.
    pub nms_iou: f32,
    /// The only canvas the model takes, if it is fixed; otherwise any multiple of 32.
    pub fixed_size: Option<(u32, u32)>,
    /// Whether the model finds landmarks; otherwise they are placed where they lie in the mean face.
    pub landmarks: bool,
}

/// The embedder in use.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EmbedderInfo {
    /// File name without extension.
    pub name: String,
    /// Identity stored with every face: hex sha256 of file hash and preprocessing.
    pub identity: String,
    /// Components of an embedding.
    pub dimensions: usize,
    /// Default similarity from which two faces count as one person.
    pub match_threshold: f32,
    /// Share of pairs of different people that reach it, where it was measured.
    pub match_fmr: Option<f64>,
    /// How much more alike than that clusters of faces must be to become one.
    pub cluster_margin: f32,
    /// The most bits that differ between two sketches of one person, where it was measured.
    pub sketch_bits: Option<u32>,
}

/// The learned quality score in use.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ScorerInfo {
    /// File name without extension.
    pub name: String,
    /// sha256 of the file, hex.
    pub sha256: String,
}

/// A result with where its time went.
#[derive(Clone, Debug)]
pub struct Timed<T> {
    /// The result.
    pub output: T,
    /// Waiting for a session.
    pub queued: Duration,
    /// Running (preparation of the tensor and decoding of the outputs included).
    pub ran: Duration,
}

/// Loaded models behind queues; cheap to clone. The sessions are released when the last clone goes.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
    requester: Requester,
    deadline: Option<Instant>,
}

struct Inner {
    detection: Batcher<DetectorModel>,
    embedding: Batcher<EmbedderModel>,
    detector: DetectorInfo,
    embedder: EmbedderInfo,
    /// The learned quality score, where the pack has one.
    scoring: Option<(Batcher<QualityModel>, ScorerInfo)>,
    report: DeviceReport,
    pixels: pixels::PixelDevices,
    /// Whether every device of the detector takes pictures.
    detects_frames: bool,
    /// Whether a smaller canvas is less work for the detector.
    trims_canvases: bool,
    force_gpu_only: bool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("detector", &self.inner.detector.name)
            .field("embedder", &self.inner.embedder.name)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads the library and the pack's models and warms them up. Blocks; call it off the async threads.
    pub fn start(config: &Config, pack: &ResolvedPack) -> Result<Self, StartError> {
        load::engine(config, pack).map(|inner| Self {
            inner: Arc::new(inner),
            requester: Requester::default(),
            deadline: None,
        })
    }

    /// The same engine for a caller who has no use for an answer after `deadline`: what still waits then is answered with
    /// [`RunError::DeadlineExceeded`] and never run.
    pub fn before(&self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self.clone() }
    }

    /// Returns the same engine for work on behalf of `requester`, which takes turns with the work
    /// of others.
    pub fn on_behalf_of(&self, requester: Requester) -> Self {
        Self { requester, ..self.clone() }
    }

    /// Returns the requester of [`Self::on_behalf_of`].
    pub fn requester(&self) -> Requester {
        self.requester
    }

    fn terms(&self, lane: Lane) -> Terms {
        Terms { lane, requester: self.requester, deadline: self.deadline }
    }

    /// The deadline of [`Self::before`].
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the detector would take a picture at once. Everything else waits for room where a queue is full: a picture that was begun is not given up for
    /// the work on it that is still to be done, and a crowd has more faces than a queue has room.
    ///
    /// # Errors
    /// [`RunError::Overloaded`] where the queue is full, [`RunError::Stopped`].
    pub fn check_room(&self, lane: Lane) -> Result<(), RunError> {
        self.inner.detection.check_room(lane)
    }

    /// Faces on `canvas` (sides multiples of 32, or the detector's fixed size) with `det_score >= min_score` (0..1), in
    /// canvas pixels, after NMS, best first. Dropping the future withdraws the request.
    pub async fn detect(
        &self,
        canvas: Arc<Frame>,
        min_score: f32,
        lane: Lane,
    ) -> Result<Timed<Vec<Detection>>, RunError> {
        let letterbox = Letterbox::identity((canvas.width(), canvas.height()));
        self.detect_frame(canvas, letterbox, min_score, lane).await
    }

    /// The same for a picture of any size and its place on a canvas; coordinates are those of the canvas. Where
    /// [`Self::detects_frames`], its bytes cross to the device once; elsewhere the canvas is drawn on the session's thread.
    pub async fn detect_frame(
        &self,
        frame: Arc<Frame>,
        letterbox: Letterbox,
        min_score: f32,
        lane: Lane,
    ) -> Result<Timed<Vec<Detection>>, RunError> {
        if !(0.0..=1.0).contains(&min_score) {
            return Err(unfit(
                Operation::FaceDetection,
                format!("min_score is {min_score}; 0 to 1 is allowed"),
            ));
        }
        let batcher = &self.inner.detection;
        batcher.model().check(letterbox.canvas).map_err(|reason| unfit(Operation::FaceDetection, reason))?;
        batcher.run(Probe { frame, letterbox, min_score }, self.terms(lane)).await
    }

    /// The embedding of an aligned 112x112 chip. Dropping the future withdraws the request.
    pub async fn embed(&self, chip: Arc<Frame>, lane: Lane) -> Result<Timed<Embedding>, RunError> {
        check_chip(&chip).map_err(|reason| unfit(Operation::FaceEmbedding, reason))?;
        self.inner.embedding.run(chip, self.terms(lane)).await
    }

    /// What the learned quality model says of an aligned 112x112 chip: its raw output. An error where the pack has no such model
    /// ([`Self::scorer`]). Dropping the future withdraws the request.
    pub async fn score(&self, chip: Arc<Frame>, lane: Lane) -> Result<Timed<f32>, RunError> {
        let unfit = |reason| unfit(Operation::QualityChecks, reason);
        let (batcher, _) =
            self.inner.scoring.as_ref().ok_or_else(|| unfit("the pack has no quality model".to_owned()))?;
        check_chip(&chip).map_err(unfit)?;
        batcher.run(chip, self.terms(lane)).await
    }

    /// Where the detector is best shown what lies at `letterbox` ([`crate::DetectionCanvas`]). On the CPU a detector of any size is spared the black beside the
    /// picture: a third of the canvas for a picture of 3:2. On a device the canvas stays, because only equal ones share a batch and each new one may have
    /// to be compiled.
    #[must_use]
    pub fn placed(&self, letterbox: Letterbox) -> Letterbox {
        if self.inner.trims_canvases {
            letterbox.trimmed(self.inner.detection.model().alignment())
        } else {
            letterbox
        }
    }

    /// Whether pictures become canvases on the detector's own device, so that drawing them before is wasted.
    pub fn detects_frames(&self) -> bool {
        self.inner.detects_frames
    }

    /// The detector.
    pub fn detector(&self) -> &DetectorInfo {
        &self.inner.detector
    }

    /// The embedder.
    pub fn embedder(&self) -> &EmbedderInfo {
        &self.inner.embedder
    }

    /// The learned quality score, if the pack has one.
    pub fn scorer(&self) -> Option<&ScorerInfo> {
        self.inner.scoring.as_ref().map(|(_, info)| info)
    }

    /// What runs where, and why.
    pub fn report(&self) -> DeviceReport {
        DeviceReport { devices: crate::devices::discover(), ..self.inner.report.clone() }
    }

    /// Where each operation runs: [`Self::report`] without a look at the machine's devices, cheap enough for every answer.
    pub fn operations(&self) -> Vec<crate::OperationReport> {
        self.inner.report.operations.clone()
    }

    /// Whether every operation can still serve; the reason if not.
    pub fn ready(&self) -> Result<(), String> {
        self.inner.detection.ready()?;
        self.inner.embedding.ready()?;
        self.inner.scoring.as_ref().map_or(Ok(()), |(batcher, _)| batcher.ready())?;
        self.inner.pixels.ready()
    }
}

/// The caller's input does not fit the model.
fn unfit(operation: Operation, reason: String) -> RunError {
    RunError::Failed { operation: operation.name(), reason }
}
