//! Reports the device of each operation. The report is the response to `GET /gpu`.
use crate::backend::Placement;
use crate::devices::{self, GpuDevice};
use crate::ep::Provider;
use crate::runtime::Runtime;
use crate::unavailable::{Refusal, Unavailable, gpu_runtime_argument, providers_to_install};
use crate::{GpuBackend, Operation};
use serde::Serialize;
use std::time::Instant;

#[derive(Clone, Debug, Default, Serialize)]
pub struct OperationReport {
    /// `face_detection`, …
    pub operation: &'static str,
    /// Whether the operation's flag requests a GPU.
    pub gpu_requested: bool,
    /// The requested provider: `cpu`, `cuda`, …
    pub requested: String,
    /// The provider in use, with its device: `cpu`, `cuda:0`, …
    pub effective: String,
    /// Why `requested` and `effective` differ, and what to do about it.
    pub reason: Option<String>,
    /// The kind of the first reason, as returned by [`crate::UnavailableKind::name`].
    pub reason_kind: Option<&'static str>,
    /// The original messages of the runtime, the loader or the driver; one line for each provider
    /// that was tried.
    pub detail: Option<String>,
    /// The providers that were tried and failed, best first.
    pub passed_over: Vec<PassedOver>,
}

/// A provider that an operation could not use.
#[derive(Clone, Debug, Serialize)]
pub struct PassedOver {
    /// `cuda`, `webgpu`, …
    pub provider: &'static str,
    /// The problem, and what to do about it.
    pub reason: String,
    /// The kind of the reason, as returned by [`crate::UnavailableKind::name`].
    pub reason_kind: &'static str,
}

impl OperationReport {
    pub(crate) fn add_reason(&mut self, reason: String) {
        append(&mut self.reason, "; ", reason);
    }

    /// Adds the reason why the operation did not get a provider.
    pub(crate) fn add_refusal(&mut self, refusal: &Refusal) {
        self.add_reason(refusal.to_string());
        self.reason_kind.get_or_insert(refusal.main_reason.kind.name());
        append(&mut self.detail, "\n", refusal.detail());
        self.add_passed_over(&refusal.failures);
    }

    /// Adds the providers that failed before the one in use.
    pub(crate) fn add_passed_over(&mut self, failures: &[Unavailable]) {
        self.passed_over.extend(failures.iter().filter_map(|failure| {
            let (reason, reason_kind) = (failure.sentence(), failure.kind.name());
            Some(PassedOver { provider: failure.provider?.name(), reason, reason_kind })
        }));
    }
}

fn append(text: &mut Option<String>, separator: &str, addition: String) {
    *text = Some(match text.take() {
        Some(existing) => format!("{existing}{separator}{addition}"),
        None => addition,
    });
}

/// A model on a device, with the time and memory that loading it took.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadedModel {
    /// `face_detection`, …
    pub operation: &'static str,
    pub file: String,
    pub bytes: u64,
    /// `cpu`, `cuda:0`, …
    pub device: String,
    /// The provider: `cpu` (ONNX Runtime's own kernels), `openvino`, `cuda`, …
    pub provider: &'static str,
    /// The precision: `fp32`, `bf16`, `int8`; with TensorRT also `fp16` and `int8+fp16`.
    pub precision: &'static str,
    /// Number of sessions on that device.
    pub sessions: usize,
    pub max_batch: usize,
    /// Seconds to load and warm up, including every batch size and the comparison with the CPU.
    pub seconds: f64,
    /// Bytes of GPU memory in use before the load; `None` on the CPU or if not reported.
    pub memory_before: Option<u64>,
    /// Bytes of GPU memory in use after the load.
    pub memory_after: Option<u64>,
}

/// The measurements of a model that is being loaded, for the log and the report.
pub(crate) struct Loading {
    pub(crate) started_at: Instant,
    /// The GPU's state before the load; `None` on the CPU.
    pub(crate) gpu: Option<GpuDevice>,
}

impl Loading {
    /// Starts the measurement of a load on the device `device_id` of `provider`.
    pub(crate) fn start(provider: Provider, device_id: u32) -> Self {
        Self { started_at: Instant::now(), gpu: devices::find(provider, device_id) }
    }

