//! The configuration of the engine. Environment variables are read elsewhere.
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The five operations of the engine. Each can run on a different device. The sixth operation,
/// [`VIDEO_DECODING`](crate::VIDEO_DECODING), runs in ffmpeg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    FaceDetection,
    FaceEmbedding,
    /// Letterbox and normalisation of images.
    ImageProcessing,
    /// Upscaling, contrast and sharpening of poor images.
    ImageEnhancement,
    /// Image statistics and the learned quality score.
    QualityChecks,
}

impl Operation {
    /// All operations, in the order of the documentation.
    pub const ALL: [Self; 5] = [
        Self::FaceDetection,
        Self::FaceEmbedding,
        Self::ImageProcessing,
        Self::ImageEnhancement,
        Self::QualityChecks,
    ];

    /// Returns the snake_case name.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuBackend {
    /// The first backend that works on this machine.
    #[default]
    Auto,
    Cuda,
    /// NVIDIA TensorRT for RTX if its plug-in is installed; otherwise TensorRT, with CUDA as its
    /// fallback.
    Tensorrt,
    /// AMD MIGraphX.
    Rocm,
    /// Apple CoreML.
    Mps,
    /// Intel OpenVINO.
    OpenVino,
    /// Vulkan, Metal or Direct3D 12.
    WebGpu,
    Cpu,
}

impl GpuBackend {
    /// The values of `GPU_BACKEND`.
    pub const NAMES: [(&str, Self); 8] = [
        ("auto", Self::Auto),
        ("cuda", Self::Cuda),
        ("tensorrt", Self::Tensorrt),
        ("rocm", Self::Rocm),
        ("mps", Self::Mps),
        ("openvino", Self::OpenVino),
        ("webgpu", Self::WebGpu),
        ("cpu", Self::Cpu),
    ];

    /// Returns the value of `GPU_BACKEND`.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, backend)| *backend == self).map_or("auto", |(name, _)| name)
    }
}

/// A GPU of `GPU_DEVICE_IDS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// The backend that uses this GPU; `None` stands for `GPU_BACKEND`.
    pub backend: Option<GpuBackend>,
    /// The number of the GPU in the order of the backend.
    pub id: u32,
}

impl DeviceId {
    /// Returns the backend that uses this GPU if `GPU_BACKEND` is `default`. `cpu` switches every
    /// GPU off.
    pub fn backend_or(&self, default: GpuBackend) -> GpuBackend {
        self.backend.filter(|_| default != GpuBackend::Cpu).unwrap_or(default)
    }
}

impl From<u32> for DeviceId {
    fn from(id: u32) -> Self {
        Self { backend: None, id }
    }
}

impl FromStr for DeviceId {
    type Err = ();

    /// Parses the form in `GPU_DEVICE_IDS`: a number up to 255, or a backend with a number.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (backend, id) = match text.split_once(':') {
            Some((name, id)) => match GpuBackend::NAMES.iter().find(|(known, _)| *known == name) {
                None | Some((_, GpuBackend::Auto | GpuBackend::Cpu)) => return Err(()),
                Some((_, backend)) => (Some(*backend), id),
            },
            None => (None, text),
        };
        let id = id.parse::<u8>().map_err(drop)?.into();
        Ok(Self { backend, id })
    }
}

impl fmt::Display for DeviceId {
    /// Writes the form in `GPU_DEVICE_IDS`: `0`, or `cuda:0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.backend {
            Some(backend) => write!(f, "{}:{}", backend.name(), self.id),
            None => self.id.fmt(f),
        }
    }
}

/// `PERFORMANCE_MODE`: selects the defaults of delay, batch size and session count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PerformanceMode {
    /// Optimise for the latency of one request.
    Latency,
    /// Optimise for images per second.
    #[default]
    Throughput,
}

/// `CPU_BACKEND`: what runs models on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuBackend {
    /// ONNX Runtime's own kernels. Embedders whose INT8 accuracy was measured (`int8` in
    /// `models.toml`) run in INT8 if the processor has instructions for 8-bit products. All other
    /// models run in FP32.
    #[default]
    Auto,
    /// The same kernels, always in FP32.
    OnnxRuntime,
    /// The same kernels, with the large matrix products of every embedder in INT8.
    OnnxRuntimeInt8,
    /// OpenVINO through ONNX Runtime; the library must be built with OpenVINO.
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

