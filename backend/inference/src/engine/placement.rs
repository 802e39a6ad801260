//! Which device an operation gets: try what was asked for, prove it, or say why not.
use super::candidates::{candidates, first_that_works};
use super::loading::Loading;
use super::subject::{Subject, Trial, cpu};
use crate::backend::{Backend, OnnxModel, Placement};
use crate::batcher::Device;
use crate::ep::Provider;
use crate::models::Model;
use crate::report::LoadedModel;
use crate::{Config, CpuBackend, Operation, OperationReport, Precision, StartError};
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
fn requested(config: &Config, operation: Operation) -> String {
    if !config.gpu_operations.contains(&operation) {
        return Provider::Cpu.name().to_owned();
    }
    match candidates(config) {
        [] => Provider::Cpu.name().to_owned(),
        [one] => one.name().to_owned(),
        _ => "auto".to_owned(),
    }
}

/// What is reported of an operation before it gets a device.
pub(super) fn on_the_cpu(config: &Config, operation: Operation) -> OperationReport {
    OperationReport {
        operation: operation.name(),
        gpu_requested: config.gpu_operations.contains(&operation),
        requested: requested(config, operation),
        effective: Provider::Cpu.name().to_owned(),
        reason: None,
    }
}

/// The one way in which an operation does not get its GPU: an error with `FORCE_GPU_ONLY`, else a warning and a count.
pub(super) fn refuse(
    config: &Config,
    operation: Operation,
    provider: &str,
    reason: &str,
) -> Result<(), StartError> {
    if config.force_gpu_only {
        return Err(StartError::GpuOnly {
            operation: operation.name(),
            provider: provider.to_owned(),
            reason: reason.to_owned(),
        });
    }
    fell_back(operation, provider, reason, "no GPU for this operation; it runs on the CPU");
    Ok(())
}

/// No fallback is silent.
fn fell_back(operation: Operation, provider: &str, reason: &str, message: &str) {
    let operation = operation.name();
    metrics::counter!("facecrawl_ep_fallback_total", "operation" => operation, "provider" => provider.to_owned())
        .increment(1);
    tracing::warn!(operation, provider, reason, "{message}");
}

/// Puts the model where its operation is wanted. `reference` is the session that the subject was loaded with.
pub(super) fn place<M: Model>(
    mut subject: Subject<'_, M>,
    mut reference: OnnxModel,
    refine: impl Fn(&M, Trial, usize) -> Box<dyn Backend>,
) -> Result<Placed<M>, StartError> {
    let config = subject.config;
    let failed = |reason: String| StartError::Model { model: subject.file.file.clone(), reason };
    let began = Instant::now();
    let operation = subject.model.operation();
    let mut report = on_the_cpu(config, operation);

    if report.gpu_requested {
        match providers(&mut subject, &mut reference) {
            Ok(found) => {
                let loads = found.iter().map(|trial| trial.load.clone()).collect();
                let sessions: Vec<_> =
                    found.into_iter().map(|trial| refine(&subject.model, trial, subject.batch)).collect();
                let labels: Vec<&str> = sessions.iter().map(|session| session.device()).collect();
                report.effective = labels.join(",");
                let devices = with_fallbacks(&subject, sessions, reference).map_err(failed)?;
                return Ok(Placed { max_batch: subject.batch, model: subject.model, devices, report, loads });
            }
            Err(reason) => {
                refuse(config, operation, &report.requested, &reason)?;
                report.reason = Some(reason);
            }
        }
    }

    let sessions = cpu_sessions(config);
    let (mut first, mut placement) = (reference, cpu(config));
    if let Some(wanted) = chosen_on_cpu(&subject) {
        match prove_on_cpu(&subject, &wanted) {
            Ok(session) => (first, placement) = (session, wanted),
            Err(reason) => report.add_reason(reason),
        }
    }
    let devices = more_sessions(&subject, first, sessions, &placement).map_err(failed)?;
    let (file, bytes) = (subject.file.file.as_str(), subject.forms.general.len());
    let load = Loading { operation, file, bytes, sessions, began, before: None };
    let loads = vec![load.finish(&placement)];
    let devices = devices.into_iter().map(|d| Device { primary: Box::new(d), fallback: None }).collect();
    Ok(Placed { model: subject.model, devices, max_batch: 1, report, loads })
}

