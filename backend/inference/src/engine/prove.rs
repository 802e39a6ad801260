//! Checks that a model returns the same results on a device as on the CPU. This module loads a
//! [`CandidateModel`], warms it up and compares the results. `resolve` selects the devices to try,
//! and `images` checks image operations.
use super::compare::{BF16_TOLERANCE, INT8_TOLERANCE, TOLERANCE};
use super::compare::{Sample, compare_outputs, median_seconds};
use super::resolve::{Trial, cpu_placement, placement};
use crate::backend::{OnnxModel, Placement, load_library};
use crate::batcher::batch_sizes;
use crate::drawing::draw_portrait;
use crate::ep::Provider;
use crate::manifest::{ModelFile, ModelKind};
use crate::models::{DetectionRequest, DetectorModel, EmbedderModel, Model, QualityModel};
use crate::onnx::ModelForms;
use crate::report::{BatchRun, LoadedModel, Loading};
use crate::runtime::Runtime;
use crate::tensorrt::{EngineOptions, EngineSource, Profile, library_version};
use crate::unavailable::is_out_of_memory;
use crate::{Config, GpuDevice, Precision, ResolvedPack, StartError};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;
use vision::{Frame, Letterbox};

/// A candidate model with its first result on the CPU, which is compared with that of each device.
pub(super) struct CandidateModel<'a, M: Model> {
    pub(super) config: &'a Config,
    pub(super) runtime: &'a Runtime,
    pub(super) file: &'a ModelFile,
    pub(super) forms: ModelForms,
    pub(super) model: M,
    /// The session on the CPU that computed the expected results, until
    /// [`Self::reference_session`] returns it.
    reference: Option<OnnxModel>,
    /// Samples of frequent shapes with their results on the CPU, the most frequent shape first.
    samples: Vec<(Sample<M>, Vec<Vec<f32>>)>,
    input_name: String,
    input_shape: [Option<usize>; 4],
    /// The model with a dynamic batch axis, if the file's axis is fixed.
    dynamic_batch_model: Option<Bytes>,
    /// Maximum number of items in one run.
    max_batch: usize,
}

type LoadedCandidate<'a, M> = Result<CandidateModel<'a, M>, StartError>;

/// A session, the seconds for loading it, and the runs of the most frequent shape.
type LoadedSession = (OnnxModel, f64, Vec<BatchRun>);

/// Loads the models of a pack as candidates.
pub(super) struct CandidateLoader<'a> {
    pub(super) config: &'a Config,
    pub(super) runtime: &'a Runtime,
    pub(super) pack: &'a ResolvedPack,
}

impl<'a> CandidateLoader<'a> {
    pub(super) fn detector(&self) -> LoadedCandidate<'a, DetectorModel> {
        self.detector_from_file(self.file_of(ModelKind::Detector, "detector")?)
    }

    pub(super) fn detector_from_file(&self, file: &'a ModelFile) -> LoadedCandidate<'a, DetectorModel> {
        let on_canvas = |(width, height)| {
            let letterbox = Letterbox::identity((width, height));
            DetectionRequest { frame: draw_portrait(width, height).into(), letterbox, min_score: 0.5 }
        };
        let samples = |model: &DetectorModel| {
            let first = most_frequent_canvas(self.config, model);
            let second = self.config.second_canvas.map(|side| (side, side));
            let second = second.filter(|second| *second != first && model.check_canvas(*second).is_ok());
            std::iter::once(first).chain(second).map(on_canvas).collect()
        };
        self.load(file, DetectorModel::new, samples)
    }

    pub(super) fn embedder(&self) -> LoadedCandidate<'a, EmbedderModel> {
        let file = self.file_of(ModelKind::Embedder, "embedder")?;
        self.load(file, EmbedderModel::new, |_| vec![sample_chip()])
    }

    /// Loads the pack's learned quality score; returns `None` if it has none.
    pub(super) fn scorer(&self) -> Option<LoadedCandidate<'a, QualityModel>> {
        let file = self.pack.pack.file(ModelKind::Quality)?;
        Some(self.load(file, QualityModel::new, |_| vec![sample_chip()]))
    }

    fn file_of(&self, kind: ModelKind, name: &str) -> Result<&'a ModelFile, StartError> {
        let pack = &self.pack.pack;
        let missing = || StartError::model(&pack.name, format!("the pack contains no {name}"));
        pack.file(kind).ok_or_else(missing)
    }

    /// Reads a file of the pack and runs it once on the CPU. `samples` returns a request of each
    /// frequent shape, the most frequent shape first.
    fn load<M: Model>(
        &self,
        file: &'a ModelFile,
        new_model: impl Fn(&ModelFile, [Option<usize>; 4], usize) -> Result<M, String>,
        samples: impl Fn(&M) -> Vec<M::Input>,
    ) -> LoadedCandidate<'a, M> {
        let Self { config, runtime, pack } = *self;
        let to_error = |reason: String| StartError::model(&file.file, reason);
        let forms = pack.read(file).and_then(|bytes| ModelForms::from_file(file, bytes)).map_err(to_error)?;
        let mut reference = OnnxModel::load(runtime, &forms.cpu, &cpu_placement(config)).map_err(to_error)?;
        let model = new_model(file, reference.input_shape(), reference.output_count()).map_err(to_error)?;
        // The first run on the CPU warms up this session and verifies that the outputs can be read.
        // Its outputs are the reference for other devices.
        let samples = samples(&model).into_iter().map(|input| {
            let sample = Sample::new(&model, input);
            let expected = sample.run(&model, &mut reference, 1)?;
            Ok((sample, expected))
        });
        let samples = samples.collect::<Result<_, _>>().map_err(to_error)?;
        Ok(CandidateModel {
            config,
            runtime,
            file,
            forms,
            model,
            samples,
            input_name: reference.input_name().to_owned(),
            input_shape: reference.input_shape(),
            reference: Some(reference),
            dynamic_batch_model: None,
            max_batch: 1,
        })
    }
}

