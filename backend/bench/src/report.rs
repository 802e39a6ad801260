//! Defines the report. `docs/reference/BENCHMARKS.md` describes it in prose.
use crate::analysis::{self, Analysis, Summary};
use crate::{Results, SearchReport};
use inference::{GpuDevice, LoadedModel};
use serde::Serialize;

/// The results of one run of `facecrawl bench`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Results by operation, size, and `gpu_true` or `gpu_false`.
    pub benchmark_results: Results,
    /// Conclusions from the results.
    pub analysis: Analysis,
    /// The most important result.
    pub summary: Option<Summary>,
    /// The search for a batch size, if it was requested.
    pub auto_batch: Option<SearchReport>,
    /// What was measured.
    pub plan: PlanReport,
    /// The machine and the program that were measured.
    pub system: System,
    /// Notes for the reader in sentences, such as a missing GPU or a GPU run that fell back to the
    /// CPU.
    pub notes: Vec<String>,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// Number of concurrent images.
    pub batch_size: usize,
    /// Number of measured iterations.
    pub iterations: usize,
    /// Number of iterations before the measurement.
    pub warmup: usize,
    /// `drawn`, or the path of the folder.
    pub images: String,
    /// Number of different images per size.
    pub pictures: usize,
}

/// The machine and the program.
#[derive(Clone, Debug, Serialize)]
pub struct System {
    /// Version of facecrawl.
    pub version: &'static str,
    /// `release` or `debug`. The figures of a debug build are not representative of a release
    /// build.
    pub build: &'static str,
    /// Operating system and architecture.
    pub platform: String,
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Number of sessions per model on the CPU.
    pub cpu_sessions: usize,
    /// Number of threads per session.
    pub cpu_session_threads: usize,
    /// Version of ONNX Runtime.
    pub onnxruntime: String,
    /// Providers in its library that this program can use.
    pub backends: Vec<String>,
    /// Name of the model pack.
    pub model_pack: String,
    /// Name of the detector.
    pub detector: String,
    /// Name of the embedder.
    pub embedder: String,
    /// The loaded models: devices, sessions, load times, GPU memory before and after.
    pub models: Vec<LoadedModel>,
    /// The GPUs, with the memory in use after the measurements if the driver reports it.
    pub gpus: Vec<GpuDevice>,
    /// `GPU_BATCH_SIZE`.
    pub gpu_batch_size: usize,
    /// `GPU_MEMORY_LIMIT_GB`.
    pub gpu_memory_limit_gb: f64,
}

impl Report {
    /// Builds the report and computes its conclusions.
    pub fn new(
        results: Results,
        auto_batch: Option<SearchReport>,
        plan: PlanReport,
        system: System,
        notes: Vec<String>,
    ) -> Self {
        Self {
            analysis: analysis::analysis(&results),
            summary: analysis::summary(&results),
            benchmark_results: results,
            auto_batch,
            plan,
            system,
            notes,
        }
    }
}
