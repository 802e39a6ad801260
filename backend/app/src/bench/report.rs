//! The report. `docs/reference/BENCHMARKS.md` says the same in prose.
use super::measure::{Tally, milliseconds};
use super::{AutoBatch, Bottleneck, Facts, Results, Side, Spread, Subject, bottleneck};
use inference::report::{GpuDevice, LoadedModel};
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything that one run of `facecrawl bench` found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// By operation, size and `gpu_true` or `gpu_false`.
    pub benchmark_results: Results,
    /// What follows from them.
    pub analysis: Analysis,
    /// The headline.
    pub summary: Option<Summary>,
    /// The search for a batch size, if it was asked for.
    pub auto_batch: Option<Auto>,
    /// What was measured.
    pub plan: Plan,
    /// What it was measured on.
    pub system: System,
    /// What a reader must know, in sentences: a GPU that is not there, a side that fell back.
    pub notes: Vec<String>,
}

/// What follows from the results.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    /// By operation and size, where both sides were measured.
    pub performance_gains: BTreeMap<String, BTreeMap<String, Gain>>,
}

/// The GPU's side against the CPU's.
#[derive(Clone, Debug, Serialize)]
pub struct Gain {
    /// Per cent of the CPU's time per picture that is saved; negative where the GPU is slower.
    pub time_improvement_percent: Option<f64>,
    /// Per cent by which pictures per second grow.
    pub throughput_improvement_percent: Option<f64>,
    /// Why there is no gain to speak of, or why it is not the GPU's alone.
    pub note: Option<String>,
}

/// One operation, size and side.
#[derive(Clone, Debug, Serialize)]
pub struct SideReport {
    /// Milliseconds per picture: wall time by pictures, with `batch_size` in flight. `null` when every picture failed.
    pub mean_time_ms: Option<f64>,
    /// Pictures per second, 1000 / `mean_time_ms`.
    pub mean_throughput: f64,
    /// Share of pictures without an error, 0..=1.
    pub success_rate: f64,
    /// Of the iterations' milliseconds per picture.
    pub median_time_ms: Option<f64>,
    /// Likewise.
    pub p95_time_ms: Option<f64>,
    /// Likewise.
    pub min_time_ms: Option<f64>,
    /// Likewise.
    pub max_time_ms: Option<f64>,
    /// Likewise.
    pub stdev_time_ms: Option<f64>,
    /// From call to answer, per picture.
    pub latency_ms: Option<Spread>,
    /// What is counted: `picture`, or `face` for `face_embedding`.
    pub unit: &'static str,
    /// How many were measured without an error.
    pub images: usize,
    /// How many failed.
    pub failed: usize,
    /// Why they failed, and how many for each reason.
    pub errors: BTreeMap<String, usize>,
    /// Faces that were found or embedded.
    pub faces: usize,
    /// The same, per second.
    pub faces_per_second: f64,
    /// Milliseconds per picture and stage, of the stages that the operation has.
    pub stages: BTreeMap<&'static str, f64>,
    /// CPU time of the whole process per picture, in milliseconds; `null` where the system does not tell.
    pub cpu_ms_per_image: Option<f64>,
    /// CPU time by wall time.
    pub cores_used: Option<f64>,
    /// Requests per run of a model, by operation.
    pub mean_batch: BTreeMap<String, f64>,
    /// Where the operations that are used run.
    pub device: BTreeMap<&'static str, Device>,
    /// How much of it runs on a GPU: `all`, `some` or `none` of the operations.
    pub on_gpu: &'static str,
    /// Whether a GPU was asked for and the CPU did the work, wholly or in part.
    pub fell_back: bool,
    /// Requests that the CPU answered because a run on the device failed.
    pub runtime_fallbacks: u64,
    /// What limits it.
    pub bottleneck: Option<Bottleneck>,
}

/// Where an operation runs.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// What was asked for: `cpu`, `cuda`, `auto`, …
    pub asked: String,
    /// What does the work: `cpu`, `cuda:0`, …
    pub effective: String,
    /// Why they differ.
    pub reason: Option<String>,
    /// Whether a GPU was asked for and the CPU does the work.
    pub fell_back: bool,
}

/// The headline: of the pipeline where it was measured, of medium pictures where there are any, on a GPU where one did the work.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Operation.
    pub operation: String,
    /// Size.
    pub image_size: String,
    /// `gpu_true` or `gpu_false`.
    pub side: String,
    /// Pictures (of `face_embedding`: chips) per second.
    pub images_per_second: f64,
    /// Faces per second.
    pub faces_per_second: f64,
    /// What limits it.
    pub bottleneck: Option<Bottleneck>,
}

