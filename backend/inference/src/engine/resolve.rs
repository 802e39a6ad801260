//! Selects the device of each operation at start: the providers to try, the selection of
//! `CPU_BACKEND`, the reasons against a device, and the fallbacks to the CPU. The modules `prove`
//! and `images` load the operations and compare their results.
use crate::backend::Placement;
use crate::ep::Provider;
use crate::manifest::ModelFile;
use crate::report::{BatchRun, LoadedModel};
use crate::runtime::Runtime;
use crate::unavailable::{DIFFERS, Refusal, Unavailable, UnavailableKind, diagnose};
use crate::{Config, CpuBackend, GpuBackend, Operation, OperationReport, Precision, StartError};
use std::cell::RefCell;

pub const VIDEO_DECODING: &str = "video_decoding";

/// A model or an image operation on a device, whose results agree with the CPU's.
pub(super) struct Trial<S> {
    /// The session of the model, or the sessions of the operation's graphs.
    pub(super) session: S,
    /// Seconds to create the session, without any run.
    pub(super) session_seconds: f64,
    pub(super) load: LoadedModel,
    pub(super) placement: Placement,
    pub(super) runs: Vec<BatchRun>,
}

/// The results of an operation on its devices.
struct Placed<T> {
    /// One result for each configured device.
    devices: Vec<T>,
    /// The providers that failed before those in use, best first.
    passed_over: Vec<Unavailable>,
}

/// Returns the configured devices, grouped by the backend that uses them.
fn device_groups(config: &Config) -> Vec<(GpuBackend, Vec<u32>)> {
    let mut groups: Vec<(GpuBackend, Vec<u32>)> = Vec::new();
    for device in &config.device_ids {
        let backend = device.backend_or(config.backend);
        match groups.iter_mut().find(|(other, _)| *other == backend) {
            Some((_, ids)) => ids.push(device.id),
            None => groups.push((backend, vec![device.id])),
        }
    }
    groups
}

/// Runs `try_device` on all devices of `groups`. For the devices of one backend, the first of its
/// `candidates` that works on all of them is used. Fails with the reasons if there is none.
fn first_that_works<T>(
    groups: Vec<(GpuBackend, Vec<u32>)>,
    candidates: impl Fn(GpuBackend) -> &'static [Provider],
    mut try_device: impl FnMut(Provider, u32) -> Result<T, Unavailable>,
) -> Result<Placed<T>, Refusal> {
    let mut placed = Placed { devices: Vec::new(), passed_over: Vec::new() };
    for (backend, ids) in groups {
        let mut failures = Vec::new();
        let mut try_all = |provider: Provider| -> Option<Vec<T>> {
            let results = ids.iter().map(|id| try_device(provider, *id)).collect::<Result<_, _>>();
            results.map_err(|reason| failures.push(reason)).ok()
        };
        match candidates(backend).iter().find_map(|provider| try_all(*provider)) {
            Some(results) => placed.devices.extend(results),
            None if failures.is_empty() => return Err(Unavailable::switched_off().into()),
            None => return Err(Refusal::from_attempts(failures)),
        }
        placed.passed_over.extend(failures);
    }
    if placed.devices.is_empty() {
        let (kind, detail) = (UnavailableKind::Failed, "no device id is given".to_owned());
        return Err(Unavailable { provider: None, kind, detail }.into());
    }
    Ok(placed)
}

