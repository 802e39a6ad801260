//! The operations on whole pictures on devices: placed like the models, called through the engine.
use super::candidates::{first_that_works, memory_share};
use super::placement::{refuse, requested};
use super::{Engine, Inner, Lane, Timed};
use crate::backend::{Backend, BackendError, BatchView, OutputView, Picture, PixelGraphs, Placement};
use crate::batcher::{Batcher, Device, Limits};
use crate::drawing::portrait;
use crate::ep::Provider;
use crate::models::Model;
use crate::pixels::{CanvasModel, CanvasRequest, EnhancementModel, EnhancementRequest, StatisticsModel};
use crate::runtime::Runtime;
use crate::{Config, Operation, OperationReport, RunError, StandIn, StartError, graphs};
use std::sync::Arc;
use std::time::Instant;
use vision::enhance::Enhanced;
use vision::quality::GreyStatistics;
use vision::{Frame, Letterbox, Limits as DecodeLimits};

/// Largest distance in grey levels between a device's canvas and the CPU's, and between its enhanced picture and the CPU's; see the
/// graphs for what they are made of.
const CANVAS_LEVELS: u8 = 1;
const ENHANCED_LEVELS: u8 = 4;
/// Largest relative distance between a device's statistics and the CPU's.
const SHARE: f64 = 1e-4;

/// The operations that got a device.
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

/// Places all three. The reports come in the order of the documentation.
pub(super) fn place(
    config: &Config,
    runtime: &Runtime,
) -> Result<(PixelDevices, Vec<OperationReport>), StartError> {
    // An odd size with a border that no kernel likes, and one that is enhanced.
    let pictures = || [portrait(333, 500), portrait(97, 63)].map(Arc::new);
    let letterbox = |frame: &Frame| Letterbox::fit((frame.width(), frame.height()), (320, 320));
    let limits = DecodeLimits::default();

    let samples = pictures().map(|frame| CanvasRequest { letterbox: letterbox(&frame), frame });
    let same = |input: &CanvasRequest, found: Arc<Frame>| {
        alike(&input.letterbox.draw(&input.frame), &found, CANVAS_LEVELS)
    };
    let canvas = place_one(config, runtime, CanvasModel, vec![graphs::canvas()], &samples, same)?;

    let samples = pictures().map(|frame| EnhancementRequest::new(frame, limits));
    let same = |input: &EnhancementRequest, found: Enhanced| {
        alike(&vision::enhance::enhance(input.frame(), &limits).frame, &found.frame, ENHANCED_LEVELS)
    };
    let programs = vec![graphs::contrast(), graphs::enlargement()];
    let enhancement = place_one(config, runtime, EnhancementModel, programs, &samples, same)?;

    let same =
        |input: &Arc<Frame>, found: GreyStatistics| close(&vision::quality::grey_statistics(input), &found);
    let programs = vec![graphs::statistics()];
    let statistics = place_one(config, runtime, StatisticsModel, programs, &pictures(), same)?;

    let reports = vec![canvas.report, enhancement.report, statistics.report];
    let devices = PixelDevices {
        canvas: canvas.batcher,
        enhancement: enhancement.batcher,
        statistics: statistics.batcher,
        placements: canvas.placements,
    };
    Ok((devices, reports))
}

struct PlacedPixels<M: Model> {
    batcher: Option<Batcher<M>>,
    placements: Vec<Placement>,
    report: OperationReport,
}

fn place_one<M: Model>(
    config: &Config,
    runtime: &Runtime,
    model: M,
    programs: Vec<Vec<u8>>,
    samples: &[M::Input],
    same: impl Fn(&M::Input, M::Output) -> Result<(), String>,
) -> Result<PlacedPixels<M>, StartError> {
    let operation = model.operation();
    let mut report = OperationReport {
        operation: operation.name(),
        gpu_requested: config.gpu_operations.contains(&operation),
        requested: requested(config, operation),
        effective: Provider::Cpu.name().to_owned(),
        reason: None,
    };
    if !report.gpu_requested {
        return Ok(PlacedPixels { batcher: None, placements: Vec::new(), report });
    }
    let prove = |provider: Provider, device_id: u32| {
        let began = Instant::now();
        let placement = Placement {
            provider: provider.for_pixels()?,
            device_id,
            memory_limit: memory_share(config, operation),
            ..Placement::CPU
        };
        let mut graphs = PixelGraphs::load(runtime, &programs, &placement)?;
        for sample in samples {
            same(sample, run_one(&model, &mut graphs, sample)?)?;
        }
        let (operation, seconds) = (operation.name(), began.elapsed().as_secs_f64());
        tracing::info!(
            operation,
            device = placement.label(),
            seconds,
            "graphs loaded and compared with the CPU"
        );
        Ok((graphs, placement))
    };
    match first_that_works(config, runtime, prove) {
        Ok(found) => {
            let (graphs, placements): (Vec<_>, Vec<_>) = found.into_iter().unzip();
            let labels: Vec<String> = placements.iter().map(Placement::label).collect();
            report.effective = labels.join(",");
            let devices = graphs.into_iter().map(|graphs| {
                let primary: Box<dyn Backend> = match config.stand_in {
                    StandIn::Failing => Box::new(Failing),
                    _ => Box::new(graphs),
                };
                // The caller has the CPU's code to fall back to; see `Engine::stands_in`.
                Device { primary, fallback: None }
            });
            let limits = Limits { queue_capacity: config.queue_capacity, ..Limits::default() };
            let batcher =
                Batcher::start(model, devices.collect(), limits).map_err(|e| StartError::Model {
                    model: operation.name().to_owned(),
                    reason: format!("cannot start its threads: {e}"),
                })?;
            Ok(PlacedPixels { batcher: Some(batcher), placements, report })
        }
        Err(reason) => {
            refuse(config, operation, &report.requested, &reason)?;
            report.reason = Some(reason);
            Ok(PlacedPixels { batcher: None, placements: Vec::new(), report })
        }
    }
}

