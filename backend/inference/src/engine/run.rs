//! The running engine: detects, embeds and scores faces, and runs the image operations on devices.
//! Requests wait in the queues of `batcher`; `load` starts the engine.
use crate::batcher::{Batcher, Priority, RequestOptions, RunResult};
use crate::devices;
use crate::fair_queue::Requester;
use crate::image_operations::{
    CanvasModel, CanvasRequest, EnhancementModel, EnhancementRequest, StatisticsModel,
};
use crate::models::{DetectionRequest, DetectorModel, EmbedderModel, Model, QualityModel, check_chip};
use crate::{DeviceReport, Embedding, Operation, OperationReport, RunError};
use std::sync::Arc;
use std::time::Instant;
use vision::enhance::Enhanced;
use vision::quality::GreyStatistics;
use vision::{Detection, Frame, Letterbox, Limits};

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
    pub(super) inner: Arc<Inner>,
    pub(super) requester: Requester,
    pub(super) deadline: Option<Instant>,
}

pub(super) struct Inner {
    pub(super) detector: LoadedDetector,
    /// A cheaper detector for first looks, if the pack has one and it saves time on this device.
    pub(super) first_look: Option<LoadedDetector>,
    pub(super) embedding: Batcher<EmbedderModel>,
    pub(super) embedder: EmbedderInfo,
    pub(super) scoring: Option<(Batcher<QualityModel>, ScorerInfo)>,
    pub(super) report: DeviceReport,
    pub(super) images: ImageDevices,
    /// Whether every device of the detector takes images.
    pub(super) draws_canvases_on_device: bool,
    pub(super) force_gpu_only: bool,
}

pub(super) struct LoadedDetector {
    pub(super) batcher: Batcher<DetectorModel>,
    pub(super) info: DetectorInfo,
    /// Whether the detector runs faster on a smaller canvas.
    pub(super) trims_canvases: bool,
}