/// The failed attempts of one start. After a failure that affects all operations, the device is not
/// tried again for each of them.
pub(super) struct Attempts<'a> {
    pub(super) config: &'a Config,
    pub(super) runtime: &'a Runtime,
    /// Failures that affect all operations, by provider and device.
    shared_failures: RefCell<Vec<(Provider, u32, Unavailable)>>,
    pub(super) fallbacks: Fallbacks,
    /// The failures that [`Self::warn_once`] logged.
    warned: RefCell<Vec<Unavailable>>,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(config: &'a Config, runtime: &'a Runtime) -> Self {
        let fallbacks = Fallbacks::new(config.force_gpu_only);
        Self { config, runtime, shared_failures: RefCell::default(), fallbacks, warned: RefCell::default() }
    }

    /// Runs `try_device` on all configured devices ([`first_that_works`]) if the operation of
    /// `report` requests a GPU. Returns one trial for each device, or none if the operation runs on
    /// the CPU.
    pub(super) fn place<S>(
        &self,
        report: &mut OperationReport,
        mut try_device: impl FnMut(Provider, u32) -> Result<Trial<S>, Unavailable>,
    ) -> Result<Vec<Trial<S>>, StartError> {
        if !report.gpu_requested {
            return Ok(Vec::new());
        }
        let attempt = |provider, id| self.attempt(provider, id, || try_device(provider, id));
        let placed = first_that_works(device_groups(self.config), Provider::candidates, attempt);
        for failure in placed.iter().flat_map(|placed| &placed.passed_over) {
            self.warn_once(failure);
        }
        self.fallbacks.settle(report, placed, |trial| trial.placement.label())
    }

    /// Logs that an installed provider with a GPU was passed over, once for all operations.
    fn warn_once(&self, failure: &Unavailable) {
        let is_expected = matches!(
            failure.kind,
            UnavailableKind::NotInBuild
                | UnavailableKind::NotInLibrary { .. }
                | UnavailableKind::PluginMissing
                | UnavailableKind::DriverMissing
                | UnavailableKind::NoDevice { .. }
                | UnavailableKind::Unsuited
        );
        let mut warned = self.warned.borrow_mut();
        if !is_expected && !warned.contains(failure) {
            tracing::warn!(reason = %failure, "provider passed over");
            warned.push(failure.clone());
        }
    }

    /// Runs `try_device` on one device, unless an earlier attempt failed for a reason that affects
    /// all operations.
    pub(super) fn attempt<T>(
        &self,
        provider: Provider,
        id: u32,
        try_device: impl FnOnce() -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        let earlier_failure =
            self.shared_failures.borrow().iter().find(|(p, d, _)| (*p, *d) == (provider, id)).cloned();
        if let Some((_, _, reason)) = earlier_failure {
            return Err(reason);
        }
        let checked_attempt = || {
            self.runtime.check(provider, id)?;
            self.runtime.preload_libraries(provider);
            try_device()
        };
        self.runtime.suppress_library_errors(checked_attempt).inspect_err(|reason| {
            let (provider_name, detail) = (provider.name(), &reason.detail);
            tracing::debug!(provider = provider_name, device = id, detail, "provider not usable");
            if reason.kind.affects_all_operations() {
                self.shared_failures.borrow_mut().push((provider, id, reason.clone()));
            }
        })
    }
}

const CPU_FALLBACK_MESSAGE: &str = "no GPU for these operations; they run on the CPU";

/// The operations of one start that run on the CPU instead of the requested provider.
pub(super) struct Fallbacks {
    force_gpu_only: bool,
    recorded: RefCell<Vec<Fallback>>,
}

struct Fallback {
    operations: Vec<&'static str>,
    /// The requested provider.
    provider: String,
    refusal: Refusal,
    message: &'static str,
}

impl Fallbacks {
    fn new(force_gpu_only: bool) -> Self {
        Self { force_gpu_only, recorded: RefCell::default() }
    }

    /// Adds the outcome of an operation that requests a GPU to its report. Returns its devices.
    /// Without a usable GPU, the call fails if `FORCE_GPU_ONLY` is set. Otherwise it records the
    /// fallback ([`Self::record`]) and returns no devices.
    fn settle<T>(
        &self,
        report: &mut OperationReport,
        placed: Result<Placed<T>, Refusal>,
        label: impl Fn(&T) -> String,
    ) -> Result<Vec<T>, StartError> {
        let (operation, provider) = (report.operation, report.requested.clone());
        match placed {
            Ok(Placed { devices, passed_over }) => {
                report.add_passed_over(&passed_over);
                report.effective = devices.iter().map(label).collect::<Vec<_>>().join(",");
                Ok(devices)
            }
            Err(refusal) if self.force_gpu_only => {
                Err(StartError::GpuOnly { operation, provider, refusal: Box::new(refusal) })
            }
            Err(refusal) => {
                self.record(report, &provider, &refusal, CPU_FALLBACK_MESSAGE);
                Ok(Vec::new())
            }
        }
    }

