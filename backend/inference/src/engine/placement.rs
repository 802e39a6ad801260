//! Which device an operation gets: try what was asked for, prove it, or say why not.
use super::warmup::{Sample, agree};
use crate::backend::{Backend, OnnxModel, Placement};
use crate::batcher::{Device, buckets};
use crate::ep::Provider;
use crate::manifest::ModelFile;
use crate::models::Model;
use crate::runtime::Runtime;
use crate::{Config, GpuDevice, LoadedModel, Operation, OperationReport, StartError, devices};
use std::time::Instant;

/// A model with its devices.
pub(super) struct Placed<M> {
    pub(super) model: M,
    pub(super) devices: Vec<Device>,
    pub(super) max_batch: usize,
    pub(super) report: OperationReport,
    pub(super) loads: Vec<LoadedModel>,
}

/// What the operation asks for, as the report shows it.
pub(super) fn requested(config: &Config, operation: Operation) -> String {
    if !config.gpu_operations.contains(&operation) {
        return Provider::Cpu.name().to_owned();
    }
    match Provider::candidates(config.backend) {
        [] => Provider::Cpu.name().to_owned(),
        [one] => one.name().to_owned(),
        _ => "auto".to_owned(),
    }
}

/// The one way in which an operation does not get its GPU: an error with `FORCE_GPU_ONLY`, else a warning and a count.
pub(super) fn refuse(
    config: &Config,
    operation: Operation,
    provider: &str,
    reason: &str,
) -> Result<(), StartError> {
    let operation = operation.name();
    if config.force_gpu_only {
        return Err(StartError::GpuOnly {
            operation,
            provider: provider.to_owned(),
            reason: reason.to_owned(),
        });
    }
    metrics::counter!("facecrawl_ep_fallback_total", "operation" => operation, "provider" => provider.to_owned())
        .increment(1);
    tracing::warn!(operation, provider, reason, "no GPU for this operation; it runs on the CPU");
    Ok(())
}

/// Loads `bytes` where `config` wants its operation.
pub(super) fn place<M: Model>(
    config: &Config,
    runtime: &Runtime,
    file: &ModelFile,
    bytes: &[u8],
    describe: impl Fn(&ModelFile, [Option<usize>; 4], usize) -> Result<M, String>,
    sample: impl Fn(&M) -> M::Input,
) -> Result<Placed<M>, StartError> {
    let failed = |reason: String| StartError::Model { model: file.file.clone(), reason };
    let began = Instant::now();
    let mut reference = OnnxModel::load(runtime, bytes, &cpu(config)).map_err(failed)?;
    let model = describe(file, reference.input(), reference.outputs()).map_err(failed)?;
    let operation = model.operation();
    let sample = Sample::new(&model, sample(&model));
    // The first run on the CPU is the warm-up of this session, the proof that the outputs can be read, and what other
    // devices are compared with.
    let expected = sample.run(&model, &mut reference, 1).map_err(failed)?;
    let mut report = OperationReport {
        operation: operation.name(),
        gpu_requested: config.gpu_operations.contains(&operation),
        requested: requested(config, operation),
        effective: Provider::Cpu.name().to_owned(),
        reason: None,
    };

    if report.gpu_requested {
        let batch = if reference.input()[0].is_some() { 1 } else { config.gpu_batch_size.max(1) };
        let attempt = Attempt {
            config,
            runtime,
            file,
            bytes,
            sample: &sample,
            model: &model,
            expected: &expected,
            batch,
        };
        match attempt.providers() {
            Ok(found) => {
                let (sessions, loads): (Vec<_>, Vec<_>) = found.into_iter().unzip();
                let labels: Vec<&str> = sessions.iter().map(Backend::device).collect();
                report.effective = labels.join(",");
                let devices = attempt.with_fallbacks(sessions, reference).map_err(failed)?;
                return Ok(Placed { model, devices, max_batch: batch, report, loads });
            }
            Err(reason) => {
                refuse(config, operation, &report.requested, &reason)?;
                report.reason = Some(reason);
            }
        }
    }

    let sessions = cpu_sessions(config);
    let devices =
        more_sessions(config, runtime, bytes, &model, &sample, reference, sessions).map_err(failed)?;
    let load = Loading { operation, file, bytes, sessions, began, before: None };
    let loads = vec![load.finish(&Placement::CPU)];
    let devices = devices.into_iter().map(|d| Device { primary: Box::new(d), fallback: None }).collect();
    Ok(Placed { model, devices, max_batch: 1, report, loads })
}

/// `first` and as many sessions beside it as make `wanted`, loaded side by side.
///
/// Each session has its own copy of the weights: at the optimisation level used here the runtime rewrites them into
/// its kernels' layout per session, and shares them only between sessions that are given their weights one by one.
fn more_sessions<M: Model>(
    config: &Config,
    runtime: &Runtime,
    bytes: &[u8],
    model: &M,
    sample: &Sample<M>,
    first: OnnxModel,
    wanted: usize,
) -> Result<Vec<OnnxModel>, String> {
    let load = || {
        let mut session = OnnxModel::load(runtime, bytes, &cpu(config))?;
        sample.run(model, &mut session, 1)?;
        Ok(session)
    };
    std::thread::scope(|scope| {
        let loading: Vec<_> = (1..wanted).map(|_| scope.spawn(load)).collect();
        let others = loading.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err("the session's thread panicked while loading".to_owned()))
        });
        std::iter::once(Ok(first)).chain(others).collect()
    })
}

