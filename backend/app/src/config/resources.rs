//! Derives what a process uses of its machine: the ONNX Runtime library, threads and batches, and
//! memory. The configuration of each crate is in `convert`.
use super::{Resolved, Settings};
use inference::{PerformanceMode, gpu_runtime};
use std::path::{Path, PathBuf};

/// Maximum number of threads per CPU session that the mode selects. More threads do not make models
/// of this size much faster.
const MAX_THREADS: usize = 4;

const MIB: u64 = 1 << 20;
/// Memory of the program with the models of `opencv` or `compact`, in bytes.
const PROGRAM: u64 = 400_000_000;
/// Bodies and responses that are not counted have at most this number of bytes.
const UNCOUNTED: u64 = 64 << 10;
/// Of each worker of pages: a page of 5 MiB, its text, and 2 MiB of addresses of links, of images
/// and of videos.
const PAGE: u64 = 24 * MIB;
/// One sitemap of 50 MiB at a time, with 16 MiB of addresses.
const SITEMAP: u64 = 66 * MIB;
/// Rules of robots.txt files.
const ROBOTS: u64 = 64 * MIB;
/// The addresses of the files of a playlist, as it lists them, for eight videos that are fetched
/// and 32 that wait for their host; and the values of one playlist that is parsed.
const PLAYLISTS: u64 = 40 * 2 * MIB + 128 * MIB;
/// Images of faces of the video that is read.
const FACE_IMAGES: u64 = 256 * MIB;
/// Work on parts of an image, for each core.
const PARTS: u64 = 64 * MIB;

/// The values that depend on `PERFORMANCE_MODE`, where their own variables are unset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Performance {
    /// Time in milliseconds that a GPU batch waits for more items.
    pub(super) delay_ms: f64,
    /// Maximum number of items in one run on a GPU.
    pub(super) batch: usize,
    /// Number of sessions per model on the CPU.
    pub(super) sessions: usize,
    pub(super) threads: usize,
}

/// A kind of memory and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// What is in the memory.
    pub what: &'static str,
    /// How the limit depends on the settings.
    pub rule: &'static str,
    pub bytes: u64,
}