    /// Counts a fallback and adds its reason to the report; [`Self::log`] logs it later.
    pub(super) fn record(
        &self,
        report: &mut OperationReport,
        provider: &str,
        refusal: &Refusal,
        message: &'static str,
    ) {
        report.add_refusal(refusal);
        let operation = report.operation;
        metrics::counter!("facecrawl_ep_fallback_total", "operation" => operation, "provider" => provider.to_owned())
            .increment(1);
        let mut fallbacks = self.recorded.borrow_mut();
        let is_same = |fallback: &&mut Fallback| {
            (fallback.provider.as_str(), fallback.message) == (provider, message)
                && fallback.refusal.main_reason == refusal.main_reason
        };
        match fallbacks.iter_mut().find(is_same) {
            Some(fallback) if fallback.operations.contains(&operation) => {}
            Some(fallback) => fallback.operations.push(operation),
            None => fallbacks.push(Fallback {
                operations: vec![operation],
                provider: provider.to_owned(),
                refusal: refusal.clone(),
                message,
            }),
        }
    }

    /// Logs each reason once, with the operations that it affects.
    pub(super) fn log(&self) {
        for Fallback { operations, provider, refusal, message } in self.recorded.borrow().iter() {
            let mut operations = operations.clone();
            operations.sort_by_key(|name| Operation::ALL.iter().position(|o| o.name() == *name));
            let operations = operations.join(", ");
            tracing::warn!(operations, provider, reason = %refusal, "{message}");
            let detail = refusal.detail();
            tracing::debug!(operations, provider, detail, "original messages of the providers");
        }
    }
}

/// Returns the report of an operation before its device is selected.
pub(super) fn initial_report(config: &Config, operation: Operation) -> OperationReport {
    named_initial_report(config, operation.name(), config.gpu_operations.contains(&operation))
}

/// Works like [`initial_report`], also for operations that the engine does not run.
fn named_initial_report(config: &Config, operation: &'static str, gpu_requested: bool) -> OperationReport {
    let backends = device_groups(config).into_iter().map(|(backend, _)| backend.name());
    let requested = if gpu_requested { backends.collect::<Vec<_>>().join(",") } else { "cpu".to_owned() };
    let effective = Provider::Cpu.name().to_owned();
    OperationReport { operation, gpu_requested, requested, effective, ..OperationReport::default() }
}

/// Returns the provider that runs image operations when `provider` is requested.
///
/// Images can have any size. TensorRT would build an engine for each size, so CUDA is used on the
/// same device and in the same memory. MIGraphX, CoreML, TensorRT for RTX and OpenVINO also compile
/// a graph for each size, and have no such alternative. WebGPU compiles none. Fails with the reason
/// if no provider can run image operations.
pub(super) fn image_provider(provider: Provider) -> Result<Provider, Unavailable> {
    let reason = match provider {
        provider if provider.runs_image_operations() => return Ok(provider),
        Provider::Tensorrt => return Ok(Provider::Cuda),
        Provider::OpenVino => "OpenVINO runs only models; image operations run on the CPU without it",
        _ => "it compiles a new graph for every image size, so image operations run on the CPU",
    };
    Err(Unavailable::new(provider, UnavailableKind::Unsuited, reason))
}

/// Returns the size in bytes of the device memory for a session of `operation`. All operations that
/// request a GPU share the memory limit. The shares of the models are larger than those of image
/// operations, because a model runs batches and an image operation runs one image at a time. The
/// canvases of the detector are larger than the chips of the embedder.
pub(super) fn memory_share(config: &Config, operation: Operation) -> usize {
    let weight = |operation: Operation| match operation {
        Operation::FaceDetection => 6,
        Operation::FaceEmbedding => 4,
        Operation::ImageProcessing | Operation::ImageEnhancement | Operation::QualityChecks => 1,
    };
    let share = weight(operation);
    let total: usize = config.gpu_operations.iter().copied().map(weight).sum();
    let limit = (config.memory_limit_gb * f64::from(1 << 30)) as usize;
    limit / total.max(share) * share
}

