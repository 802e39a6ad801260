//! Places the image operations on devices. An operation is loaded, run and compared with the CPU's
//! code before it is used. This module also connects a detector with the graphs that prepare its
//! input on the same device. The module `graphs` builds the graphs.
use super::compare::{Sample, TOLERANCE, compare_outputs, median_seconds};
use super::resolve::{Attempts, Trial, image_provider, initial_report, memory_share};
use super::run::ImageDevices;
use crate::backend::{Backend, OnnxModel, OutputView, Outputs};
use crate::backend::{PixelGraphs, Placement, Preparation, PreparedModel};
use crate::batcher::{Batcher, Device, Limits, batch_sizes};
use crate::drawing::draw_portrait;
use crate::ep::Provider;
use crate::image_operations::{
    CanvasModel, CanvasRequest, EnhancementModel, EnhancementRequest, StatisticsModel,
};
use crate::manifest::PixelInput;
use crate::models::{DetectionRequest, DetectorModel, Model};
use crate::report::{BatchRun, LoadedModel, Loading};
use crate::runtime::Runtime;
use crate::unavailable::{Unavailable, UnavailableKind, diagnose};
use crate::{OperationReport, StartError, graphs};
use std::sync::Arc;
use std::time::Instant;
use vision::enhance::Enhanced;
use vision::quality::GreyStatistics;
use vision::{Frame, Letterbox, Limits as DecodeLimits};

/// Maximum difference in grey levels between the canvas of a device and that of the CPU, and
/// between their enhanced images. The module `graphs` explains the sources of the differences.
const CANVAS_LEVELS: u8 = 1;
const ENHANCED_LEVELS: u8 = 4;
/// Maximum relative difference between the statistics of a device and those of the CPU.
const STATISTICS_TOLERANCE: f64 = 1e-4;

/// Compares a result with the CPU's. Returns the difference as a share of the whole range, or an
/// error message if it is too large.
type CompareFn<M> = fn(&<M as Model>::Input, <M as Model>::Output) -> Result<f64, String>;

/// An operation with its graphs and its test images.
pub(super) struct CandidateImageOperation<M: Model> {
    pub(super) model: M,
    graphs: Vec<Vec<u8>>,
    samples: Vec<M::Input>,
    compare: CompareFn<M>,
}

/// Returns two test images: one of odd size whose border is difficult for kernels, and one small
/// enough to be enhanced.
fn test_images() -> [Arc<Frame>; 2] {
    [draw_portrait(333, 500), draw_portrait(97, 63)].map(Arc::new)
}

impl CandidateImageOperation<CanvasModel> {
    pub(super) fn canvas() -> Self {
        let sample = |frame: Arc<Frame>| {
            let letterbox = Letterbox::fit((frame.width(), frame.height()), (320, 320));
            CanvasRequest { letterbox, frame }
        };
        Self {
            model: CanvasModel,
            graphs: vec![graphs::canvas()],
            samples: test_images().map(sample).into(),
            compare: |input, actual| {
                compare_frames(&input.letterbox.draw(&input.frame), &actual, CANVAS_LEVELS)
            },
        }
    }
}

impl CandidateImageOperation<EnhancementModel> {
    pub(super) fn enhancement() -> Self {
        Self {
            model: EnhancementModel,
            graphs: vec![graphs::contrast(), graphs::enlargement()],
            samples: test_images()
                .map(|frame| EnhancementRequest::new(frame, DecodeLimits::default()))
                .into(),
            compare: |input, actual: Enhanced| {
                let expected = vision::enhance::enhance(input.frame(), &DecodeLimits::default());
                compare_frames(&expected.frame, &actual.frame, ENHANCED_LEVELS)
            },
        }
    }
}

impl CandidateImageOperation<StatisticsModel> {
    pub(super) fn statistics() -> Self {
        Self {
            model: StatisticsModel,
            graphs: vec![graphs::statistics()],
            samples: test_images().into(),
            compare: |input, actual| compare_statistics(&vision::quality::grey_statistics(input), &actual),
        }
    }
}

