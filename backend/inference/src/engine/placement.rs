//! Which device an operation gets: try what was asked for, prove it, or say why not.
use super::warmup::{Sample, agree};
use crate::backend::{Backend, OnnxModel, Placement};
use crate::batcher::{Device, buckets};
use crate::ep::Provider;
use crate::manifest::ModelFile;
use crate::models::Model;
use crate::runtime::Runtime;
use crate::{Config, Operation, OperationReport, StartError};
use std::time::Instant;

/// A model with its devices.
pub(super) struct Placed<M> {
    pub(super) model: M,
    pub(super) devices: Vec<Device>,
    pub(super) max_batch: usize,
    pub(super) report: OperationReport,
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
    let mut reference = OnnxModel::load(runtime, bytes, &Placement::CPU).map_err(failed)?;
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
                let labels: Vec<&str> = found.iter().map(Backend::device).collect();
                report.effective = labels.join(",");
                let devices = attempt.with_fallbacks(found, reference).map_err(failed)?;
                return Ok(Placed { model, devices, max_batch: batch, report });
            }
            Err(reason) => {
                refuse(config, operation, &report.requested, &reason)?;
                report.reason = Some(reason);
            }
        }
    }

    let sessions = cpu_sessions(config);
    let devices = more_sessions(runtime, bytes, &model, &sample, reference, sessions).map_err(failed)?;
    loaded(file, bytes, "cpu", sessions, began);
    let devices = devices.into_iter().map(|d| Device { primary: Box::new(d), fallback: None }).collect();
    Ok(Placed { model, devices, max_batch: 1, report })
}

/// `first` and as many sessions beside it as make `wanted`, loaded side by side.
///
/// Each session has its own copy of the weights: at the optimisation level used here the runtime rewrites them into
/// its kernels' layout per session, and shares them only between sessions that are given their weights one by one.
fn more_sessions<M: Model>(
    runtime: &Runtime,
    bytes: &[u8],
    model: &M,
    sample: &Sample<M>,
    first: OnnxModel,
    wanted: usize,
) -> Result<Vec<OnnxModel>, String> {
    let load = || {
        let mut session = OnnxModel::load(runtime, bytes, &Placement::CPU)?;
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

fn cpu_sessions(config: &Config) -> usize {
    match config.cpu_sessions {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        chosen => chosen,
    }
}

fn loaded(file: &ModelFile, bytes: &[u8], device: &str, sessions: usize, began: Instant) {
    tracing::info!(
        file = file.file,
        megabytes = bytes.len() as f64 / 1e6,
        seconds = began.elapsed().as_secs_f64(),
        device,
        provider = device.split(':').next().unwrap_or(device),
        sessions,
        "model loaded and warmed up"
    );
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
    fn providers(&self) -> Result<Vec<OnnxModel>, String> {
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

    fn replicas(&self, provider: Provider) -> Result<Vec<OnnxModel>, String> {
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
    fn prove(&self, provider: Provider, device_id: u32) -> Result<OnnxModel, String> {
        let began = Instant::now();
        let models = [Operation::FaceDetection, Operation::FaceEmbedding];
        let sharing = models.iter().filter(|o| self.config.gpu_operations.contains(o)).count().max(1);
        let memory_limit = (self.config.memory_limit_gb * f64::from(1 << 30)) as usize / sharing;
        let placement = Placement { provider, device_id, memory_limit };
        let mut session = OnnxModel::load(self.runtime, self.bytes, &placement)?;
        for size in buckets(self.batch) {
            let found = self.sample.run(self.model, &mut session, size)?;
            agree(self.expected, &found, size)?;
        }
        loaded(self.file, self.bytes, &placement.label(), 1, began);
        Ok(session)
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
                    (false, None) => Some(OnnxModel::load(self.runtime, self.bytes, &Placement::CPU)?),
                };
                Ok(Device { primary: Box::new(session), fallback: fallback.map(|f| Box::new(f) as _) })
            })
            .collect()
    }
}