/// Returns the placement of a CPU session with the configured threads.
pub(super) fn cpu_placement(config: &Config) -> Placement {
    Placement::cpu(config.cpu_session_threads)
}

/// Returns where a session of `operation` runs on a device of `provider`, or on the CPU with the
/// precision of `CPU_BACKEND`.
pub(super) fn placement(
    config: &Config,
    operation: Operation,
    provider: Provider,
    device_id: u32,
) -> Placement {
    let memory_limit = memory_share(config, operation);
    if provider.runs_on_cpu() {
        let precision = match (provider, config.cpu_backend) {
            (Provider::OpenVino, CpuBackend::OpenVino(precision)) => precision,
            (Provider::Cpu, CpuBackend::Auto | CpuBackend::OnnxRuntimeInt8) => Precision::Int8,
            _ => Precision::Fp32,
        };
        return Placement { provider, precision, memory_limit, ..cpu_placement(config) };
    }
    let cache_dir = provider.plugin().map(|plugin| config.tensorrt.cache_dir.join(plugin.argument));
    Placement { provider, device_id, memory_limit, cache_dir, ..Placement::CPU }
}

/// Returns the CPU placement that `CPU_BACKEND` selects for the model of `file`, or `None` for ONNX
/// Runtime in FP32. Only embedders use INT8, because a detector's scores would change so much that
/// some of them cross the threshold.
pub(super) fn selected_placement(
    config: &Config,
    operation: Operation,
    file: &ModelFile,
) -> Option<Placement> {
    let is_embedding = operation == Operation::FaceEmbedding;
    let provider = match config.cpu_backend {
        CpuBackend::Auto if is_embedding && file.int8 && has_instructions(Precision::Int8) => Provider::Cpu,
        CpuBackend::OnnxRuntimeInt8 if is_embedding => Provider::Cpu,
        CpuBackend::OpenVino(_) => Provider::OpenVino,
        CpuBackend::Auto | CpuBackend::OnnxRuntime | CpuBackend::OnnxRuntimeInt8 => return None,
    };
    Some(placement(config, operation, provider, 0))
}

/// Checks that the library and the processor support `placement`, a [`selected_placement`].
pub(super) fn check_cpu_backend(runtime: &Runtime, placement: &Placement) -> Result<(), Unavailable> {
    let Placement { provider, precision, .. } = *placement;
    runtime.check(provider, 0)?;
    if has_instructions(precision) {
        return Ok(());
    }
    let name = if precision == Precision::Int8 { "int8 dot product" } else { precision.name() };
    let reason = format!("this processor does not support {name} instructions");
    Err(Unavailable::new(provider, UnavailableKind::Unsuited, reason))
}

/// Returns whether the processor has instructions for `precision`: for BF16, without which OpenVINO
/// silently uses FP32, and for sums of 8-bit products. Without the latter, INT8 is slower in ONNX
/// Runtime, and on x86 the sums overflow.
fn has_instructions(precision: Precision) -> bool {
    match precision {
        Precision::Fp32 => true,
        #[cfg(target_arch = "x86_64")]
        Precision::Bf16 => std::arch::is_x86_feature_detected!("avx512bf16"),
        #[cfg(target_arch = "x86_64")]
        Precision::Int8 => {
            std::arch::is_x86_feature_detected!("avx512vnni")
                || std::arch::is_x86_feature_detected!("avxvnni")
        }
        #[cfg(target_arch = "aarch64")]
        Precision::Int8 => std::arch::is_aarch64_feature_detected!("dotprod"),
        #[allow(unreachable_patterns)]
        _ => false,
    }
}

/// Why a GPU does not decode videos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceFailure {
    /// The frames of the GPU differ from those of the CPU. The text describes the difference.
    Differs(String),
    /// The GPU cannot decode the video. The text is the message of ffmpeg.
    Failed(String),
}