/// The precision of a model's computation. Its inputs and outputs are always FP32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    #[default]
    Fp32,
    /// 16 bits with the exponent range of FP32. Faster on processors with AVX-512 BF16 or AMX.
    Bf16,
    /// The large matrix products in 8 bits, the rest in FP32. Faster on processors with 8-bit dot
    /// products (VNNI, `dotprod`).
    Int8,
}

impl Precision {
    /// Returns `fp32`, `bf16` or `int8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// `DETECTION_CANVAS`: the shape of the canvas for a detector that accepts any size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DetectionCanvas {
    /// On the CPU, the canvas omits the black border next to the image, which costs time and
    /// contains no face. On devices it is square: only equal sizes share a batch.
    #[default]
    Auto,
    /// Always square, so that CPUs and devices receive the same input.
    Square,
}

/// Options for building and storing TensorRT engines.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorrtConfig {
    /// `TENSORRT_FP16`: allows half precision where it is faster.
    pub fp16: bool,
    /// `TENSORRT_CALIBRATION_TABLE`, with `TENSORRT_INT8`: a calibration table, or a folder with
    /// one `MODEL.table` per model. `None` disables 8-bit computation.
    pub calibration: Option<PathBuf>,
    /// `TENSORRT_WORKSPACE_GB`: maximum memory in GiB for building an engine.
    pub workspace_gb: f64,
    /// `TENSORRT_CACHE_DIR`: folder for the built engines.
    pub cache_dir: PathBuf,
}

impl Default for TensorrtConfig {
    fn default() -> Self {
        Self { fp16: true, calibration: None, workspace_gb: 2.0, cache_dir: "data/tensorrt".into() }
    }
}

#[derive(Clone, Debug)]
pub struct Config {
    /// `ORT_DYLIB_PATH`: ONNX Runtime's shared library. `None` lets the system's loader search for
    /// `libonnxruntime`.
    pub dylib_path: Option<PathBuf>,
    /// `GPU_PLUGINS_DIR`: folder with the libraries of plug-in providers, each in the folder of its
    /// Python package. `None` disables them.
    pub plugins_dir: Option<PathBuf>,
    pub gpu_operations: Vec<Operation>,
    /// `GPU_BACKEND`.
    pub backend: GpuBackend,
    /// `GPU_DEVICE_IDS` (or the single `GPU_DEVICE_ID`).
    pub device_ids: Vec<DeviceId>,
    /// `GPU_MEMORY_LIMIT_GB`.
    pub memory_limit_gb: f64,
    pub gpu_batch_size: usize,
    pub batch_max_delay: Duration,
    pub force_gpu_only: bool,
    pub performance_mode: PerformanceMode,
    /// `CPU_SESSIONS`: sessions per model on the CPU; 0 uses all cores.
    pub cpu_sessions: usize,
    /// `CPU_SESSION_THREADS`: number of threads per CPU session, at least 1.
    pub cpu_session_threads: usize,
    pub cpu_backend: CpuBackend,
    /// `DETECTION_SIZE`: side in pixels of the canvas for the warm-up of a detector that accepts
    /// any size. TensorRT builds its engine for this size.
    pub detection_size: u32,
    /// Side in pixels of a second canvas that is used for most images. Devices prepare for this
    /// size and for `detection_size` at start.
    pub second_canvas: Option<u32>,
    pub detection_canvas: DetectionCanvas,
    pub tensorrt: TensorrtConfig,
    /// Maximum number of requests in a model's queue. Background work may occupy at most three
    /// quarters of it. If the queue is full, requests wait.
    pub queue_capacity: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            dylib_path: None,
            plugins_dir: None,
            gpu_operations: Vec::new(),
            backend: GpuBackend::Auto,
            device_ids: vec![DeviceId::from(0)],
            memory_limit_gb: 8.0,
            gpu_batch_size: 32,
            batch_max_delay: Duration::from_millis(2),
            force_gpu_only: false,
            performance_mode: PerformanceMode::Throughput,
            cpu_sessions: 0,
            cpu_session_threads: 1,
            // Produces the same results on every processor; the server's default is `auto`.
            cpu_backend: CpuBackend::OnnxRuntime,
            detection_size: 640,
            second_canvas: None,
            detection_canvas: DetectionCanvas::Auto,
            tensorrt: TensorrtConfig::default(),
            queue_capacity: 256,
        }
    }
}