impl<M: Model> CandidateImageOperation<M> {
    /// Loads the graphs on one device, runs the samples, and compares the results with the CPU's
    /// code. With `measure`, repeats the first sample to measure its steady time. The trial
    /// contains one run; its batch size is 1 because images run one by one.
    pub(super) fn load_and_compare(
        &self,
        attempts: &Attempts<'_>,
        provider: Provider,
        device_id: u32,
        measure: bool,
    ) -> Result<Trial<PixelGraphs>, Unavailable> {
        let to_unavailable = |text: String| diagnose(provider, device_id, &text);
        let operation = self.model.operation();
        let placement = Placement {
            provider: image_provider(provider)?,
            device_id,
            memory_limit: memory_share(attempts.config, operation),
            ..Placement::CPU
        };
        let loading = Loading::start(placement.provider, device_id);
        let mut graphs =
            PixelGraphs::load(attempts.runtime, &self.graphs, &placement).map_err(to_unavailable)?;
        let session_seconds = loading.started_at.elapsed().as_secs_f64();
        let mut run = BatchRun { batch: 1, first_seconds: 0.0, steady_seconds: None, difference: 0.0 };
        for (number, sample) in self.samples.iter().enumerate() {
            let started_at = Instant::now();
            let actual = self.run(&mut graphs, sample).map_err(to_unavailable)?;
            if number == 0 {
                run.first_seconds = started_at.elapsed().as_secs_f64();
            }
            let difference = (self.compare)(sample, actual)
                .map_err(|reason| Unavailable::new(provider, UnavailableKind::Disagrees, reason))?;
            run.difference = difference.max(run.difference);
        }
        let load = LoadedModel {
            operation: operation.name(),
            file: "graphs made by code".to_owned(),
            bytes: self.graphs.iter().map(Vec::len).sum::<usize>() as u64,
            sessions: self.graphs.len(),
            max_batch: 1,
            ..LoadedModel::default()
        };
        let load = loading.finish(&placement, load);
        if measure {
            let run_first_sample = || self.run(&mut graphs, &self.samples[0]).map(drop);
            run.steady_seconds = Some(median_seconds(run_first_sample).map_err(to_unavailable)?);
        }
        Ok(Trial { session: graphs, placement, session_seconds, load, runs: vec![run] })
    }

    fn run(&self, graphs: &mut PixelGraphs, input: &M::Input) -> Result<M::Output, String> {
        let image = self.model.image_input(input).ok_or("the operation returned no image")?;
        let mut result = Err("the device returned no outputs".to_owned());
        let mut read = |views: &[OutputView<'_>]| {
            result = self.model.read(input, Outputs { views, index: 0, batch: 1 });
        };
        graphs.run_images(&[image], 1, &mut read).map_err(|e| e.to_string())?;
        result
    }
}

fn compare_frames(expected: &Frame, actual: &Frame, levels: u8) -> Result<f64, String> {
    if (expected.width(), expected.height()) != (actual.width(), actual.height()) {
        return Err(format!("its image is {actual:?}, but the image of the CPU is {expected:?}"));
    }
    let max_difference =
        expected.data().iter().zip(actual.data()).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0);
    if max_difference > levels {
        return Err(format!("its image differs from the image of the CPU by {max_difference} grey levels"));
    }
    Ok(f64::from(max_difference) / 255.0)
}

fn compare_statistics(expected: &GreyStatistics, actual: &GreyStatistics) -> Result<f64, String> {
    let names = ["laplacian_variance", "tenengrad", "mean", "std", "clipped"];
    let values = |s: &GreyStatistics| [s.laplacian_variance, s.tenengrad, s.mean, s.std, s.clipped];
    let mut max_difference = 0.0_f64;
    for (name, (a, b)) in names.into_iter().zip(values(expected).into_iter().zip(values(actual))) {
        let share = (a - b).abs() / a.abs().max(1.0);
        if share.is_nan() || share > STATISTICS_TOLERANCE {
            return Err(format!("its {name} is {b}, but the value of the CPU is {a}"));
        }
        max_difference = max_difference.max(share);
    }
    Ok(max_difference)
}

pub(super) struct PlacedImageOperations {
    pub(super) devices: ImageDevices,
    /// The placements of `image_processing`.
    pub(super) canvas_placements: Vec<Placement>,
    /// The reports, in the order of the documentation.
    pub(super) reports: Vec<OperationReport>,
}