fn cpu(config: &Config) -> Placement {
    Placement::cpu(config.cpu_session_threads)
}

fn cpu_sessions(config: &Config) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    match config.cpu_sessions {
        0 => (cores() / config.cpu_session_threads.max(1)).max(1),
        chosen => chosen,
    }
}

/// A load under way.
struct Loading<'a> {
    operation: Operation,
    file: &'a ModelFile,
    bytes: &'a [u8],
    sessions: usize,
    began: Instant,
    /// The GPU before it.
    before: Option<GpuDevice>,
}

impl Loading<'_> {
    /// Says what was loaded where, and what it took.
    fn finish(self, placement: &Placement) -> LoadedModel {
        let after = devices::of(placement.provider, placement.device_id);
        let memory = |device: &Option<GpuDevice>| device.as_ref().and_then(|d| d.memory_used);
        let load = LoadedModel {
            operation: self.operation.name(),
            file: self.file.file.clone(),
            bytes: self.bytes.len() as u64,
            device: placement.label(),
            sessions: self.sessions,
            seconds: self.began.elapsed().as_secs_f64(),
            memory_before: memory(&self.before),
            memory_after: memory(&after),
        };
        let megabytes = |bytes: Option<u64>| bytes.map(|bytes| (bytes as f64 / 1e5).round() / 10.0);
        let message = match placement.provider {
            Provider::Cpu => "model loaded and warmed up",
            _ => "model loaded with GPU acceleration and warmed up",
        };
        tracing::info!(
            operation = load.operation,
            file = load.file,
            megabytes = megabytes(Some(load.bytes)),
            seconds = (load.seconds * 1e3).round() / 1e3,
            device = load.device,
            device_name = after.as_ref().map(|device| device.name.as_str()),
            provider = placement.provider.name(),
            sessions = load.sessions,
            gpu_megabytes_before = megabytes(load.memory_before),
            gpu_megabytes_after = megabytes(load.memory_after),
            gpu_megabytes_total = megabytes(after.as_ref().and_then(|device| device.memory_total)),
            message
        );
        load
    }
}

/// The search for a GPU that runs a model as the CPU does.
struct Attempt<'a, M: Model> {
    config: &'a Config,
    runtime: &'a Runtime,
    file: &'a ModelFile,
    bytes: &'a [u8],
    sample: &'a Sample<M>,
    model: &'a M,
    expected: &'a [Vec<f32>],
    batch: usize,
}

impl<M: Model> Attempt<'_, M> {
    /// One replica per device on the first provider that works, or why none does.
    fn providers(&self) -> Result<Vec<(OnnxModel, LoadedModel)>, String> {
        let candidates = Provider::candidates(self.config.backend);
        if candidates.is_empty() {
            return Err("GPU_BACKEND is cpu".to_owned());
        }
        let mut reasons = Vec::new();
        for provider in candidates {
            match self.replicas(*provider) {
                Ok(found) => return Ok(found),
                Err(reason) => reasons.push(format!("{}: {reason}", provider.name())),
            }
        }
        Err(reasons.join("; "))
    }

    fn replicas(&self, provider: Provider) -> Result<Vec<(OnnxModel, LoadedModel)>, String> {
        if !provider.in_build() {
            return Err("this program was built without it".to_owned());
        }
        if !provider.in_library() {
            return Err(format!(
                "the loaded ONNX Runtime {} was built without it",
                self.runtime.path().display()
            ));
        }
        if self.config.device_ids.is_empty() {
            return Err("no device id is given".to_owned());
        }
        self.config.device_ids.iter().map(|id| self.prove(provider, *id)).collect()
    }

    /// Loads the model on one device, runs every batch size, and compares with the CPU.
    fn prove(&self, provider: Provider, device_id: u32) -> Result<(OnnxModel, LoadedModel), String> {
        let loading = Loading {
            operation: self.model.operation(),
            file: self.file,
            bytes: self.bytes,
            sessions: 1,
            began: Instant::now(),
            before: devices::of(provider, device_id),
        };
        let models = [Operation::FaceDetection, Operation::FaceEmbedding];
        let sharing = models.iter().filter(|o| self.config.gpu_operations.contains(o)).count().max(1);
        let memory_limit = (self.config.memory_limit_gb * f64::from(1 << 30)) as usize / sharing;
        let placement = Placement { provider, device_id, memory_limit, threads: 1 };
        let mut session = OnnxModel::load(self.runtime, self.bytes, &placement)?;
        for size in buckets(self.batch) {
            let found = self.sample.run(self.model, &mut session, size)?;
            agree(self.expected, &found, size)?;
        }
        let load = loading.finish(&placement);
        Ok((session, load))
    }

    /// Gives each GPU a CPU session to fall back to, unless falling back is forbidden.
    fn with_fallbacks(&self, found: Vec<OnnxModel>, reference: OnnxModel) -> Result<Vec<Device>, String> {
        let mut spare = Some(reference);
        found
            .into_iter()
            .map(|session| {
                let fallback = match (self.config.force_gpu_only, spare.take()) {
                    (true, _) => None,
                    (false, Some(reference)) => Some(reference),
                    (false, None) => Some(OnnxModel::load(self.runtime, self.bytes, &cpu(self.config))?),
                };
                Ok(Device { primary: Box::new(session), fallback: fallback.map(|f| Box::new(f) as _) })
            })
            .collect()
    }
}