/// Returns the width and height of the detector's most frequent canvas.
pub(super) fn most_frequent_canvas(config: &Config, model: &DetectorModel) -> (u32, u32) {
    model.fixed_size().unwrap_or((config.detection_size, config.detection_size))
}

fn sample_chip() -> Arc<Frame> {
    draw_portrait(vision::CHIP_SIDE, vision::CHIP_SIDE).into()
}

impl<M: Model> CandidateModel<'_, M> {
    /// Allows batches on devices. A fixed batch axis is made dynamic. A run on the CPU must then
    /// produce the same result for every item of a batch as for the item alone.
    pub(super) fn allow_batches(&mut self) {
        let (max_batch, file) = (self.config.gpu_batch_size.max(1), &self.file.file);
        if self.input_shape[0].is_none() || max_batch == 1 {
            self.max_batch = max_batch;
            return;
        }
        match self.make_batch_axis_dynamic() {
            Ok(bytes) => {
                tracing::info!(file, "made the model's fixed batch axis dynamic");
                self.dynamic_batch_model = Some(bytes);
                self.max_batch = max_batch;
            }
            Err(reason) => {
                let message = "batch axis cannot be made dynamic; the model runs one item at a time";
                tracing::warn!(file, reason, "{message}");
            }
        }
    }

    fn make_batch_axis_dynamic(&mut self) -> Result<Bytes, String> {
        let bytes = self.forms.with_dynamic_batch_axis()?;
        let mut batched = OnnxModel::load(self.runtime, &bytes, &cpu_placement(self.config))?;
        let mut reference = self.reference_session()?;
        let result = self.sample().check_batch_independence(&self.model, &mut reference, &mut batched);
        self.reference = Some(reference);
        result.map(|()| bytes)
    }

    fn device_bytes(&self) -> &[u8] {
        self.dynamic_batch_model.as_ref().unwrap_or(&self.forms.general)
    }

    /// Loads the model on one device, runs every shape, and compares the results with the CPU's. If
    /// a batch size does not fit in the device's memory, only smaller sizes are used. With
    /// `measure`, runs only the smallest and the largest size, and repeats them to measure their
    /// steady time. Fails with the reason if the model cannot be loaded or run, or the results
    /// differ. With `measure`, also fails if the largest size does not fit in the device's memory.
    pub(super) fn load_and_compare(
        &self,
        provider: Provider,
        device_id: u32,
        measure: bool,
    ) -> Result<Trial<OnnxModel>, String> {
        let loading = Loading::start(provider, device_id);
        let mut placement = placement(self.config, self.model.operation(), provider, device_id);
        if provider == Provider::Tensorrt {
            placement.tensorrt = Some(self.engine_options(device_id, loading.gpu.as_ref())?);
        }
        let (mut session, session_seconds, mut runs) = self.run_on(&placement, measure)?;
        let max_batch = runs.last().map_or(1, |run| run.batch);
        if let Some(engine) = &placement.tensorrt {
            session = session.with_profile(engine.profile.clone(), self.cuda_fallback(device_id)?);
        }
        let load = LoadedModel { sessions: session.session_count(), max_batch, ..self.describe() };
        let load = loading.finish(&placement, load);
        for run in runs.iter_mut().filter(|_| measure) {
            let run_sample = || self.sample().run(&self.model, &mut session, run.batch).map(drop);
            run.steady_seconds = Some(median_seconds(run_sample)?);
        }
        Ok(Trial { session, session_seconds, load, placement, runs })
    }

    /// Returns the parts of a report about the model that do not depend on its placement.
    pub(super) fn describe(&self) -> LoadedModel {
        LoadedModel {
            operation: self.model.operation().name(),
            file: self.file.file.clone(),
            bytes: self.device_bytes().len() as u64,
            ..LoadedModel::default()
        }
    }

    /// Loads the model at `placement` and runs it ([`Self::load_and_run`]).
    fn run_on(&self, placement: &Placement, measure: bool) -> Result<LoadedSession, String> {
        let shapes = self.shapes_with_own_session(placement);
        match self.load_and_run(placement, &shapes, measure) {
            Err(reason) if !shapes.is_empty() && !measure && is_out_of_memory(&reason) => {
                let (file, device) = (&self.file.file, placement.label());
                let message =
                    "too little memory for a session for each shape; every change of shape takes seconds";
                tracing::warn!(file, device, reason, "{message}");
                // A single session needs one copy of the weights, and may use the whole limit.
                self.load_and_run(placement, &[], measure)
            }
            result => result,
        }
    }

    /// Loads the model with a separate session for each of `shapes`. Runs each shape, the smallest
    /// batch size first, and compares the results with the CPU's. If the device does not have
    /// enough memory for a batch size, this size and larger ones are not used; with `measure`, this
    /// is an error.
    fn load_and_run(
        &self,
        placement: &Placement,
        shapes: &[[usize; 4]],
        measure: bool,
    ) -> Result<LoadedSession, String> {
        let started_at = Instant::now();
        let (bytes, any_size) = (self.device_bytes(), self.accepts_any_size());
        let mut session = OnnxModel::load_for_shapes(self.runtime, bytes, placement, shapes, any_size)?;
        let seconds = started_at.elapsed().as_secs_f64();
        let run = |batch| self.run_shapes(&mut session, placement, batch);
        let (runs, reason) = run_sizes_that_fit(&self.sizes(measure), run)?;
        if let Some(reason) = reason {
            if measure {
                return Err(reason);
            }
            let (file, device) = (&self.file.file, placement.label());
            let largest = runs.last().map_or(1, |run| run.batch);
            session.release_batches_above(largest);
            tracing::warn!(file, device, largest, reason, "too little memory for larger batches");
        }
        Ok((session, seconds, runs))
    }

    /// Returns whether the model accepts canvases of other sizes than the sample's.
    fn accepts_any_size(&self) -> bool {
        self.input_shape[2].is_none()
    }

    /// Returns the shapes that have separate sessions at `placement`.
    fn shapes_with_own_session(&self, placement: &Placement) -> Vec<[usize; 4]> {
        if !placement.provider.prepares_one_shape() {
            return Vec::new();
        }
        let sizes = self.sizes(false);
        let shapes =
            self.samples.iter().flat_map(|(sample, _)| sizes.iter().map(|size| (*size, sample.shape())));
        shapes.map(|(size, [channels, height, width])| [size, channels, height, width]).collect()
    }

    /// Returns the sample of the most frequent shape.
    fn sample(&self) -> &Sample<M> {
        &self.samples[0].0
    }

    fn engine_options(&self, device_id: u32, gpu: Option<&GpuDevice>) -> Result<EngineOptions, String> {
        // The library is loaded first, because its error for a missing TensorRT is clear.
        load_library(self.runtime, Provider::Tensorrt, device_id).map_err(|e| e.to_string())?;
        let tensorrt_version = library_version();
        let mode = self.config.performance_mode;
        let source = EngineSource {
            file: self.file,
            bytes: self.device_bytes(),
            profile: Profile::new(&self.input_name, self.sample().shape(), self.max_batch, mode),
            runtime_version: self.runtime.version(),
            tensorrt_version: &tensorrt_version,
            gpu,
        };
        let engine = EngineOptions::prepare(self.config, source)?;
        if !engine.is_cached {
            tracing::warn!(
                file = self.file.file,
                folder = %engine.folder.display(),
                "building a TensorRT engine for this model, which takes minutes (`facecrawl models build` builds it in advance)"
            );
        }
        Ok(engine)
    }

    /// Returns a CUDA session for canvases for which the engine was not built. Returns `None` if no
    /// such session is needed or CUDA is not available.
    fn cuda_fallback(&self, device_id: u32) -> Result<Option<OnnxModel>, String> {
        if !self.accepts_any_size() || self.runtime.check(Provider::Cuda, device_id).is_err() {
            return Ok(None);
        }
        let placement = placement(self.config, self.model.operation(), Provider::Cuda, device_id);
        Ok(Some(self.run_on(&placement, false)?.0))
    }

    /// Returns the reference session and, at later calls, new sessions like it.
    pub(super) fn reference_session(&mut self) -> Result<OnnxModel, String> {
        let load = || OnnxModel::load(self.runtime, &self.forms.cpu, &cpu_placement(self.config));
        self.reference.take().map_or_else(load, Ok)
    }

    /// Loads a session on the CPU and compares its first run with that of the reference session.
    pub(super) fn cpu_session(&self, placement: &Placement) -> Result<OnnxModel, String> {
        let mut session = OnnxModel::load(self.runtime, &self.cpu_form(placement)?, placement)?;
        self.run_shapes(&mut session, placement, 1)?;
        Ok(session)
    }

    /// Returns the form of the model that is loaded at `placement`.
    fn cpu_form(&self, placement: &Placement) -> Result<Bytes, String> {
        match (placement.provider, placement.precision) {
            (Provider::Cpu, Precision::Int8) => self.forms.int8(),
            (Provider::Cpu, _) => Ok(self.forms.cpu.clone()),
            _ => Ok(self.forms.general.clone()),
        }
    }

    /// Returns all batch sizes; with `only_extremes`, the smallest and the largest.
    fn sizes(&self, only_extremes: bool) -> Vec<usize> {
        match (only_extremes, self.max_batch) {
            (false, max_batch) => batch_sizes(max_batch),
            (true, 1) => vec![1],
            (true, max_batch) => vec![1, max_batch],
        }
    }

    /// Runs the samples with one batch size, on a device also a second time, and compares all
    /// results with the CPU's. Returns the duration of the first run and the largest difference,
    /// both of the most frequent shape. Other shapes run only if they have separate sessions.
    fn run_shapes(
        &self,
        session: &mut OnnxModel,
        placement: &Placement,
        batch: usize,
    ) -> Result<BatchRun, String> {
        let tolerance = match placement.precision {
            Precision::Fp32 => TOLERANCE,
            Precision::Bf16 => BF16_TOLERANCE,
            Precision::Int8 => INT8_TOLERANCE,
        };
        let has_own_sessions = placement.provider.prepares_one_shape();
        let mut runs = Vec::new();
        for (sample, expected) in &self.samples[..if has_own_sessions { self.samples.len() } else { 1 }] {
            let started_at = Instant::now();
            let first = sample.run(&self.model, session, batch)?;
            let first_seconds = started_at.elapsed().as_secs_f64();
            let mut difference = compare_outputs(expected, &first, batch, tolerance)?;
            if has_own_sessions || !placement.provider.runs_on_cpu() {
                let later = sample.run_again(&self.model, session, batch)?;
                difference = compare_outputs(expected, &later, batch, tolerance)?.max(difference);
            }
            runs.push(BatchRun { batch, first_seconds, steady_seconds: None, difference });
        }
        Ok(runs.swap_remove(0))
    }
}

