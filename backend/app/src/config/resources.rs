//! Derives the resources that a process uses: the ONNX Runtime library, threads, batches and
//! memory. The configuration of each crate is in `convert`.
use super::{ResolvedVariable, Settings};
use inference::{DeviceId, GpuBackend, PerformanceMode, gpu_runtime_arguments};
use std::path::{Path, PathBuf};

/// Maximum number of threads per CPU session that the mode selects. More threads do not make models
/// of this size much faster.
const MAX_THREADS: usize = 4;

const MIB: u64 = 1 << 20;
/// Memory of the program with the models of `opencv` or `compact`.
const PROGRAM_BYTES: u64 = 400_000_000;
/// Maximum size of bodies and responses that are not counted.
const MAX_UNCOUNTED_BYTES: u64 = 64 << 10;
/// Memory of each page worker: a page of 5 MiB, its text, and 2 MiB of addresses of links, of
/// images and of videos.
const PAGE_WORKER_BYTES: u64 = 24 * MIB;
/// Memory of the sitemap that is read: 50 MiB, and 16 MiB of addresses.
const SITEMAP_BYTES: u64 = 66 * MIB;
/// Memory of the rules of robots.txt files.
const ROBOTS_BYTES: u64 = 64 * MIB;
/// Memory of the file addresses in the playlists of eight videos that are fetched and 32 that wait
/// for their host, and of the values of one playlist that is parsed.
const PLAYLIST_BYTES: u64 = 40 * 2 * MIB + 128 * MIB;
/// Frames of a camera that wait for the decoder and for the analysis.
const CAMERA_BYTES: u64 = 64 * MIB;
/// Memory of the embeddings of watched people.
const WATCHED_BYTES: u64 = 256 * MIB;
/// Memory of the face images of the video that is read.
const FACE_IMAGE_BYTES: u64 = 256 * MIB;
/// Memory for work on parts of an image, for each core.
const IMAGE_PART_BYTES: u64 = 64 * MIB;

/// The values that depend on `PERFORMANCE_MODE`, where their own variables are unset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Performance {
    /// Time in milliseconds that a GPU batch waits for more items.
    pub(super) delay_ms: f64,
    /// Maximum number of items in one run on a GPU.
    pub(super) max_batch_size: usize,
    /// Number of sessions per model on the CPU.
    pub(super) sessions: usize,
    pub(super) threads: usize,
}

/// A kind of memory and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The content of the memory.
    pub content: &'static str,
    /// How the limit depends on the settings.
    pub rule: &'static str,
    pub bytes: u64,
}

