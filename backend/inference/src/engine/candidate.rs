//! Loads and checks a candidate model, and tests it on each device.
use super::candidates::memory_share;
use super::forms::ModelForms;
use super::loading::Loading;
use super::warmup::{BF16_TOLERANCE, INT8_TOLERANCE, Sample, TOLERANCE, compare_outputs};
use crate::backend::{OnnxModel, Placement, load_library};
use crate::batcher::buckets;
use crate::ep::Provider;
use crate::manifest::ModelFile;
use crate::models::Model;
use crate::report::{BatchRun, LoadedModel};
use crate::runtime::Runtime;
use crate::tensorrt::{EngineOptions, EngineSource, Profile, library_version};
use crate::unavailable::Unavailable;
use crate::{Config, CpuBackend, Precision, ResolvedPack, StartError, devices};
use bytes::Bytes;
use std::time::Instant;

/// Number of runs of a batch size after the first one. Their median is the steady time.
const STEADY_RUNS: usize = 5;

/// A candidate model with its first result on the CPU, which is compared with the results of every
/// device.
pub(super) struct CandidateModel<'a, M: Model> {
    pub(super) config: &'a Config,
    pub(super) runtime: &'a Runtime,
    pub(super) file: &'a ModelFile,
    pub(super) forms: ModelForms,
    pub(super) model: M,
    pub(super) sample: Sample<M>,
    expected: Vec<Vec<f32>>,
    input_name: String,
    /// Whether the model accepts canvases of other sizes than the sample's.
    any_size: bool,
    /// The model with a free batch axis, if the file's axis is fixed.
    batched: Option<Bytes>,
    /// Maximum number of items in one run.
    pub(super) batch: usize,
}

/// A model on a device, whose results agree with the CPU's.
pub(super) struct Trial {
    pub(super) session: OnnxModel,
    /// Seconds to create the session, without any run.
    pub(super) session_seconds: f64,
    pub(super) load: LoadedModel,
    /// Where the session runs.
    pub(super) placement: Placement,
    pub(super) runs: Vec<BatchRun>,
}

impl<'a, M: Model> CandidateModel<'a, M> {
    /// Reads a file of the pack and runs it once on the CPU. Also returns the CPU session.
    pub(super) fn load(
        config: &'a Config,
        runtime: &'a Runtime,
        pack: &'a ResolvedPack,
        file: &'a ModelFile,
        describe: impl Fn(&ModelFile, [Option<usize>; 4], usize) -> Result<M, String>,
        sample: impl Fn(&M) -> M::Input,
    ) -> Result<(Self, OnnxModel), StartError> {
        let failed = |reason: String| StartError::Model { model: file.file.clone(), reason };
        let forms = pack.read(file).and_then(|bytes| ModelForms::from_file(file, bytes)).map_err(failed)?;
        let mut reference = OnnxModel::load(runtime, &forms.cpu, &cpu(config)).map_err(failed)?;
        let model = describe(file, reference.input(), reference.outputs()).map_err(failed)?;
        let sample = Sample::new(&model, sample(&model));
        // The first run on the CPU warms up this session and verifies that the outputs can be read.
        // The outputs of other devices are compared with its outputs.
        let expected = sample.run(&model, &mut reference, 1).map_err(failed)?;
        let input_name = reference.input_name().to_owned();
        let any_size = reference.input()[2].is_none();
        let candidate = Self {
            config,
            runtime,
            file,
            forms,
            model,
            sample,
            expected,
            input_name,
            any_size,
            batched: None,
            batch: 1,
        };
        Ok((candidate, reference))
    }

    /// Allows batches on devices. A fixed batch axis is made free. A run on the CPU must then
    /// produce the same result for every item of a batch as for the item alone.
    pub(super) fn allow_batches(&mut self, reference: &mut OnnxModel) {
        let max_batch = self.config.gpu_batch_size.max(1);
        if reference.input()[0].is_none() || max_batch == 1 {
            self.batch = max_batch;
            return;
        }
        match self.free_batch_axis(reference) {
            Ok(bytes) => {
                tracing::info!(file = self.file.file, "freed the model's fixed batch axis");
                self.batched = Some(bytes);
                self.batch = max_batch;
            }
            Err(reason) => {
                tracing::warn!(
                    file = self.file.file,
                    reason,
                    "batch axis cannot be freed; the model runs one item at a time"
                );
            }
        }
    }

    fn free_batch_axis(&self, reference: &mut OnnxModel) -> Result<Bytes, String> {
        let bytes = self.forms.batched()?;
        let mut freed = OnnxModel::load(self.runtime, &bytes, &cpu(self.config))?;
        self.sample.check_batch_independence(&self.model, reference, &mut freed)?;
        Ok(bytes)
    }

    /// Returns the bytes that devices load.
    pub(super) fn device_bytes(&self) -> &[u8] {
        self.batched.as_ref().unwrap_or(&self.forms.general)
    }