/// What `CPU_BACKEND` asks for besides the session that is there already. INT8 is for embedders: a detector's scores
/// would move across its threshold.
fn chosen_on_cpu<M: Model>(subject: &Subject<'_, M>) -> Option<Placement> {
    let embeds = subject.model.operation() == Operation::FaceEmbedding;
    match subject.config.cpu_backend {
        CpuBackend::Auto if embeds && subject.file.int8 && multiplies_bytes() => {
            Some(subject.placement(Provider::Cpu, 0))
        }
        CpuBackend::OnnxRuntimeInt8 if embeds => Some(subject.placement(Provider::Cpu, 0)),
        CpuBackend::OpenVino(_) => Some(subject.placement(Provider::OpenVino, 0)),
        CpuBackend::Auto | CpuBackend::OnnxRuntime | CpuBackend::OnnxRuntimeInt8 => None,
    }
}

/// A proven session there; or why there is none, which is counted and said, but does not fail the start: the CPU is what
/// was asked for, and the CPU it is.
fn prove_on_cpu<M: Model>(subject: &Subject<'_, M>, wanted: &Placement) -> Result<OnnxModel, String> {
    let name = match wanted.provider {
        Provider::Cpu => wanted.precision.name(),
        provider => provider.name(),
    };
    let found = match wanted.provider.absence(subject.runtime) {
        Some(reason) => Err(reason),
        None if wanted.precision == Precision::Bf16 && !multiplies_bf16() => {
            Err("this processor has no instructions for bf16".to_owned())
        }
        None if wanted.precision == Precision::Int8 && !multiplies_bytes() => {
            Err("this processor has no instructions for sums of products of bytes".to_owned())
        }
        None => subject.cpu_session(wanted),
    };
    found.map_err(|reason| {
        let message = "CPU_BACKEND cannot be had for this operation; ONNX Runtime computes it in FP32";
        fell_back(subject.model.operation(), name, &reason, message);
        format!("{name}: {reason}")
    })
}

/// ONNX Runtime computes in INT8 without them too, but slower and, on x86, with sums that overflow.
fn multiplies_bytes() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx512vnni") || std::arch::is_x86_feature_detected!("avxvnni")
    }
    #[cfg(target_arch = "aarch64")]
    {
        std::arch::is_aarch64_feature_detected!("dotprod")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        false
    }
}

/// OpenVINO computes in FP32, and does not say so, where this is false.
fn multiplies_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx512bf16")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// `first` and as many sessions beside it as make `wanted`, loaded side by side.
///
/// Each session has its own copy of the weights. Sharing them does not pay: at the optimisation level used here the runtime fuses
/// and rewrites them into its kernels' layout per session. Measured as resident memory per session beside a first one, alone, with
/// a container of prepacked weights, and with every weight handed in as a shared initialiser too: MobileFaceNet 8.4, 8.4 and
/// 7.9 MB, YuNet 17.7 MB and SCRFD 2.5G 46.4 MB in all three (most of it activations).
fn more_sessions<M: Model>(
    subject: &Subject<'_, M>,
    first: OnnxModel,
    wanted: usize,
    placement: &Placement,
) -> Result<Vec<OnnxModel>, String> {
    let load = || subject.cpu_session(placement);
    std::thread::scope(|scope| {
        let loading: Vec<_> = (1..wanted).map(|_| scope.spawn(load)).collect();
        let others = loading.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err("the session's thread panicked while loading".to_owned()))
        });
        std::iter::once(Ok(first)).chain(others).collect()
    })
}

fn cpu_sessions(config: &Config) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    match config.cpu_sessions {
        0 => (cores() / config.cpu_session_threads.max(1)).max(1),
        chosen => chosen,
    }
}

/// One replica per device on the first provider that works, or why none does.
fn providers<M: Model>(
    subject: &mut Subject<'_, M>,
    reference: &mut OnnxModel,
) -> Result<Vec<Trial>, String> {
    let (config, runtime) = (subject.config, subject.runtime);
    let mut batches = false;
    first_that_works(config, runtime, |provider, id| {
        if !std::mem::replace(&mut batches, true) {
            subject.allow_batches(reference);
        }
        subject.try_on(provider, id, false)
    })
}

/// Gives each GPU a CPU session to fall back to, unless falling back is forbidden.
fn with_fallbacks<M: Model>(
    subject: &Subject<'_, M>,
    found: Vec<Box<dyn Backend>>,
    reference: OnnxModel,
) -> Result<Vec<Device>, String> {
    let config = subject.config;
    let mut spare = Some(reference);
    found
        .into_iter()
        .map(|primary| {
            let fallback = match (config.force_gpu_only, spare.take()) {
                (true, _) => None,
                (false, Some(reference)) => Some(reference),
                (false, None) => Some(OnnxModel::load(subject.runtime, &subject.forms.cpu, &cpu(config))?),
            };
            Ok(Device { primary, fallback: fallback.map(|f| Box::new(f) as _) })
        })
        .collect()
}