/// Runs batches of `sizes`, the smallest size first, until the device does not have enough memory.
/// Returns the runs, and the reason if there was too little memory for the next size. Fails with
/// the reason if the first size fails, or if a run fails for another reason.
fn run_sizes_that_fit(
    sizes: &[usize],
    mut run: impl FnMut(usize) -> Result<BatchRun, String>,
) -> Result<(Vec<BatchRun>, Option<String>), String> {
    let mut runs = Vec::with_capacity(sizes.len());
    for &batch in sizes {
        match run(batch) {
            Ok(result) => runs.push(result),
            Err(reason) if !runs.is_empty() && is_out_of_memory(&reason) => return Ok((runs, Some(reason))),
            Err(reason) => return Err(reason),
        }
    }
    Ok((runs, None))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn out_of_memory_limits_candidate_batch_sizes() {
        let run = |fails_from: usize, reason: &'static str| {
            run_sizes_that_fit(&[1, 8, 32], |batch| {
                let run = BatchRun { batch, first_seconds: 0.1, steady_seconds: None, difference: 0.0 };
                if batch < fails_from { Ok(run) } else { Err(reason.to_owned()) }
            })
            .map(|(runs, reason)| (runs.iter().map(|run| run.batch).collect::<Vec<_>>(), reason.is_some()))
        };
        let memory = "CUDA failure 2: out of memory";
        assert_eq!(run(64, memory).unwrap(), (vec![1, 8, 32], false));
        assert_eq!(run(32, memory).unwrap(), (vec![1, 8], true));
        assert!(run(1, memory).is_err(), "one item does not fit");
        assert!(run(8, "the results disagree").is_err());
    }
}
