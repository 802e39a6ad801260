//! Reports the devices and the device of each operation.
use crate::{AppState, Scope, Spec};
use axum::Json;
use inference::{GpuDevice, LoadedModel, OperationReport, ProviderReport};
use serde::Serialize;
use utoipa::ToSchema;

/// One operation's device.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes inference::OperationReport in the OpenAPI document")]
struct OperationView {
    /// `face_detection`, `face_embedding`, `image_processing`, `image_enhancement`,
    /// `quality_checks` or `video_decoding`.
    #[schema(example = "face_detection")]
    operation: String,
    /// Whether its flag requests a GPU.
    #[schema(example = true)]
    gpu_requested: bool,
    /// The requested provider.
    #[schema(example = "cuda")]
    requested: String,
    /// The provider in use. `none` if ffmpeg is missing, so that nothing runs the operation.
    #[schema(example = "cpu")]
    effective: String,
    /// Explanation of the difference and its remedy, or the reason why the operation has no model.
    #[schema(
        example = "cuda: the library libcublasLt.so.13 is missing; `./scripts/gpu-runtime cuda` installs it (package nvidia-cublas)"
    )]
    reason: Option<String>,
    /// The kind of the reason: `not_in_build`, `not_in_library`, `plugin_missing`,
    /// `library_missing`, `driver_missing`, `driver_too_old`, `driver_mismatch`, `no_device`,
    /// `device_id`, `device_unsupported`, `out_of_memory`, `runtime_out_of_date`, `disagrees`,
    /// `unsuited`, `switched_off`, `program_missing` or `failed`.
    #[schema(example = "library_missing")]
    reason_kind: Option<String>,
    /// The message of ONNX Runtime, ffmpeg, the loader or the driver, unchanged, with a line for
    /// each provider that was tried.
    #[schema(
        example = "cuda: Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot open shared object file"
    )]
    detail: Option<String>,
    /// The providers that were tried and failed, best first.
    #[schema(example = json!([]))]
    passed_over: Vec<PassedOverView>,
}

/// A provider that an operation could not use.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes inference::PassedOver in the OpenAPI document")]
struct PassedOverView {
    /// Its name.
    #[schema(example = "tensorrt-rtx")]
    provider: String,
    /// The problem and its remedy.
    #[schema(example = "its plug-in is not installed; `./scripts/gpu-runtime tensorrt-rtx` installs it")]
    reason: String,
    /// The kind of the reason.
    #[schema(example = "plugin_missing")]
    reason_kind: String,
}

/// An execution provider.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes inference::ProviderReport in the OpenAPI document")]
struct ProviderView {
    /// Its name.
    #[schema(example = "cuda")]
    name: String,
    /// Whether this program was built with it.
    #[schema(example = true)]
    in_build: bool,
    /// Whether the loaded library was built with it, or its plug-in is installed.
    #[schema(example = false)]
    in_library: bool,
}

/// A GPU.
#[derive(ToSchema)]
#[schema(example = json!({
    "id": 0, "name": "NVIDIA GeForce RTX 3060", "backend": "cuda", "memory_total": 12884901888_u64, "memory_used": 1503238553_u64,
    "driver": "560.35.03", "utilization": 0.42, "compute_capability": "8.6"
}))]
#[allow(dead_code, reason = "only describes inference::GpuDevice in the OpenAPI document")]
struct DeviceView {
    /// Index of the GPU as reported by the driver.
    id: u32,
    /// Product name.
    name: String,
    /// The provider that numbers it: `cuda`, `rocm`, `webgpu`, …
    backend: String,
    /// Total memory in bytes.
    memory_total: Option<u64>,
    /// Used memory in bytes.
    memory_used: Option<u64>,
    /// Driver version.
    driver: Option<String>,
    /// Share of the most recent sampling period in which it was busy, 0 to 1.
    utilization: Option<f64>,
    /// NVIDIA's compute capability.
    #[schema(example = "8.6")]
    compute_capability: Option<String>,
}