pub(super) fn place_image_operations(attempts: &Attempts<'_>) -> Result<PlacedImageOperations, StartError> {
    let mut reports = Vec::new();
    let (canvas, canvas_placements) = place(attempts, CandidateImageOperation::canvas(), &mut reports)?;
    let (enhancement, _) = place(attempts, CandidateImageOperation::enhancement(), &mut reports)?;
    let (statistics, _) = place(attempts, CandidateImageOperation::statistics(), &mut reports)?;
    let devices = ImageDevices { canvas, enhancement, statistics };
    Ok(PlacedImageOperations { devices, canvas_placements, reports })
}

/// Places one operation and starts its threads, if it runs on a device. Adds its report. Returns
/// the placements too.
fn place<M: Model>(
    attempts: &Attempts<'_>,
    candidate: CandidateImageOperation<M>,
    reports: &mut Vec<OperationReport>,
) -> Result<(Option<Batcher<M>>, Vec<Placement>), StartError> {
    let operation = candidate.model.operation();
    let mut report = initial_report(attempts.config, operation);
    let trials = attempts.place(&mut report, |provider, device_id| {
        candidate.load_and_compare(attempts, provider, device_id, false)
    })?;
    reports.push(report);
    if trials.is_empty() {
        return Ok((None, Vec::new()));
    }
    let (devices, placements) = trials
        .into_iter()
        .map(|trial| {
            // The caller can fall back to the CPU's code; see `Engine::may_fall_back_to_cpu`.
            (Device { primary: Box::new(trial.session), fallback: None }, trial.placement)
        })
        .unzip();
    let limits = Limits { queue_capacity: attempts.config.queue_capacity, ..Limits::default() };
    let batcher = Batcher::start(candidate.model, devices, limits)
        .map_err(|e| StartError::model(operation.name(), format!("cannot start its threads: {e}")))?;
    Ok((Some(batcher), placements))
}

/// Adds preparation graphs to the sessions of a detector.
pub(super) struct DetectorPreparation<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) input: &'a PixelInput,
    /// The placements of `image_processing`.
    pub(super) placements: &'a [Placement],
    /// The canvas for the comparison: width and height.
    pub(super) canvas: (u32, u32),
}

impl DetectorPreparation<'_> {
    /// Returns the session with its preparation graphs if `image_processing` runs on the same
    /// device and the results agree with those of the session alone. Otherwise returns the session
    /// unchanged, and its inputs are tensors.
    pub(super) fn prepare(
        &self,
        model: &DetectorModel,
        trial: Trial<OnnxModel>,
        batch: usize,
    ) -> Box<dyn Backend> {
        let Trial { session, placement, .. } = trial;
        if !self.placements.iter().any(|other| other.shares_memory_with(&placement)) {
            return Box::new(session);
        }
        let (sizes, device) = (batch_sizes(batch), placement.label());
        // The graphs run on the provider of `image_processing`, because TensorRT would compile an
        // engine for each image size.
        let graphs = image_provider(placement.provider).map_err(|e| e.message()).and_then(|provider| {
            Preparation::load(self.runtime, self.input, &sizes, &Placement { provider, ..placement })
        });
        let (session, reason) = match graphs {
            Ok(preparation) => {
                let mut prepared = PreparedModel { preparation, model: session };
                let Err(reason) = self.verify(model, &mut prepared, &sizes) else {
                    tracing::info!(device, "images are sent to the device once, as bytes");
                    return Box::new(prepared);
                };
                (prepared.model, reason)
            }
            Err(reason) => (session, reason),
        };
        tracing::warn!(device, reason, "images are sent to the device as tensors instead of bytes");
        Box::new(session)
    }

    /// Compares, for every batch size, the model's outputs for an image with those for the tensor
    /// that the CPU creates from it.
    fn verify(
        &self,
        model: &DetectorModel,
        prepared: &mut PreparedModel,
        sizes: &[usize],
    ) -> Result<(), String> {
        let frame = draw_portrait(500, 333);
        let letterbox = Letterbox::fit((frame.width(), frame.height()), self.canvas);
        let sample = Sample::new(model, DetectionRequest { frame: frame.into(), letterbox, min_score: 0.5 });
        let expected = sample.run(model, prepared, 1)?;
        for size in sizes {
            compare_outputs(&expected, &sample.run_images(model, prepared, *size)?, *size, TOLERANCE)?;
        }
        Ok(())
    }
}