/// The search for a batch size.
#[derive(Clone, Debug, Serialize)]
pub struct Auto {
    /// Operation.
    pub operation: &'static str,
    /// Size.
    pub image_size: String,
    /// `gpu_true` or `gpu_false`.
    pub side: &'static str,
    /// The steps and what follows.
    #[serde(flatten)]
    pub found: AutoBatch,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Pictures in flight.
    pub batch_size: usize,
    /// Iterations.
    pub iterations: usize,
    /// Iterations before.
    pub warmup: usize,
    /// `drawn`, or the folder.
    pub images: String,
    /// How many different pictures there are per size.
    pub pictures: usize,
}

/// The machine and the program.
#[derive(Clone, Debug, Serialize)]
pub struct System {
    /// Of facecrawl.
    pub version: &'static str,
    /// `release` or `debug`: figures of a debug build mean little.
    pub build: &'static str,
    /// Operating system and architecture.
    pub platform: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Sessions per model on the CPU.
    pub cpu_sessions: usize,
    /// Threads of each.
    pub cpu_session_threads: usize,
    /// Of ONNX Runtime.
    pub onnxruntime: String,
    /// Providers in its library that this program can use.
    pub backends: Vec<String>,
    /// Models.
    pub model_pack: String,
    /// Detector's name.
    pub detector: String,
    /// Embedder's name.
    pub embedder: String,
    /// The same in memory: devices, sessions, load times, GPU memory before and after.
    pub models: Vec<LoadedModel>,
    /// GPUs, with the memory in use after the measurements where the driver tells.
    pub gpus: Vec<GpuDevice>,
    /// `GPU_BATCH_SIZE`.
    pub gpu_batch_size: usize,
    /// `GPU_MEMORY_LIMIT_GB`.
    pub gpu_memory_limit_gb: f64,
}

impl Report {
    /// Draws the conclusions.
    pub fn new(
        results: Results,
        auto_batch: Option<Auto>,
        plan: Plan,
        system: System,
        notes: Vec<String>,
    ) -> Self {
        Self {
            analysis: super::analysis::analysis(&results),
            summary: super::analysis::summary(&results),
            benchmark_results: results,
            auto_batch,
            plan,
            system,
            notes,
        }
    }
}

impl Tally {
    pub(super) fn report(self, side: &Side, subject: Subject, batch_size: usize) -> SideReport {
        let succeeded = self.latencies.len();
        let asked = succeeded + self.failed;
        let wall = self.wall.as_secs_f64();
        let per_second = |count: usize| if wall > 0.0 { count as f64 / wall } else { 0.0 };
        let per_picture = |total: f64| (succeeded > 0).then(|| total / succeeded as f64);
        let times = Spread::of(&self.per_picture);
        let stages: BTreeMap<&'static str, f64> = self
            .stages
            .iter()
            .filter_map(|(stage, total)| Some((*stage, per_picture(milliseconds(*total))?)))
            .collect();
        let cores_used = self.cpu.filter(|_| wall > 0.0).map(|seconds| seconds / wall);

        let device = devices(side, subject);
        let placed = device.values().filter(|device| device.effective != "cpu").count();
        let on_gpu = match placed {
            0 => "none",
            some if some == device.len() => "all",
            _ => "some",
        };
        let bottleneck = bottleneck(&Facts {
            stages: &stages,
            device: &device,
            cores: crate::config::cores(),
            cores_used,
            in_flight: batch_size,
        });
        SideReport {
            mean_time_ms: per_picture(milliseconds(self.wall)),
            mean_throughput: per_second(succeeded),
            success_rate: if asked > 0 { succeeded as f64 / asked as f64 } else { 0.0 },
            median_time_ms: times.map(|t| t.median),
            p95_time_ms: times.map(|t| t.p95),
            min_time_ms: times.map(|t| t.min),
            max_time_ms: times.map(|t| t.max),
            stdev_time_ms: times.map(|t| t.stdev),
            latency_ms: Spread::of(&self.latencies),
            unit: subject.unit(),
            images: succeeded,
            failed: self.failed,
            errors: self.errors,
            faces: self.faces,
            faces_per_second: per_second(self.faces),
            stages,
            cpu_ms_per_image: self.cpu.and_then(|seconds| per_picture(seconds * 1e3)),
            cores_used,
            mean_batch: self.counts.mean_batch(),
            on_gpu,
            fell_back: side.gpu
                && (device.values().any(|device| device.fell_back) || self.counts.fallbacks > 0.0),
            runtime_fallbacks: self.counts.fallbacks as u64,
            device,
            bottleneck,
        }
    }
}

fn devices(side: &Side, subject: Subject) -> BTreeMap<&'static str, Device> {
    let all = side.analyzer.engine().operations();
    let used = subject.uses().iter().filter_map(|operation| {
        let found = all.iter().find(|report| report.operation == operation.name())?;
        let device = Device {
            asked: found.requested.clone(),
            effective: found.effective.clone(),
            reason: found.reason.clone(),
            fell_back: found.gpu_requested && found.effective == "cpu",
        };
        Some((operation.name(), device))
    });
    used.collect()
}
