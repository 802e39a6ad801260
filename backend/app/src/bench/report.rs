//! Defines the report. `docs/reference/BENCHMARKS.md` describes it in prose.
use super::measure::{Tally, milliseconds};
use super::{AutoBatch, Bottleneck, Facts, Results, Side, Spread, Subject, bottleneck};
use inference::{GpuDevice, LoadedModel};
use serde::Serialize;
use std::collections::BTreeMap;

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
    pub auto_batch: Option<Auto>,
    /// What was measured.
    pub plan: Plan,
    /// The machine and the program that were measured.
    pub system: System,
    /// Notes for the reader in sentences, such as a missing GPU or a GPU run that fell back to the
    /// CPU.
    pub notes: Vec<String>,
}

/// Conclusions from the results.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    /// Gains by operation and size that were measured on both the CPU and the GPU.
    pub performance_gains: BTreeMap<String, BTreeMap<String, Gain>>,
}

/// Comparison of the GPU run with the CPU run.
#[derive(Clone, Debug, Serialize)]
pub struct Gain {
    /// Saved time per image in per cent of the CPU's time; negative if the GPU is slower.
    pub time_improvement_percent: Option<f64>,
    /// Increase of the throughput in per cent.
    pub throughput_improvement_percent: Option<f64>,
    /// Why there is no gain, or why it is not due to the GPU alone.
    pub note: Option<String>,
}

/// Results of one operation and size on the CPU or the GPU.
#[derive(Clone, Debug, Serialize)]
pub struct SideReport {
    /// Milliseconds per image: wall time divided by the number of images, with `batch_size` in
    /// flight. `null` if every image failed.
    pub mean_time_ms: Option<f64>,
    /// Images per second, 1000 / `mean_time_ms`.
    pub mean_throughput: f64,
    /// Share of images without an error, 0..=1.
    pub success_rate: f64,
    /// Median of the iterations' milliseconds per image.
    pub median_time_ms: Option<f64>,
    /// 95th percentile of the iterations' milliseconds per image.
    pub p95_time_ms: Option<f64>,
    /// Minimum of the iterations' milliseconds per image.
    pub min_time_ms: Option<f64>,
    /// Maximum of the iterations' milliseconds per image.
    pub max_time_ms: Option<f64>,
    /// Standard deviation of the iterations' milliseconds per image.
    pub stdev_time_ms: Option<f64>,
    /// Time from call to result, per image.
    pub latency_ms: Option<Spread>,
    /// What `images` counts: `picture`, or `face` for `face_embedding`.
    pub unit: &'static str,
    /// Number of images that were measured without an error.
    pub images: usize,
    /// Number of images that failed.
    pub failed: usize,
    /// Number of failures by reason.
    pub errors: BTreeMap<String, usize>,
    /// Number of faces that were found or embedded.
    pub faces: usize,
    /// Faces per second.
    pub faces_per_second: f64,
    /// Milliseconds per image and stage, for the stages of the operation.
    pub stages: BTreeMap<&'static str, f64>,
    /// CPU time of the whole process per image, in milliseconds; `null` if the system does not
    /// report it.
    pub cpu_ms_per_image: Option<f64>,
    /// CPU time divided by wall time.
    pub cores_used: Option<f64>,
    /// Mean number of requests per run of a model, by operation.
    pub mean_batch: BTreeMap<String, f64>,
    /// The devices of the operations that are used.
    pub device: BTreeMap<&'static str, Device>,
    /// How many of the operations run on a GPU: `all`, `some` or `none`.
    pub on_gpu: &'static str,
    /// Whether a GPU was requested and the CPU did all or a part of the work.
    pub fell_back: bool,
    /// Number of requests that ran on the CPU because a run on the device failed.
    pub runtime_fallbacks: u64,
    /// What limits the throughput.
    pub bottleneck: Option<Bottleneck>,
}

/// The device of an operation.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// The requested device: `cpu`, `cuda`, `auto`, …
    pub asked: String,
    /// The device that does the work: `cpu`, `cuda:0`, …
    pub effective: String,
    /// Why they differ.
    pub reason: Option<String>,
    /// Whether a GPU was requested and the CPU does the work.
    pub fell_back: bool,
}

/// The most important result: that of the pipeline if it was measured, of medium images if there
/// are any, and of a GPU if one did the work.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The operation.
    pub operation: String,
    /// The image size.
    pub image_size: String,
    /// `gpu_true` or `gpu_false`.
    pub side: String,
    /// Images per second (for `face_embedding`, chips).
    pub images_per_second: f64,
    /// Faces per second.
    pub faces_per_second: f64,
    /// What limits the throughput.
    pub bottleneck: Option<Bottleneck>,
}

/// The search for a batch size.
#[derive(Clone, Debug, Serialize)]
pub struct Auto {
    /// The operation.
    pub operation: &'static str,
    /// The image size.
    pub image_size: String,
    /// `gpu_true` or `gpu_false`.
    pub side: &'static str,
    /// The steps and the recommendation.
    #[serde(flatten)]
    pub found: AutoBatch,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
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