/// A model on a device.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes inference::LoadedModel in the OpenAPI document")]
struct LoadedView {
    /// The operation that uses it.
    #[schema(example = "face_detection")]
    operation: String,
    /// Its file.
    #[schema(example = "face_detection_yunet_2023mar_int8bq.onnx")]
    file: String,
    /// Length of the file in bytes.
    #[schema(example = 233000)]
    bytes: u64,
    /// The device.
    #[schema(example = "cuda:0")]
    device: String,
    /// Execution provider of the model: `cpu` (ONNX Runtime's own kernels), `openvino`, `cuda`, …
    #[schema(example = "cuda")]
    provider: String,
    /// Numeric precision: `fp32`, `bf16`, or with TensorRT `fp16`, `int8`, `int8+fp16`.
    #[schema(example = "fp32")]
    precision: String,
    /// Number of sessions.
    #[schema(example = 2)]
    sessions: usize,
    /// Maximum number of items in one run.
    #[schema(example = 1)]
    max_batch: usize,
    /// Duration of loading and warm-up in seconds.
    #[schema(example = 0.12)]
    seconds: f64,
    /// Used GPU memory before loading, in bytes.
    #[schema(example = json!(null))]
    memory_before: Option<u64>,
    /// Used GPU memory after loading, in bytes.
    #[schema(example = json!(null))]
    memory_after: Option<u64>,
}

/// The default threshold for matches. It applies if neither the request nor the collection sets
/// one.
#[derive(Serialize, ToSchema)]
struct MatchingView {
    /// The embedder.
    #[schema(example = "sface")]
    model: String,
    /// Minimum similarity, -1 to 1.
    #[schema(example = 0.5)]
    threshold: f32,
    /// Share of pairs of different people that reach the threshold. Null if the threshold is not
    /// the model's own, or if the share was not measured.
    #[schema(example = 0.0023)]
    fmr: Option<f64>,
}

/// The devices and where each operation runs.
#[derive(Serialize, ToSchema)]
pub(super) struct GpuAnswer {
    /// ONNX Runtime's version.
    #[schema(example = "1.31.1")]
    runtime_version: String,
    /// Providers that this program can use with the loaded library and the installed plug-ins.
    #[schema(example = json!(["cpu"]))]
    backends: Vec<String>,
    /// All known providers.
    #[schema(value_type = Vec<ProviderView>)]
    providers: Vec<ProviderReport>,
    /// The GPUs that were found.
    #[schema(value_type = Vec<DeviceView>)]
    devices: Vec<GpuDevice>,
    /// The six operations.
    #[schema(value_type = Vec<OperationView>)]
    operations: Vec<OperationReport>,
    /// The loaded models, with the time and memory that loading took.
    #[schema(value_type = Vec<LoadedView>)]
    models: Vec<LoadedModel>,
    /// The threshold for matches.
    matching: MatchingView,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::System);

/// Report the backends, the devices, and the device of each operation.
#[utoipa::path(
    get, path = "/gpu", operation_id = "get_gpu", tag = "system",
    responses((status = 200, description = "The report", body = GpuAnswer)),
)]
pub(super) async fn get_gpu(state: AppState) -> Json<GpuAnswer> {
    let mut report = state.services.analyzer.engine().report();
    if let Some(operation) = &state.services.video_decoding {
        report.add_operation(operation.clone());
    }
    let threshold = state.match_threshold(None, None).value;
    let matching = MatchingView {
        model: state.services.analyzer.engine().embedder().name.clone(),
        threshold,
        fmr: state.match_fmr(threshold),
    };
    Json(GpuAnswer {
        matching,
        runtime_version: report.runtime_version,
        backends: report.backends,
        providers: report.providers,
        devices: report.devices,
        operations: report.operations,
        models: report.models,
    })
}