/// The devices of the image operations; `None` for an operation without a device.
pub(super) struct ImageDevices {
    pub(super) canvas: Option<Batcher<CanvasModel>>,
    pub(super) enhancement: Option<Batcher<EnhancementModel>>,
    pub(super) statistics: Option<Batcher<StatisticsModel>>,
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
    /// Returns the same engine with a deadline. A request that still waits at `deadline` is never
    /// run and fails with [`RunError::DeadlineExceeded`].
    pub fn with_deadline(&self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self.clone() }
    }

    /// Returns the same engine for work on behalf of `requester`. Requesters are served in turn.
    pub fn with_requester(&self, requester: Requester) -> Self {
        Self { requester, ..self.clone() }
    }

    pub fn requester(&self) -> Requester {
        self.requester
    }

    fn options(&self, priority: Priority) -> RequestOptions {
        RequestOptions { priority, requester: self.requester, deadline: self.deadline }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Checks whether the detector's queue would accept an image immediately. All other requests
    /// wait if a queue is full, because one image may contain more faces than a queue has room for.
    ///
    /// # Errors
    /// Fails with [`RunError::Overloaded`] if the queue is full, and with [`RunError::Stopped`] if
    /// the engine is stopping.
    pub fn check_queue_capacity(&self, priority: Priority) -> Result<(), RunError> {
        self.inner.detector.batcher.check_queue_capacity(priority)
    }

    pub fn face_detector(&self) -> Detector<'_> {
        Detector { engine: self, loaded: &self.inner.detector }
    }

    /// Returns the detector of first looks: the cheaper detector if [`Self::has_first_look`],
    /// otherwise the detector of faces.
    pub fn first_look_detector(&self) -> Detector<'_> {
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
    ) -> RunResult<Vec<Detection>> {
        let letterbox = Letterbox::identity((canvas.width(), canvas.height()));
        self.face_detector().detect(canvas, letterbox, min_score, priority).await
    }

    /// Returns the embedding of an aligned 112x112 chip. Dropping the future cancels the request.
    pub async fn embed(&self, chip: Arc<Frame>, priority: Priority) -> RunResult<Embedding> {
        check_chip(&chip).map_err(|reason| input_error(Operation::FaceEmbedding, reason))?;
        self.inner.embedding.run(chip, self.options(priority)).await
    }

    /// Returns the raw output of the learned quality model for an aligned 112x112 chip. Dropping
    /// the future cancels the request.
    ///
    /// # Errors
    /// Fails with [`RunError::Failed`] if the pack has no such model ([`Self::scorer`]).
    pub async fn score(&self, chip: Arc<Frame>, priority: Priority) -> RunResult<f32> {
        let quality_error = |reason| input_error(Operation::QualityChecks, reason);
        let missing = || quality_error("the pack contains no quality model".to_owned());
        let (batcher, _) = self.inner.scoring.as_ref().ok_or_else(missing)?;
        check_chip(&chip).map_err(quality_error)?;
        batcher.run(chip, self.options(priority)).await
    }

    /// Returns whether an image operation runs on a device. If not, its method fails, and the
    /// caller must use the crate `vision`.
    pub fn runs_on_device(&self, operation: Operation) -> bool {
        let images = &self.inner.images;
        match operation {
            Operation::ImageProcessing => images.canvas.is_some(),
            Operation::ImageEnhancement => images.enhancement.is_some(),
            Operation::QualityChecks => images.statistics.is_some(),
            Operation::FaceDetection | Operation::FaceEmbedding => true,
        }
    }

    /// Computes grey-level statistics on the device of `quality_checks`. Results differ by at most
    /// 1e-4 (relative) from [`vision::quality::grey_statistics`].
    pub async fn statistics(&self, frame: Arc<Frame>, priority: Priority) -> RunResult<GreyStatistics> {
        let batcher = device_batcher(&self.inner.images.statistics, Operation::QualityChecks)?;
        batcher.run(frame, self.options(priority)).await
    }

    /// Enhances an image on the device of `image_enhancement`. Results differ by at most four grey
    /// levels from [`vision::enhance::enhance`].
    pub async fn enhance(
        &self,
        frame: Arc<Frame>,
        limits: Limits,
        priority: Priority,
    ) -> RunResult<Enhanced> {
        let batcher = device_batcher(&self.inner.images.enhancement, Operation::ImageEnhancement)?;
        batcher.run(EnhancementRequest::new(frame, limits), self.options(priority)).await
    }

    /// Draws a canvas on the device of `image_processing`. Results differ by at most one grey level
    /// from [`Letterbox::draw`].
    pub async fn canvas(
        &self,
        frame: Arc<Frame>,
        letterbox: Letterbox,
        priority: Priority,
    ) -> RunResult<Arc<Frame>> {
        let batcher = device_batcher(&self.inner.images.canvas, Operation::ImageProcessing)?;
        batcher.run(CanvasRequest { frame, letterbox }, self.options(priority)).await
    }

    /// Returns whether the CPU's code may repeat a request that failed with `error` on a device. If
    /// so, counts and logs the fallback, and the caller must run the CPU's code.
    pub fn may_fall_back_to_cpu(&self, operation: Operation, error: &RunError) -> bool {
        if self.inner.force_gpu_only || !matches!(error, RunError::Failed { .. }) {
            return false;
        }
        let report = self.inner.report.operations.iter().find(|o| o.operation == operation.name());
        let device = report.map_or("", |report| report.effective.as_str());
        let provider = device.split(':').next().unwrap_or_default().to_owned();
        let operation = operation.name();
        metrics::counter!("facecrawl_ep_fallback_total", "operation" => operation, "provider" => provider)
            .increment(1);
        tracing::warn!(operation, device, %error, "run failed on the device; retrying on the CPU");
        true
    }

    /// Returns whether the detector's device draws the canvases. If so, callers need not draw them.
    pub fn draws_canvases_on_device(&self) -> bool {
        self.inner.draws_canvases_on_device
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
        let mut report = self.inner.report.clone();
        report.devices.splice(0..0, devices::discover());
        report
    }

    /// Returns the operations of [`Self::report`] without querying the machine's devices. This is
    /// cheap enough for every response.
    pub fn operations(&self) -> Vec<OperationReport> {
        self.inner.report.operations.clone()
    }

    /// Checks that every operation can still be served.
    pub fn check_ready(&self) -> Result<(), String> {
        let Inner { detector, first_look, embedding, scoring, images, .. } = &*self.inner;
        detector.batcher.check_ready()?;
        first_look.as_ref().map_or(Ok(()), |detector| detector.batcher.check_ready())?;
        embedding.check_ready()?;
        scoring.as_ref().map_or(Ok(()), |(batcher, _)| batcher.check_ready())?;
        images.canvas.as_ref().map_or(Ok(()), Batcher::check_ready)?;
        images.enhancement.as_ref().map_or(Ok(()), Batcher::check_ready)?;
        images.statistics.as_ref().map_or(Ok(()), Batcher::check_ready)
    }
}