/// Returns the number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Settings {
    /// Returns the configured GPUs.
    pub(super) fn device_ids(&self) -> Vec<DeviceId> {
        match self.gpu.device_ids.as_slice() {
            [] => vec![self.gpu.device_id.into()],
            ids => ids.to_vec(),
        }
    }

    /// Returns the backends of the configured GPUs, without duplicates.
    pub(crate) fn gpu_backends(&self) -> Vec<GpuBackend> {
        let mut backends: Vec<GpuBackend> = Vec::new();
        for device in self.device_ids() {
            let backend = device.backend_or(self.gpu.backend);
            if !backends.contains(&backend) {
                backends.push(backend);
            }
        }
        backends
    }

    /// Returns whether an operation requests a GPU that `GPU_BACKEND` allows.
    pub(crate) fn requests_gpu(&self) -> bool {
        !self.gpu_operations().is_empty() && self.gpu.backend != GpuBackend::Cpu
    }

    /// Returns the GPU runtimes that `scripts/gpu-runtime` must install for the operations that
    /// request a GPU. Empty if no operation does, or if `ORT_DYLIB_PATH` is set.
    pub fn required_gpu_runtimes(&self) -> Vec<&'static str> {
        if self.models.ort_dylib_path.is_some() || self.gpu_operations().is_empty() {
            return Vec::new();
        }
        let has_cuda = self.runtime_library("cuda").is_some();
        let operations = self.gpu_operations();
        let arguments = |backend| gpu_runtime_arguments(backend, &operations, has_cuda);
        let mut runtimes: Vec<&str> = self.gpu_backends().into_iter().flat_map(arguments).collect();
        runtimes.sort_unstable();
        runtimes.dedup();
        runtimes
    }

    /// Returns the path of ONNX Runtime's library: `ORT_DYLIB_PATH`, or the installed one. If `gpu`
    /// is set, the GPU's library is preferred. `None` means the system's library.
    pub fn onnx_runtime_library(&self, gpu: bool) -> Option<PathBuf> {
        let folders = |backend: GpuBackend| match backend {
            GpuBackend::Auto => &["cuda", "rocm"][..],
            GpuBackend::Cuda | GpuBackend::Tensorrt => &["cuda"],
            GpuBackend::Rocm => &["rocm"],
            GpuBackend::Mps | GpuBackend::OpenVino | GpuBackend::WebGpu | GpuBackend::Cpu => &[],
        };
        let gpu_folders = self.gpu_backends().into_iter().filter(|_| gpu).flat_map(folders).copied();
        let installed = || gpu_folders.chain(["onnxruntime"]).find_map(|folder| self.runtime_library(folder));
        self.models.ort_dylib_path.clone().or_else(installed)
    }

    /// Returns the path of ONNX Runtime's library in a folder of `.runtime`, if it is installed.
    fn runtime_library(&self, folder: &str) -> Option<PathBuf> {
        let name = format!("{}onnxruntime{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        self.find_runtime_path(&format!("{folder}/{name}"))
    }

    /// Returns the folder of the plug-in backends, if there is one.
    pub(super) fn plugins_dir(&self) -> Option<PathBuf> {
        self.gpu.plugins_dir.clone().or_else(|| self.find_runtime_path("plugins"))
    }

    /// Returns the path of a file or folder in `.runtime`, if it exists. The search covers the
    /// checkout, the working folder, and the folders above the program (so a build in `target/`
    /// finds its checkout).
    pub(super) fn find_runtime_path(&self, path: &str) -> Option<PathBuf> {
        let program = std::env::current_exe().ok();
        let program_folders =
            program.iter().flat_map(|program| program.ancestors().skip(1).take(4).map(Path::to_path_buf));
        let root = self.root.iter().cloned();
        root.chain(std::iter::once(PathBuf::new()))
            .chain(program_folders)
            .map(|folder| folder.join(".runtime").join(path))
            .find(|path| path.exists())
    }

    /// Returns the values of the mode. Variables that are set take precedence.
    pub(super) fn performance(&self) -> Performance {
        let gpu = &self.gpu;
        let (delay_ms, max_batch_size, threads) = match gpu.performance_mode {
            PerformanceMode::Latency => (0.0, 4, cores().min(MAX_THREADS)),
            PerformanceMode::Throughput => (2.0, 32, 1),
        };
        let threads = gpu.cpu_session_threads.unwrap_or(threads);
        let sessions = match gpu.cpu_sessions {
            0 => (cores() / threads).max(1),
            explicit => explicit,
        };
        Performance {
            delay_ms: gpu.batch_max_delay_ms.unwrap_or(delay_ms),
            max_batch_size: gpu.batch_size.unwrap_or(max_batch_size),
            sessions,
            threads,
        }
    }

    /// Returns the limits of all memory that outside input can fill, on a machine with `cores`.
    /// Their sum is the maximum memory of a process, without the additional memory that SIZING.md
    /// lists.
    pub fn memory_limits(&self, cores: usize) -> Vec<MemoryLimit> {
        let limit = |content, rule, bytes| MemoryLimit { content, rule, bytes };
        let decoded = self.pipeline().decoded_bytes;
        let bodies = self.service.max_pending_body_mb * MIB;
        let connections = self.service.max_connections as u64;
        let (pages, images) = (self.page_workers() as u64, self.image_workers() as u64);
        let mut limits = vec![
            limit("models and the rest of the program (`opencv` or `compact`)", "400 MB", PROGRAM_BYTES),
            limit("decoded images and frames of videos", "`MAX_DECODED_MEGAPIXELS` x 3 MB", decoded),
            limit("small decoded images of callers", "an eighth of it", decoded / 8),
            limit("bodies of requests", "`MAX_PENDING_BODY_MB`", bodies),
            limit("images that are fetched for callers", "`MAX_PENDING_BODY_MB`", bodies),
            limit("responses that have not been read", "`MAX_PENDING_BODY_MB`", bodies),
            limit(
                "bodies and responses of at most 64 KiB",
                "`MAX_CONNECTIONS` x 128 KiB",
                connections * 2 * MAX_UNCOUNTED_BYTES,
            ),
            limit(
                "images that crawls have fetched",
                "`IMAGE_WORKERS` (four per core) and 4, x `MAX_IMAGE_MB`",
                (images + 4) * u64::from(self.service.max_image_mb) * MIB,
            ),
            limit("pages", "`PAGE_WORKERS` (four per core) x 24 MiB", pages * PAGE_WORKER_BYTES),
            limit(
                "a large sitemap, and rules of robots.txt files",
                "66 MiB and 64 MiB",
                SITEMAP_BYTES + ROBOTS_BYTES,
            ),
            limit("processes that decode videos", "`VIDEO_MEMORY_MB`", self.video.memory_mb * MIB),
            limit("face images of the video that is read", "256 MiB", FACE_IMAGE_BYTES),
            limit("faces of watchlists", "256 MiB", WATCHED_BYTES),
            limit("playlists", "40 x 2 MiB and 128 MiB", PLAYLIST_BYTES),
            limit(
                "work on parts of an image (tiles, buffers of decoders)",
                "cores x 64 MiB",
                cores as u64 * IMAGE_PART_BYTES,
            ),
        ];
        if self.streams.file.is_some() {
            let bytes = self.streams.slots as u64 * CAMERA_BYTES + WATCHED_BYTES;
            limits.push(limit("cameras", "`STREAM_SLOTS` x 64 MiB and 256 MiB", bytes));
        }
        limits
    }
}