/// One picture through its graph.
fn run_one<M: Model>(model: &M, graphs: &mut PixelGraphs, input: &M::Input) -> Result<M::Output, String> {
    let picture = model.picture(input).ok_or("the operation has no picture")?;
    let mut result = Err("the device gave no outputs".to_owned());
    graphs
        .run_pictures(&[picture], 1, &mut |outputs| result = model.read(input, outputs, 0, 1))
        .map_err(|e| e.to_string())?;
    result
}

fn alike(wanted: &Frame, found: &Frame, levels: u8) -> Result<(), String> {
    if (wanted.width(), wanted.height()) != (found.width(), found.height()) {
        return Err(format!("it made {found:?} where the CPU makes {wanted:?}"));
    }
    let worst = wanted.data().iter().zip(found.data()).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0);
    if worst > levels {
        return Err(format!("its picture differs from the CPU's by {worst} grey levels"));
    }
    Ok(())
}

fn close(wanted: &GreyStatistics, found: &GreyStatistics) -> Result<(), String> {
    let values = |s: &GreyStatistics| [s.laplacian_variance, s.tenengrad, s.mean, s.std, s.clipped];
    for (name, (a, b)) in ["laplacian_variance", "tenengrad", "mean", "std", "clipped"]
        .into_iter()
        .zip(values(wanted).into_iter().zip(values(found)))
    {
        let distance = (a - b).abs();
        if distance.is_nan() || distance > SHARE * a.abs().max(1.0) {
            return Err(format!("its {name} is {b} where the CPU's is {a}"));
        }
    }
    Ok(())
}

/// A device that passed its proofs and then fails every run.
struct Failing;

impl Backend for Failing {
    fn run(&mut self, _: BatchView<'_>, _: &mut dyn FnMut(&[OutputView<'_>])) -> Result<(), BackendError> {
        Err(BackendError::Failed("the stand-in fails on purpose".to_owned()))
    }

    fn takes_pictures(&self) -> bool {
        true
    }

    fn run_pictures(
        &mut self,
        _: &[Picture<'_>],
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
    /// Whether an operation on pictures has a device. Without one its call here is an error, and `vision` does it.
    pub fn on_device(&self, operation: Operation) -> bool {
        let Inner { pixels, .. } = &*self.inner;
        match operation {
            Operation::ImageProcessing => pixels.canvas.is_some(),
            Operation::ImageEnhancement => pixels.enhancement.is_some(),
            Operation::QualityChecks => pixels.statistics.is_some(),
            Operation::FaceDetection | Operation::FaceEmbedding => true,
        }
    }

    /// Grey-level statistics on the device of `quality_checks`: within 1e-4 of [`vision::quality::grey_statistics`].
    pub async fn statistics(&self, frame: Arc<Frame>, lane: Lane) -> Result<Timed<GreyStatistics>, RunError> {
        let batcher = placed(&self.inner.pixels.statistics, Operation::QualityChecks)?;
        batcher.run_before(frame, lane, self.deadline).await
    }

    /// The picture enhanced on the device of `image_enhancement`: within four grey levels of [`vision::enhance::enhance`].
    pub async fn enhance(
        &self,
        frame: Arc<Frame>,
        limits: DecodeLimits,
        lane: Lane,
    ) -> Result<Timed<Enhanced>, RunError> {
        let batcher = placed(&self.inner.pixels.enhancement, Operation::ImageEnhancement)?;
        batcher.run_before(EnhancementRequest::new(frame, limits), lane, self.deadline).await
    }

    /// The canvas drawn on the device of `image_processing`: within one grey level of [`Letterbox::draw`].
    pub async fn canvas(
        &self,
        frame: Arc<Frame>,
        letterbox: Letterbox,
        lane: Lane,
    ) -> Result<Timed<Arc<Frame>>, RunError> {
        let batcher = placed(&self.inner.pixels.canvas, Operation::ImageProcessing)?;
        batcher.run_before(CanvasRequest { frame, letterbox }, lane, self.deadline).await
    }

    /// Whether the CPU's code may do what a device failed at with `error`. If so, that is counted and warned of: the caller must do it.
    pub fn stands_in(&self, operation: Operation, error: &RunError) -> bool {
        if self.inner.force_gpu_only || !matches!(error, RunError::Failed { .. }) {
            return false;
        }
        let report = self.inner.report.operations.iter().find(|o| o.operation == operation.name());
        let device = report.map_or("", |report| report.effective.as_str());
        let provider = device.split(':').next().unwrap_or_default().to_owned();
        let operation = operation.name();
        metrics::counter!("facecrawl_ep_fallback_total", "operation" => operation, "provider" => provider)
            .increment(1);
        tracing::warn!(operation, device, %error, "the run failed; it is repeated on the CPU");
        true
    }
}

fn placed<M: Model>(batcher: &Option<Batcher<M>>, operation: Operation) -> Result<&Batcher<M>, RunError> {
    batcher
        .as_ref()
        .ok_or_else(|| super::unfit(operation, "it has no device; it is done on the CPU".to_owned()))
}