/// A detector of an engine: the detector of faces, or a cheaper one for first looks.
#[derive(Clone, Copy)]
pub struct Detector<'a> {
    engine: &'a Engine,
    loaded: &'a LoadedDetector,
}

impl<'a> Detector<'a> {
    pub fn info(&self) -> &'a DetectorInfo {
        &self.loaded.info
    }

    /// Detects faces in an image of any size, placed on a canvas by `letterbox`. Returns those with
    /// `det_score >= min_score` (0..1), in canvas pixels, after NMS, best first. The sides of the
    /// canvas must be multiples of 32 (of 128 for SCRFD with five levels), or the detector's fixed
    /// size. Dropping the future cancels the request.
    ///
    /// If [`Engine::draws_canvases_on_device`], the image's bytes are copied to the device once.
    /// Otherwise the session's thread draws the canvas.
    ///
    /// # Errors
    /// Fails with [`RunError::Failed`] if `min_score` or the size of the canvas is not allowed, and
    /// with the errors of the queue.
    pub async fn detect(
        &self,
        frame: Arc<Frame>,
        letterbox: Letterbox,
        min_score: f32,
        priority: Priority,
    ) -> RunResult<Vec<Detection>> {
        let error = |reason| input_error(Operation::FaceDetection, reason);
        if !(0.0..=1.0).contains(&min_score) {
            return Err(error(format!("min_score is {min_score}; it must be from 0 to 1")));
        }
        let batcher = &self.loaded.batcher;
        batcher.model().check_canvas(letterbox.canvas).map_err(error)?;
        let request = DetectionRequest { frame, letterbox, min_score };
        batcher.run(request, self.engine.options(priority)).await
    }

    /// Adapts a letterbox to the detector's device ([`crate::DetectionCanvas`]). On the CPU, a
    /// detector that accepts any size uses a canvas without the black border. For a 3:2 image, the
    /// border is a third of the canvas. On a device, the canvas keeps its size: only canvases of
    /// equal size share a batch, and each new size may have to be compiled.
    #[must_use]
    pub fn adapt_letterbox(&self, letterbox: Letterbox) -> Letterbox {
        if self.trims_canvases() {
            letterbox.trim_canvas(self.loaded.batcher.model().alignment())
        } else {
            letterbox
        }
    }

    /// Returns whether the detector accepts canvases of any size without extra cost. If so,
    /// [`Self::adapt_letterbox`] removes the black border.
    pub fn trims_canvases(&self) -> bool {
        self.loaded.trims_canvases
    }
}

fn device_batcher<M: Model>(
    batcher: &Option<Batcher<M>>,
    operation: Operation,
) -> Result<&Batcher<M>, RunError> {
    let reason = "the operation has no device and runs on the CPU";
    batcher.as_ref().ok_or_else(|| input_error(operation, reason.to_owned()))
}

/// Returns the error for an input that does not fit the model.
fn input_error(operation: Operation, reason: String) -> RunError {
    RunError::Failed { operation: operation.name(), reason }
}
