//! The image operations on devices. Their devices are selected in the same way as those of models,
//! and callers use them through the engine.
use super::attempts::Attempts;
use super::candidate_image_operation::CandidateImageOperation;
use super::placement::on_the_cpu;
use super::{Engine, Inner};
use crate::backend::{Backend, BackendError, BatchView, ImageInput, OutputView, Placement};
use crate::batcher::{Batcher, Device, Limits, Priority, Timed};
use crate::models::Model;
use crate::pixels::{CanvasModel, CanvasRequest, EnhancementModel, EnhancementRequest, StatisticsModel};
use crate::{Operation, OperationReport, RunError, StandIn, StartError};
use std::sync::Arc;
use vision::enhance::Enhanced;
use vision::quality::GreyStatistics;
use vision::{Frame, Letterbox, Limits as DecodeLimits};

/// The devices of the image operations; `None` for an operation without a device.
pub(super) struct PixelDevices {
    pub(super) canvas: Option<Batcher<CanvasModel>>,
    enhancement: Option<Batcher<EnhancementModel>>,
    statistics: Option<Batcher<StatisticsModel>>,
    /// Where `image_processing` runs.
    pub(super) placements: Vec<Placement>,
}

impl PixelDevices {
    pub(super) fn ready(&self) -> Result<(), String> {
        self.canvas.as_ref().map_or(Ok(()), Batcher::ready)?;
        self.enhancement.as_ref().map_or(Ok(()), Batcher::ready)?;
        self.statistics.as_ref().map_or(Ok(()), Batcher::ready)
    }
}

/// Places all three operations. The reports are in the order of the documentation.
pub(super) fn place(attempts: &Attempts<'_>) -> Result<(PixelDevices, Vec<OperationReport>), StartError> {
    let canvas = place_one(attempts, CandidateImageOperation::canvas())?;
    let enhancement = place_one(attempts, CandidateImageOperation::enhancement())?;
    let statistics = place_one(attempts, CandidateImageOperation::statistics())?;

    let reports = vec![canvas.report, enhancement.report, statistics.report];
    let devices = PixelDevices {
        canvas: canvas.batcher,
        enhancement: enhancement.batcher,
        statistics: statistics.batcher,
        placements: canvas.placements,
    };
    Ok((devices, reports))
}

struct PlacedImageOperation<M: Model> {
    batcher: Option<Batcher<M>>,
    placements: Vec<Placement>,
    report: OperationReport,
}

fn place_one<M: Model>(
    attempts: &Attempts<'_>,
    candidate: CandidateImageOperation<M>,
) -> Result<PlacedImageOperation<M>, StartError> {
    let Attempts { config, runtime, .. } = *attempts;
    let operation = candidate.model.operation();
    let mut report = on_the_cpu(config, operation);
    if !report.gpu_requested {
        return Ok(PlacedImageOperation { batcher: None, placements: Vec::new(), report });
    }
    let try_device = |provider, device_id| candidate.try_on(config, runtime, provider, device_id, false);
    match attempts.first_that_works(try_device) {
        Ok(found) => {
            let (graphs, placements): (Vec<_>, Vec<_>) =
                found.into_iter().map(|trial| (trial.graphs, trial.placement)).unzip();
            let labels: Vec<String> = placements.iter().map(Placement::label).collect();
            report.effective = labels.join(",");
            let devices = graphs.into_iter().map(|graphs| {
                let primary: Box<dyn Backend> = match config.stand_in {
                    StandIn::Failing => Box::new(Failing),
                    _ => Box::new(graphs),
                };
                // The caller can fall back to the CPU's code; see `Engine::may_fall_back_to_cpu`.
                Device { primary, fallback: None }
            });
            let limits = Limits { queue_capacity: config.queue_capacity, ..Limits::default() };
            let batcher = Batcher::start(candidate.model, devices.collect(), limits).map_err(|e| {
                StartError::Model {
                    model: operation.name().to_owned(),
                    reason: format!("cannot start its threads: {e}"),
                }
            })?;
            Ok(PlacedImageOperation { batcher: Some(batcher), placements, report })
        }
        Err(refusal) => {
            attempts.fallbacks.handle_refusal(operation.name(), &report.requested, &refusal)?;
            report.add_refusal(&refusal);
            Ok(PlacedImageOperation { batcher: None, placements: Vec::new(), report })
        }
    }
}

/// A device that agrees with the CPU at start and then fails every run.
struct Failing;

impl Backend for Failing {
    fn run(&mut self, _: BatchView<'_>, _: &mut dyn FnMut(&[OutputView<'_>])) -> Result<(), BackendError> {
        Err(BackendError::Failed("the stand-in fails on purpose".to_owned()))
    }

    fn takes_images(&self) -> bool {
        true
    }

    fn run_images(
        &mut self,
        _: &[ImageInput<'_>],
        _: usize,
        _: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError> {
        Err(BackendError::Failed("the stand-in fails on purpose".to_owned()))
    }

    fn device(&self) -> &str {
        "cpu"
    }
}

impl Engine {
    /// Returns whether an image operation runs on a device. If not, the method for it fails, and
    /// the caller uses the crate `vision` instead.
    pub fn on_device(&self, operation: Operation) -> bool {
        let Inner { pixels, .. } = &*self.inner;
        match operation {
            Operation::ImageProcessing => pixels.canvas.is_some(),
            Operation::ImageEnhancement => pixels.enhancement.is_some(),
            Operation::QualityChecks => pixels.statistics.is_some(),
            Operation::FaceDetection | Operation::FaceEmbedding => true,
        }
    }

    /// Computes grey-level statistics on the device of `quality_checks`. Results differ by at most
    /// 1e-4 (relative) from [`vision::quality::grey_statistics`].
    pub async fn statistics(
        &self,
        frame: Arc<Frame>,
        priority: Priority,
    ) -> Result<Timed<GreyStatistics>, RunError> {
        let batcher = device_batcher(&self.inner.pixels.statistics, Operation::QualityChecks)?;
        batcher.run(frame, self.terms(priority)).await
    }

    /// Enhances an image on the device of `image_enhancement`. Results differ by at most four grey
    /// levels from [`vision::enhance::enhance`].
    pub async fn enhance(
        &self,
        frame: Arc<Frame>,
        limits: DecodeLimits,
        priority: Priority,
    ) -> Result<Timed<Enhanced>, RunError> {
        let batcher = device_batcher(&self.inner.pixels.enhancement, Operation::ImageEnhancement)?;
        batcher.run(EnhancementRequest::new(frame, limits), self.terms(priority)).await
    }

    /// Draws a canvas on the device of `image_processing`. Results differ by at most one grey level
    /// from [`Letterbox::draw`].
    pub async fn canvas(
        &self,
        frame: Arc<Frame>,
        letterbox: Letterbox,
        priority: Priority,
    ) -> Result<Timed<Arc<Frame>>, RunError> {
        let batcher = device_batcher(&self.inner.pixels.canvas, Operation::ImageProcessing)?;
        batcher.run(CanvasRequest { frame, letterbox }, self.terms(priority)).await
    }

    /// Returns whether the CPU's code may repeat a request that failed with `error` on a device. If
    /// so, it counts and logs the fallback, and the caller must run the CPU's code.
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
}

fn device_batcher<M: Model>(
    batcher: &Option<Batcher<M>>,
    operation: Operation,
) -> Result<&Batcher<M>, RunError> {
    batcher
        .as_ref()
        .ok_or_else(|| super::unfit(operation, "the operation has no device and runs on the CPU".to_owned()))
}
