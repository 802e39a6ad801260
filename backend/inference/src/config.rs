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
    /// `FORCE_GPU_ONLY`.
    pub force_gpu_only: bool,
    /// `PERFORMANCE_MODE`.
    pub performance_mode: PerformanceMode,
    /// CPU sessions per model; 0 means one per core.
    pub cpu_sessions: usize,
    /// Requests that may wait per model before `RunError::Overloaded`; background work may fill three quarters of it.
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
            force_gpu_only: false,
            performance_mode: PerformanceMode::Throughput,
            cpu_sessions: 0,
            queue_capacity: 256,
        }
    }
}
