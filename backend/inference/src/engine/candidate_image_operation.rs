//! Runs an image operation on a device, compares its results with those of the CPU, and measures
//! the time. `candidate` does the same for models.
use super::candidate::median_seconds;
use super::candidates::{for_pixels, memory_share};
use super::loading::Loading;
use crate::backend::{Backend, PixelGraphs, Placement};
use crate::drawing::portrait;
use crate::ep::Provider;
use crate::models::Model;
use crate::pixels::{CanvasModel, CanvasRequest, EnhancementModel, EnhancementRequest, StatisticsModel};
use crate::report::{BatchRun, LoadedModel};
use crate::runtime::Runtime;
use crate::unavailable::{Unavailable, UnavailableKind, diagnose};
use crate::{Config, devices, graphs};
use std::sync::Arc;
use std::time::Instant;
use vision::enhance::Enhanced;
use vision::quality::GreyStatistics;
use vision::{Frame, Letterbox, Limits};

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
    programs: Vec<Vec<u8>>,
    samples: Vec<M::Input>,
    compare: CompareFn<M>,
}

/// An operation on a device whose results agree with the CPU's.
pub(super) struct ImageOperationTrial {
    pub(super) graphs: PixelGraphs,
    pub(super) placement: Placement,
    /// Seconds to create the sessions, without any run.
    pub(super) session_seconds: f64,
    pub(super) load: LoadedModel,
    /// One run; the batch size is 1 because images run one by one.
    pub(super) run: BatchRun,
}

/// Returns two test images: one of odd size whose border is difficult for kernels, and one small
/// enough to be enhanced.
fn test_images() -> [Arc<Frame>; 2] {
    [portrait(333, 500), portrait(97, 63)].map(Arc::new)
}

impl CandidateImageOperation<CanvasModel> {
    pub(super) fn canvas() -> Self {
        let sample = |frame: Arc<Frame>| {
            let letterbox = Letterbox::fit((frame.width(), frame.height()), (320, 320));
            CanvasRequest { letterbox, frame }
        };
        Self {
            model: CanvasModel,
            programs: vec![graphs::canvas()],
            samples: test_images().map(sample).into(),
            compare: |input, found| {
                compare_frames(&input.letterbox.draw(&input.frame), &found, CANVAS_LEVELS)
            },
        }
    }
}

impl CandidateImageOperation<EnhancementModel> {
    pub(super) fn enhancement() -> Self {
        Self {
            model: EnhancementModel,
            programs: vec![graphs::contrast(), graphs::enlargement()],
            samples: test_images().map(|frame| EnhancementRequest::new(frame, Limits::default())).into(),
            compare: |input, found: Enhanced| {
                let expected = vision::enhance::enhance(input.frame(), &Limits::default());
                compare_frames(&expected.frame, &found.frame, ENHANCED_LEVELS)
            },
        }
    }
}

impl CandidateImageOperation<StatisticsModel> {
    pub(super) fn statistics() -> Self {
        Self {
            model: StatisticsModel,
            programs: vec![graphs::statistics()],
            samples: test_images().into(),
            compare: |input, found| compare_statistics(&vision::quality::grey_statistics(input), &found),
        }
    }
}

impl<M: Model> CandidateImageOperation<M> {
    /// Loads the graphs on one device, runs the samples, and compares the results with the CPU's
    /// code. With `measure`, it repeats the first sample to measure its steady time.
    pub(super) fn try_on(
        &self,
        config: &Config,
        runtime: &Runtime,
        provider: Provider,
        device_id: u32,
        measure: bool,
    ) -> Result<ImageOperationTrial, Unavailable> {
        let failed = |text: String| diagnose(provider, device_id, &text);
        let operation = self.model.operation();
        let placement = Placement {
            provider: for_pixels(provider)?,
            device_id,
            memory_limit: memory_share(config, operation),
            ..Placement::CPU
        };
        let loading = Loading {
            operation,
            file: "graphs made by code",
            bytes: self.programs.iter().map(Vec::len).sum(),
            sessions: self.programs.len(),
            max_batch: 1,
            began: Instant::now(),
            before: devices::find(placement.provider, device_id),
        };
        let mut graphs = PixelGraphs::load(runtime, &self.programs, &placement).map_err(failed)?;
        let session_seconds = loading.began.elapsed().as_secs_f64();
        let mut run = BatchRun { batch: 1, first_seconds: 0.0, steady_seconds: None, difference: 0.0 };
        for (number, sample) in self.samples.iter().enumerate() {
            let began = Instant::now();
            let found = self.run(&mut graphs, sample).map_err(failed)?;
            if number == 0 {
                run.first_seconds = began.elapsed().as_secs_f64();
            }
            let difference = (self.compare)(sample, found)
                .map_err(|reason| Unavailable::new(provider, UnavailableKind::Disagrees, reason))?;
            run.difference = difference.max(run.difference);
        }
        let load = loading.finish(&placement);
        if measure {
            let again = || self.run(&mut graphs, &self.samples[0]).map(drop);
            run.steady_seconds = Some(median_seconds(again).map_err(failed)?);
        }
        Ok(ImageOperationTrial { graphs, placement, session_seconds, load, run })
    }

    fn run(&self, graphs: &mut PixelGraphs, input: &M::Input) -> Result<M::Output, String> {
        let image = self.model.image_input(input).ok_or("the operation returned no image")?;
        let mut result = Err("the device returned no outputs".to_owned());
        graphs
            .run_images(&[image], 1, &mut |outputs| result = self.model.read(input, outputs, 0, 1))
            .map_err(|e| e.to_string())?;
        result
    }
}

fn compare_frames(expected: &Frame, found: &Frame, levels: u8) -> Result<f64, String> {
    if (expected.width(), expected.height()) != (found.width(), found.height()) {
        return Err(format!("its image is {found:?}, but the image of the CPU is {expected:?}"));
    }
    let worst = expected.data().iter().zip(found.data()).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0);
    if worst > levels {
        return Err(format!("its image differs from the image of the CPU by {worst} grey levels"));
    }
    Ok(f64::from(worst) / 255.0)
}

fn compare_statistics(expected: &GreyStatistics, found: &GreyStatistics) -> Result<f64, String> {
    let values = |s: &GreyStatistics| [s.laplacian_variance, s.tenengrad, s.mean, s.std, s.clipped];
    let mut worst = 0.0_f64;
    for (name, (a, b)) in ["laplacian_variance", "tenengrad", "mean", "std", "clipped"]
        .into_iter()
        .zip(values(expected).into_iter().zip(values(found)))
    {
        let share = (a - b).abs() / a.abs().max(1.0);
        if share.is_nan() || share > STATISTICS_TOLERANCE {
            return Err(format!("its {name} is {b}, but the value of the CPU is {a}"));
        }
        worst = worst.max(share);
    }
    Ok(worst)
}