#[derive(Clone, Debug)]
pub struct VideoPlacement {
    /// The report for `GET /gpu`.
    pub report: OperationReport,
    /// The GPUs, as numbered by CUDA; empty if the CPU decodes.
    pub devices: Vec<u32>,
}

/// Selects the GPUs for videos, if `requested`. ffmpeg runs this operation, but the rules are the
/// same as for the engine's operations. `try_device` checks that a GPU decodes like the CPU. All
/// configured GPUs must pass this check.
///
/// # Errors
/// Fails with [`StartError::GpuOnly`] if there is no GPU and `FORCE_GPU_ONLY` is set.
pub fn place_video_decoding(
    config: &Config,
    requested: bool,
    mut try_device: impl FnMut(u32) -> Result<(), DeviceFailure>,
) -> Result<VideoPlacement, StartError> {
    let mut report = named_initial_report(config, VIDEO_DECODING, requested);
    if !requested {
        return Ok(VideoPlacement { report, devices: Vec::new() });
    }
    let mut groups = device_groups(config);
    if groups.iter().any(|(backend, _)| video_candidates(*backend) == [Provider::Cuda]) {
        // GPUs of other vendors do not decode videos.
        groups.retain(|(backend, _)| video_candidates(*backend) == [Provider::Cuda]);
    }
    let placed = first_that_works(groups, video_candidates, |provider, id| {
        if provider != Provider::Cuda {
            let reason = "videos are decoded on GPUs of NVIDIA only; the CPU decodes them here";
            return Err(Unavailable::new(provider, UnavailableKind::Unsuited, reason));
        }
        try_device(id).map(|()| id).map_err(|failure| match failure {
            DeviceFailure::Failed(text) => diagnose(provider, id, &text),
            DeviceFailure::Differs(text) => {
                Unavailable::new(provider, UnavailableKind::Disagrees, format!("{DIFFERS}{text}"))
            }
        })
    });
    let placed = placed.map(|mut placed| {
        placed.devices.dedup();
        placed
    });
    let fallbacks = Fallbacks::new(config.force_gpu_only);
    let devices = fallbacks.settle(&mut report, placed, |id| format!("cuda:{id}"))?;
    fallbacks.log();
    Ok(VideoPlacement { report, devices })
}

/// Returns the report for a machine without a usable ffmpeg. `reason` explains the cause. No device
/// decodes videos then, so this is not a fallback, and `FORCE_GPU_ONLY` does not make it an error.
pub fn missing_ffmpeg_report(config: &Config, requested: bool, reason: String) -> OperationReport {
    let mut report = named_initial_report(config, VIDEO_DECODING, requested);
    report.effective = "none".to_owned();
    let unavailable = Unavailable { provider: None, kind: UnavailableKind::ProgramMissing, detail: reason };
    report.add_refusal(&unavailable.into());
    report
}

/// Returns the providers that `backend` allows for videos. ffmpeg needs only the driver of NVIDIA,
/// so one provider stands for all providers of its GPUs.
fn video_candidates(backend: GpuBackend) -> &'static [Provider] {
    match backend {
        GpuBackend::Auto | GpuBackend::Cuda | GpuBackend::Tensorrt => &[Provider::Cuda],
        other => Provider::candidates(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_receive_largest_memory_share() {
        let config = |operations: &[Operation]| Config {
            gpu_operations: operations.to_vec(),
            memory_limit_gb: 13.0,
            ..Config::default()
        };
        let gib = |bytes: usize| bytes >> 30;
        let every_operation = config(&Operation::ALL);
        assert_eq!(gib(memory_share(&every_operation, Operation::FaceDetection)), 6);
        assert_eq!(gib(memory_share(&every_operation, Operation::FaceEmbedding)), 4);
        assert_eq!(gib(memory_share(&every_operation, Operation::QualityChecks)), 1);
        let one_operation = config(&[Operation::FaceEmbedding]);
        assert_eq!(gib(memory_share(&one_operation, Operation::FaceEmbedding)), 13);
    }
}
