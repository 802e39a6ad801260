//! What the operator chose.
use std::path::PathBuf;
use std::time::Duration;

/// The five operations whose device is chosen on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Finding faces.
    FaceDetection,
    /// Describing faces.
    FaceEmbedding,
    /// Letterbox and normalisation.
    ImageProcessing,
    /// Upscaling, contrast and sharpening of poor input.
    ImageEnhancement,
    /// Image statistics.
    QualityChecks,
}

impl Operation {
    /// All five, in the order of the documentation.
    pub const ALL: [Self; 5] = [
        Self::FaceDetection,
        Self::FaceEmbedding,
        Self::ImageProcessing,
        Self::ImageEnhancement,
        Self::QualityChecks,
    ];

    /// Its snake_case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::FaceDetection => "face_detection",
            Self::FaceEmbedding => "face_embedding",
            Self::ImageProcessing => "image_processing",
            Self::ImageEnhancement => "image_enhancement",
            Self::QualityChecks => "quality_checks",
        }
    }
}

/// `GPU_BACKEND`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuBackend {
    /// The first that works on this machine.
    #[default]
    Auto,
    /// NVIDIA CUDA.
    Cuda,
    /// NVIDIA TensorRT, CUDA behind it.
    Tensorrt,
    /// AMD MIGraphX.
    Rocm,
    /// Apple CoreML.
    Mps,
    /// None.
    Cpu,
}

/// `PERFORMANCE_MODE`: which defaults delay, batch and session counts take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PerformanceMode {
    /// Answer one request soon.
    Latency,
    /// Finish the most images.
    #[default]
    Throughput,
}

/// `CPU_BACKEND`: what computes models on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuBackend {
    /// ONNX Runtime's own kernels: in INT8 for embedders whose INT8 form was measured (`int8` in `models.toml`), where
    /// the processor multiplies bytes fast; in FP32 otherwise.
    #[default]
    Auto,
    /// The same kernels, always in FP32.
    OnnxRuntime,
    /// The same kernels, with the large matrix products of any embedder in INT8.
    OnnxRuntimeInt8,
    /// OpenVINO behind ONNX Runtime's interface, where the library was built with it.
    OpenVino(Precision),
}

impl CpuBackend {
    /// The values of `CPU_BACKEND`.
    pub const NAMES: [(&str, Self); 5] = [
        ("auto", Self::Auto),
        ("onnxruntime", Self::OnnxRuntime),
        ("onnxruntime-int8", Self::OnnxRuntimeInt8),
        ("openvino", Self::OpenVino(Precision::Fp32)),
        ("openvino-bf16", Self::OpenVino(Precision::Bf16)),
    ];
}

/// What a model is computed in; its weights and its inputs and outputs are FP32 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits.
    #[default]
    Fp32,
    /// 16 bits with the exponent of 32, where the processor multiplies them faster (AVX-512 BF16, AMX).
    Bf16,
    /// The large matrix products in 8 bits, the rest in 32, where the processor multiplies bytes faster (VNNI, dot product).
    Int8,
}

impl Precision {
    /// `fp32`, `bf16` or `int8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// `DETECTION_CANVAS`: the shape of the canvas that a detector of any size sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DetectionCanvas {
    /// On the CPU without the black beside the picture, which is work for nothing; square on devices, where only equal canvases share a batch.
    #[default]
    Auto,
    /// Always square, so that CPUs and devices see the same.
    Square,
}

/// How TensorRT builds and keeps its engines.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorrtConfig {
    /// `TENSORRT_FP16`: half precision where it is faster.
    pub fp16: bool,
    /// `TENSORRT_CALIBRATION_TABLE`, with `TENSORRT_INT8`: a table, or a folder with `MODEL.table` for each model. `None`: no 8-bit computation.
    pub calibration: Option<PathBuf>,
    /// `TENSORRT_WORKSPACE_GB`: GiB that building may use.
    pub workspace_gb: f64,
    /// `TENSORRT_CACHE_DIR`: folder of the engines.
    pub cache_dir: PathBuf,
}

impl Default for TensorrtConfig {
    fn default() -> Self {
        Self { fp16: true, calibration: None, workspace_gb: 2.0, cache_dir: "data/tensorrt".into() }
    }
}

/// Whether the CPU's provider stands in for the device of every operation that asked for a GPU: the same sessions, bindings, threads and
/// comparisons without a GPU. For tests; nothing outside this program sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StandIn {
    /// Real devices.
    #[default]
    None,
    /// The CPU's provider.
    Cpu,
    /// The CPU's provider, and after the start every run of an operation on pictures fails.
    Failing,
}

/// Everything the engine is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// `ORT_DYLIB_PATH`: ONNX Runtime's shared library; `None` lets the system's loader find `libonnxruntime`.
    pub dylib_path: Option<PathBuf>,
    /// Which operations asked for a GPU.
    pub gpu_operations: Vec<Operation>,
    /// `GPU_BACKEND`.
    pub backend: GpuBackend,
    /// `GPU_DEVICE_IDS` (or the one `GPU_DEVICE_ID`).
    pub device_ids: Vec<u32>,
    /// `GPU_MEMORY_LIMIT_GB`.
    pub memory_limit_gb: f64,
    /// `GPU_BATCH_SIZE`.
    pub gpu_batch_size: usize,
    /// `BATCH_MAX_DELAY_MS`.
    pub batch_max_delay: Duration,
    /// What stands in for devices.
    pub stand_in: StandIn,
    /// `FORCE_GPU_ONLY`.
    pub force_gpu_only: bool,
    /// `PERFORMANCE_MODE`.
    pub performance_mode: PerformanceMode,
    /// `CPU_SESSIONS`: sessions per model on the CPU; 0 means as many as fill the cores.
    pub cpu_sessions: usize,
    /// `CPU_SESSION_THREADS`: threads that one CPU session computes with, at least 1.
    pub cpu_session_threads: usize,
    /// `CPU_BACKEND`.
    pub cpu_backend: CpuBackend,
    /// `DETECTION_SIZE`: side in pixels of the canvas that a detector of any size is warmed up and, for TensorRT, built for.
    pub detection_size: u32,
    /// `DETECTION_CANVAS`.
    pub detection_canvas: DetectionCanvas,
    /// `TENSORRT_…`.
    pub tensorrt: TensorrtConfig,
    /// Requests in a model's queue; background work may fill three quarters of it. Others wait for room, and new pictures of callers are refused meanwhile.
    pub queue_capacity: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            dylib_path: None,
            gpu_operations: Vec::new(),
            backend: GpuBackend::Auto,
            device_ids: vec![0],
            memory_limit_gb: 8.0,
            gpu_batch_size: 32,
            batch_max_delay: Duration::from_millis(2),
            stand_in: StandIn::None,
            force_gpu_only: false,
            performance_mode: PerformanceMode::Throughput,
            cpu_sessions: 0,
            cpu_session_threads: 1,
            // The same numbers on every processor; the program itself asks for `auto`.
            cpu_backend: CpuBackend::OnnxRuntime,
            detection_size: 640,
            detection_canvas: DetectionCanvas::Auto,
            tensorrt: TensorrtConfig::default(),
            queue_capacity: 256,
        }
    }
}