/// Sets the path of the library that is used as the value of `ORT_DYLIB_PATH`, if it is unset.
pub(super) fn fill_in_library(
    settings: &Settings,
    mut resolved: Vec<ResolvedVariable>,
) -> Vec<ResolvedVariable> {
    let found = settings.onnx_runtime_library(settings.requests_gpu()).map(|path| path.display().to_string());
    for variable in
        resolved.iter_mut().filter(|variable| variable.name == "ORT_DYLIB_PATH" && variable.value.is_none())
    {
        variable.value = found.clone();
    }
    resolved
}

/// Sets the values that depend on `PERFORMANCE_MODE`, where their own variables are unset.
pub(super) fn fill_in_performance(
    settings: &Settings,
    mut resolved: Vec<ResolvedVariable>,
) -> Vec<ResolvedVariable> {
    let Performance { delay_ms, max_batch_size, sessions, threads } = settings.performance();
    let is_mode_set = resolved.iter().any(|r| r.name == "PERFORMANCE_MODE" && r.source != "default");
    let values = [
        ("BATCH_MAX_DELAY_MS", delay_ms.to_string()),
        ("GPU_BATCH_SIZE", max_batch_size.to_string()),
        ("CPU_SESSIONS", sessions.to_string()),
        ("CPU_SESSION_THREADS", threads.to_string()),
    ];
    for (name, value) in values {
        for variable in resolved.iter_mut().filter(|variable| variable.name == name) {
            let is_explicit =
                variable.value.as_deref().is_some_and(|value| value != "0" || name != "CPU_SESSIONS");
            if !is_explicit {
                variable.value = Some(value.clone());
                if is_mode_set && variable.source == "default" {
                    variable.source = "PERFORMANCE_MODE".into();
                }
            }
        }
    }
    resolved
}
