//! What runs where: the answer of `GET /gpu`.
use crate::ep::Provider;
use crate::unavailable::Refusal;
use serde::Serialize;

/// One operation's device.
#[derive(Clone, Debug, Serialize)]
pub struct OperationReport {
    /// `face_detection`, …
    pub operation: &'static str,
    /// Whether its flag asks for a GPU.
    pub gpu_requested: bool,
    /// The provider asked for: `cpu`, `cuda`, …
    pub requested: String,
    /// The provider in use, with its device: `cpu`, `cuda:0`, …
    pub effective: String,
    /// Why they differ, in plain words, with what to do.
    pub reason: Option<String>,
    /// The kind of the first reason, as [`crate::UnavailableKind::name`] has it.
    pub reason_kind: Option<&'static str>,
    /// What the runtime, the loader or the driver said, as it said it; a line for each provider that
    /// was tried.
    pub detail: Option<String>,
}

impl OperationReport {
    /// One more reason, behind those that there are.
    pub(crate) fn add_reason(&mut self, reason: String) {
        append(&mut self.reason, "; ", reason);
    }

    /// The same for a provider that the operation did not get.
    pub(crate) fn add_refusal(&mut self, refusal: &Refusal) {
        self.add_reason(refusal.to_string());
        self.reason_kind.get_or_insert(refusal.nearest.kind.name());
        append(&mut self.detail, "\n", refusal.detail.clone());
    }
}

fn append(text: &mut Option<String>, separator: &str, more: String) {
    *text = Some(match text.take() {
        Some(own) => format!("{own}{separator}{more}"),
        None => more,
    });
}

/// A GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuDevice {
    /// Index as the driver counts.
    pub id: u32,
    /// Product name.
    pub name: String,
    /// `cuda`, `rocm`, `mps`.
    pub backend: &'static str,
    /// Bytes of memory.
    pub memory_total: Option<u64>,
    /// Bytes in use.
    pub memory_used: Option<u64>,
    /// Driver version.
    pub driver: Option<String>,
    /// Share of the last moments in which it was at work, 0..1.
    pub utilization: Option<f64>,
    /// NVIDIA's compute capability: `8.6`.
    pub compute_capability: Option<String>,
}

/// A model on a device, and what loading it took.
#[derive(Clone, Debug, Serialize)]
pub struct LoadedModel {
    /// `face_detection`, …
    pub operation: &'static str,
    /// Its file.
    pub file: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// `cpu`, `cuda:0`, …
    pub device: String,
    /// What computes there: `cpu` (ONNX Runtime's own kernels), `openvino`, `cuda`, …
    pub provider: &'static str,
    /// What it computes in: `fp32`, `bf16`, or of TensorRT `fp16`, `int8`, `int8+fp16`.
    pub precision: &'static str,
    /// Sessions on that device.
    pub sessions: usize,
    /// Loading and warming up, every batch size and the comparison with the CPU included.
    pub seconds: f64,
    /// Bytes of the GPU's memory in use before; `None` on the CPU and where the driver does not tell.
    pub memory_before: Option<u64>,
    /// Bytes in use afterwards.
    pub memory_after: Option<u64>,
}

/// A size of batch that a device ran.
#[derive(Clone, Debug, Serialize)]
pub struct BatchRun {
    /// Items in the run.
    pub batch: usize,
    /// The first run of this size.
    pub first_seconds: f64,
    /// The median of later runs, where they were made.
    pub steady_seconds: Option<f64>,
    /// Largest distance of an output from the CPU's, as a share of its length.
    pub difference: f64,
}

/// An execution provider, and whether it could be used.
#[derive(Clone, Debug, Serialize)]
pub struct ProviderReport {
    /// `cpu`, `cuda`, …
    pub name: &'static str,
    /// Whether this program was built with it.
    pub in_build: bool,
    /// Whether the loaded library was built with it.
    pub in_library: bool,
}

/// Backends, devices and operations.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// ONNX Runtime's version.
    pub runtime_version: String,
    /// Providers that both this program and the loaded library were built with.
    pub backends: Vec<String>,
    /// Every provider that there is.
    pub providers: Vec<ProviderReport>,
    /// GPUs found.
    pub devices: Vec<GpuDevice>,
    /// The five operations.
    pub operations: Vec<OperationReport>,
    /// The models in memory.
    pub models: Vec<LoadedModel>,
}

impl DeviceReport {
    /// Whether nothing but the CPU could be used with this program and library.
    pub fn is_of_the_cpu_alone(&self) -> bool {
        let on_cpu = |name: &String| Provider::ALL.iter().any(|p| p.on_cpu() && p.name() == name);
        self.backends.iter().all(on_cpu)
    }
}