    /// Ends the measurement. Adds the placement, the time and the memory to `load`, logs it, and
    /// returns it.
    pub(crate) fn finish(self, placement: &Placement, load: LoadedModel) -> LoadedModel {
        let after = devices::find(placement.provider, placement.device_id);
        let memory = |device: &Option<GpuDevice>| device.as_ref().and_then(|d| d.memory_used);
        let load = LoadedModel {
            device: placement.label(),
            provider: placement.provider.name(),
            precision: placement.precision(),
            seconds: self.started_at.elapsed().as_secs_f64(),
            memory_before: memory(&self.gpu),
            memory_after: memory(&after),
            ..load
        };
        let megabytes = |bytes: Option<u64>| bytes.map(|bytes| (bytes as f64 / 1e5).round() / 10.0);
        let message = match placement.provider {
            provider if provider.runs_on_cpu() => "model loaded and warmed up",
            _ => "model loaded with GPU acceleration and warmed up",
        };
        tracing::info!(
            operation = load.operation,
            file = load.file,
            megabytes = megabytes(Some(load.bytes)),
            seconds = (load.seconds * 1e3).round() / 1e3,
            device = load.device,
            device_name = after.as_ref().map(|device| device.name.as_str()),
            provider = load.provider,
            precision = load.precision,
            sessions = load.sessions,
            gpu_megabytes_before = megabytes(load.memory_before),
            gpu_megabytes_after = megabytes(load.memory_after),
            gpu_megabytes_total = megabytes(after.as_ref().and_then(|device| device.memory_total)),
            "{message}"
        );
        load
    }
}

/// Timings of one batch size on a device.
#[derive(Clone, Debug, Serialize)]
pub struct BatchRun {
    pub batch: usize,
    /// Seconds of the first run of this size.
    pub first_seconds: f64,
    /// Median seconds of later runs, if they were measured.
    pub steady_seconds: Option<f64>,
    /// Maximum distance between an output and the CPU's, as a share of the CPU output's length.
    pub difference: f64,
}

/// An execution provider, and whether it is available.
#[derive(Clone, Debug, Serialize)]
pub struct ProviderReport {
    /// `cpu`, `cuda`, …
    pub name: &'static str,
    /// Whether this program was built with the provider.
    pub in_build: bool,
    /// Whether the loaded library was built with the provider, or its plug-in is installed.
    pub in_library: bool,
}

impl ProviderReport {
    pub(crate) fn new(provider: Provider, runtime: &Runtime) -> Self {
        Self { name: provider.name(), in_build: provider.is_in_build(), in_library: runtime.has(provider) }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    pub runtime_version: String,
    /// Providers that this program can use with the loaded library and the installed plug-ins.
    pub backends: Vec<String>,
    pub providers: Vec<ProviderReport>,
    pub devices: Vec<GpuDevice>,
    /// The five operations of the engine; [`Self::add_operation`] adds another.
    pub operations: Vec<OperationReport>,
    pub models: Vec<LoadedModel>,
}

impl DeviceReport {
    /// Adds an operation that the engine does not run.
    pub fn add_operation(&mut self, operation: OperationReport) {
        self.operations.push(operation);
    }

    /// Returns whether this program and library support only the CPU.
    pub fn is_cpu_only(&self) -> bool {
        let on_cpu = |name: &String| Provider::all().any(|p| p.runs_on_cpu() && p.name() == name);
        self.backends.iter().all(on_cpu)
    }
}

/// Returns the arguments with which `scripts/gpu-runtime` would install something more for the GPUs
/// of this machine. `providers` describes what is installed. Empty on a machine without a GPU.
pub fn missing_gpu_runtimes(
    backend: GpuBackend,
    operations: &[Operation],
    providers: &[ProviderReport],
) -> Vec<&'static str> {
    if devices::gpu_kinds().is_empty() {
        return Vec::new();
    }
    let has = |provider: Provider| providers.iter().any(|p| p.name == provider.name() && p.in_library);
    let providers = providers_to_install(backend, operations, has(Provider::Cuda));
    providers.into_iter().filter(|provider| !has(*provider)).map(gpu_runtime_argument).collect()
}