/// Returns the number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Settings {
    /// Returns whether an operation requests a GPU that `GPU_BACKEND` allows.
    pub(super) fn requests_gpu(&self) -> bool {
        !self.gpu_operations().is_empty() && gpu_runtime(self.gpu.backend).is_some()
    }

    /// Returns the GPU runtime that `scripts/gpu-runtime` must install for the operations that
    /// request a GPU. Returns `None` if no operation does, or if `ORT_DYLIB_PATH` is set.
    pub fn wanted_gpu_runtime(&self) -> Option<&'static str> {
        let open = self.models.ort_dylib_path.is_none() && !self.gpu_operations().is_empty();
        open.then(|| gpu_runtime(self.gpu.backend))?
    }

    /// Returns the path of ONNX Runtime's library: `ORT_DYLIB_PATH`, or the installed one. If `gpu`
    /// is set, the GPU's library is preferred. `None` means the system's library.
    pub fn library(&self, gpu: bool) -> Option<PathBuf> {
        let name = format!("{}onnxruntime{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let part = |folder: &str| self.runtime_part(&format!("{folder}/{name}"));
        let of_gpu = || gpu_runtime(self.gpu.backend).filter(|_| gpu).and_then(part);
        self.models.ort_dylib_path.clone().or_else(of_gpu).or_else(|| part("onnxruntime"))
    }

    /// Returns a path inside `.runtime`. The search covers the checkout, the working folder, and
    /// the folders above the program (so a build in `target/` finds its checkout).
    pub(super) fn runtime_part(&self, part: &str) -> Option<PathBuf> {
        let program = std::env::current_exe().ok();
        let above =
            program.iter().flat_map(|program| program.ancestors().skip(1).take(4).map(Path::to_path_buf));
        let root = self.root.iter().cloned();
        root.chain(std::iter::once(PathBuf::new()))
            .chain(above)
            .map(|folder| folder.join(".runtime").join(part))
            .find(|path| path.exists())
    }

    /// Returns the values of the mode. Variables that are set take precedence.
    pub(super) fn performance(&self) -> Performance {
        let gpu = &self.gpu;
        let (delay_ms, batch, threads) = match gpu.performance_mode {
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
            batch: gpu.batch_size.unwrap_or(batch),
            sessions,
            threads,
        }
    }

    /// Returns all kinds of memory that outside input can fill, on a machine with `cores`. Their
    /// sum is the most that a process uses, apart from what SIZING.md lists as additional.
    pub fn memory_limits(&self, cores: usize) -> Vec<MemoryLimit> {
        let limit = |what, rule, bytes| MemoryLimit { what, rule, bytes };
        let decoded = self.pipeline().decoded_bytes;
        let bodies = self.service.max_pending_body_mb * MIB;
        let connections = self.service.max_connections as u64;
        let (pages, images) = (self.page_workers() as u64, self.image_workers() as u64);
        vec![
            limit("models and the rest of the program (`opencv` or `compact`)", "400 MB", PROGRAM),
            limit("decoded images and frames of videos", "`MAX_DECODED_MEGAPIXELS` x 3 MB", decoded),
            limit("small decoded images of callers", "an eighth of it", decoded / 8),
            limit("bodies of requests", "`MAX_PENDING_BODY_MB`", bodies),
            limit("images that are fetched for callers", "`MAX_PENDING_BODY_MB`", bodies),
            limit("responses that have not been read", "`MAX_PENDING_BODY_MB`", bodies),
            limit(
                "bodies and responses of at most 64 KiB",
                "`MAX_CONNECTIONS` x 128 KiB",
                connections * 2 * UNCOUNTED,
            ),
            limit(
                "images that crawls have fetched",
                "`IMAGE_WORKERS` (four per core) x `MAX_IMAGE_MB`",
                images * u64::from(self.service.max_image_mb) * MIB,
            ),
            limit("pages", "`PAGE_WORKERS` (four per core) x 24 MiB", pages * PAGE),
            limit("a large sitemap, and rules of robots.txt files", "66 MiB and 64 MiB", SITEMAP + ROBOTS),
            limit("processes that decode videos", "`VIDEO_MEMORY_MB`", self.video.memory_mb * MIB),
            limit("face images of the video that is read", "256 MiB", FACE_IMAGES),
            limit("playlists", "40 x 2 MiB and 128 MiB", PLAYLISTS),
            limit(
                "work on parts of an image (tiles, buffers of decoders)",
                "cores x 64 MiB",
                cores as u64 * PARTS,
            ),
        ]
    }
}

/// Displays the path of the library in listings that would otherwise contain "unset".
pub(super) fn show_library(settings: &Settings, mut resolved: Vec<Resolved>) -> Vec<Resolved> {
    let found = settings.library(settings.requests_gpu()).map(|path| path.display().to_string());
    for line in resolved.iter_mut().filter(|line| line.name == "ORT_DYLIB_PATH" && line.value.is_none()) {
        line.value = found.clone();
    }
    resolved
}

/// Displays these values in listings that would otherwise contain "unset".
pub(super) fn show_performance(settings: &Settings, mut resolved: Vec<Resolved>) -> Vec<Resolved> {
    let Performance { delay_ms, batch, sessions, threads } = settings.performance();
    let mode = resolved.iter().find(|r| r.name == "PERFORMANCE_MODE").map(|r| r.source.clone());
    let by_mode = mode.is_some_and(|source| source != "default");
    let chosen = [
        ("BATCH_MAX_DELAY_MS", delay_ms.to_string()),
        ("GPU_BATCH_SIZE", batch.to_string()),
        ("CPU_SESSIONS", sessions.to_string()),
        ("CPU_SESSION_THREADS", threads.to_string()),
    ];
    for (name, value) in chosen {
        for line in resolved.iter_mut().filter(|line| line.name == name) {
            let explicit = line.value.as_deref().is_some_and(|value| value != "0" || name != "CPU_SESSIONS");
            if !explicit {
                line.value = Some(value.clone());
                if by_mode && line.source == "default" {
                    line.source = "PERFORMANCE_MODE".into();
                }
            }
        }
    }
    resolved
}