    /// Loads the model on one device, runs every batch size, and compares the results with the
    /// CPU's. With `measure`, it runs only the smallest and the largest size, and repeats them to
    /// measure their steady time.
    pub(super) fn try_on(&self, provider: Provider, device_id: u32, measure: bool) -> Result<Trial, String> {
        let loading = Loading {
            operation: self.model.operation(),
            file: &self.file.file,
            bytes: self.device_bytes().len(),
            sessions: 1,
            began: Instant::now(),
            before: devices::find(provider, device_id),
        };
        let mut placement = self.placement(provider, device_id);
        if provider == Provider::Tensorrt {
            placement.tensorrt = Some(self.engine_options(device_id, &loading)?);
        }
        let mut session = OnnxModel::load(self.runtime, self.device_bytes(), &placement)?;
        let session_seconds = loading.began.elapsed().as_secs_f64();
        let mut runs = self.runs(&mut session, &placement, &self.sizes(measure))?;
        if let Some(engine) = &placement.tensorrt {
            session = session.limited_to(engine.profile.clone(), self.cuda_fallback(device_id)?);
        }
        let load = loading.finish(&placement);
        for run in runs.iter_mut().filter(|_| measure) {
            let sample = || self.sample.run(&self.model, &mut session, run.batch).map(drop);
            run.steady_seconds = Some(median_seconds(sample)?);
        }
        Ok(Trial { session, session_seconds, load, placement, runs })
    }

    pub(super) fn placement(&self, provider: Provider, device_id: u32) -> Placement {
        if provider.on_cpu() {
            let precision = match (provider, self.config.cpu_backend) {
                (Provider::OpenVino, CpuBackend::OpenVino(precision)) => precision,
                (Provider::Cpu, CpuBackend::Auto | CpuBackend::OnnxRuntimeInt8) => Precision::Int8,
                _ => Precision::Fp32,
            };
            return Placement { provider, precision, ..cpu(self.config) };
        }
        let memory_limit = memory_share(self.config, self.model.operation());
        Placement { provider, device_id, memory_limit, ..Placement::CPU }
    }

    fn engine_options(&self, device_id: u32, loading: &Loading<'_>) -> Result<EngineOptions, String> {
        // The library is loaded first, so that a missing TensorRT is reported immediately and
        // clearly.
        load_library(self.runtime, Provider::Tensorrt, device_id).map_err(|e| e.to_string())?;
        let tensorrt_version = library_version();
        let mode = self.config.performance_mode;
        let source = EngineSource {
            file: self.file,
            bytes: self.device_bytes(),
            profile: Profile::new(&self.input_name, self.sample.shape(), self.batch, mode),
            runtime_version: self.runtime.version(),
            tensorrt_version: &tensorrt_version,
            gpu: loading.before.as_ref(),
        };
        let engine = EngineOptions::prepare(self.config, source)?;
        if !engine.found {
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
        if !self.any_size || Unavailable::absence(Provider::Cuda, self.runtime.path()).is_some() {
            return Ok(None);
        }
        let placement = self.placement(Provider::Cuda, device_id);
        let mut session = OnnxModel::load(self.runtime, self.device_bytes(), &placement)?;
        self.runs(&mut session, &placement, &self.sizes(false))?;
        Ok(Some(session))
    }

    /// Loads a session on the CPU and compares its first run with that of the reference session.
    pub(super) fn cpu_session(&self, placement: &Placement) -> Result<OnnxModel, String> {
        let mut session = OnnxModel::load(self.runtime, &self.cpu_form(placement)?, placement)?;
        self.runs(&mut session, placement, &[1])?;
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

    /// Returns all batch sizes; with `extremes` only the smallest and the largest.
    fn sizes(&self, extremes: bool) -> Vec<usize> {
        match (extremes, self.batch) {
            (false, most) => buckets(most),
            (true, 1) => vec![1],
            (true, most) => vec![1, most],
        }
    }

    /// Runs each batch size once and compares the results with the CPU's.
    fn runs(
        &self,
        session: &mut OnnxModel,
        placement: &Placement,
        sizes: &[usize],
    ) -> Result<Vec<BatchRun>, String> {
        let tolerance = match placement.precision {
            Precision::Fp32 => TOLERANCE,
            Precision::Bf16 => BF16_TOLERANCE,
            Precision::Int8 => INT8_TOLERANCE,
        };
        sizes
            .iter()
            .map(|&batch| {
                let began = Instant::now();
                let found = self.sample.run(&self.model, session, batch)?;
                let first_seconds = began.elapsed().as_secs_f64();
                let difference = compare_outputs(&self.expected, &found, batch, tolerance)?;
                Ok(BatchRun { batch, first_seconds, steady_seconds: None, difference })
            })
            .collect()
    }
}

/// Returns the median duration of [`STEADY_RUNS`] runs, in seconds.
pub(super) fn median_seconds(mut run: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let mut seconds = Vec::with_capacity(STEADY_RUNS);
    for _ in 0..STEADY_RUNS {
        let began = Instant::now();
        run()?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[STEADY_RUNS / 2])
}

/// Returns the placement of a CPU session with the configured threads.
pub(super) fn cpu(config: &Config) -> Placement {
    Placement::cpu(config.cpu_session_threads)
}
