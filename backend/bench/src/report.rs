//! Defines the report and its conclusions. `docs/reference/BENCHMARKS.md` describes it in prose.
use crate::{BenchTarget, Bottleneck, Results, SearchReport, SideReport};
use inference::{GpuDevice, LoadedModel};
use serde::Serialize;
use std::collections::BTreeMap;

/// The results of one run of `facecrawl bench`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Results by operation, size, and `gpu_true` or `gpu_false`.
    pub benchmark_results: Results,
    pub analysis: Analysis,
    pub summary: Option<Summary>,
    /// The search for a batch size, if it was requested.
    pub auto_batch: Option<SearchReport>,
    pub plan: PlanReport,
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
    pub cpu_session_threads: usize,
    /// Version of ONNX Runtime.
    pub onnxruntime: String,
    /// Providers in its library that this program can use.
    pub backends: Vec<String>,
    pub model_pack: String,
    pub detector: String,
    pub embedder: String,
    /// The loaded models: devices, sessions, load times, GPU memory before and after.
    pub models: Vec<LoadedModel>,
    /// The GPUs, with the memory in use after the measurements if the driver reports it.
    pub gpus: Vec<GpuDevice>,
    pub gpu_batch_size: usize,
    pub gpu_memory_limit_gb: f64,
}

impl Report {
    pub fn new(
        results: Results,
        auto_batch: Option<SearchReport>,
        plan: PlanReport,
        system: System,
        notes: Vec<String>,
    ) -> Self {
        Self {
            analysis: analysis(&results),
            summary: summary(&results),
            benchmark_results: results,
            auto_batch,
            plan,
            system,
            notes,
        }
    }
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

/// The most important result. The result of the pipeline, of medium images and of a GPU is
/// preferred.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub operation: String,
    pub image_size: String,
    /// `gpu_true` or `gpu_false`.
    pub side: String,
    /// Images per second (for `face_embedding`, chips).
    pub images_per_second: f64,
    pub faces_per_second: f64,
    pub bottleneck: Option<Bottleneck>,
}

/// Computes the gains in per cent: `(cpu - gpu) / cpu` for times and `(gpu - cpu) / cpu` for
/// throughput. A GPU run whose work fell back to the CPU has no gain, whatever its figures are.
pub fn gain(cpu: &SideReport, gpu: &SideReport) -> Gain {
    let none = |note: String| Gain {
        time_improvement_percent: None,
        throughput_improvement_percent: None,
        note: Some(note),
    };
    let fallen: Vec<String> = gpu
        .device
        .iter()
        .filter(|(_, device)| device.fell_back)
        .map(|(operation, device)| {
            let reason = device.reason.as_deref().unwrap_or("unknown reason");
            format!("{operation} fell back to the CPU: {reason}")
        })
        .collect();
    if gpu.on_gpu == "none" {
        let why = if fallen.is_empty() { "no GPU was requested".to_owned() } else { fallen.join("; ") };
        return none(format!("the GPU run used only the CPU ({why})"));
    }
    if gpu.runtime_fallbacks > 0 {
        return none(format!(
            "runs on the GPU failed, and {} requests ran on the CPU",
            gpu.runtime_fallbacks
        ));
    }
    let (Some(cpu_time), Some(gpu_time)) = (cpu.mean_time_ms, gpu.mean_time_ms) else {
        return none("one side processed no image without an error".to_owned());
    };
    Gain {
        time_improvement_percent: Some((cpu_time - gpu_time) / cpu_time * 100.0),
        throughput_improvement_percent: Some(
            (gpu.mean_throughput - cpu.mean_throughput) / cpu.mean_throughput * 100.0,
        ),
        note: (!fallen.is_empty()).then(|| format!("partly on the CPU: {}", fallen.join("; "))),
    }
}

fn analysis(results: &Results) -> Analysis {
    let mut performance_gains: BTreeMap<String, BTreeMap<String, Gain>> = BTreeMap::new();
    for (operation, sizes) in results {
        for (size, sides) in sizes {
            if let (Some(cpu), Some(gpu)) = (sides.get("gpu_false"), sides.get("gpu_true")) {
                performance_gains.entry(operation.clone()).or_default().insert(size.clone(), gain(cpu, gpu));
            }
        }
    }
    Analysis { performance_gains }
}

fn summary(results: &Results) -> Option<Summary> {
    let pipeline = results.get_key_value(BenchTarget::Pipeline.name());
    let (operation, sizes) = pipeline.or_else(|| results.first_key_value())?;
    let (size, sides) = sizes.get_key_value("medium").or_else(|| sizes.first_key_value())?;
    let on_gpu = sides.get_key_value("gpu_true").filter(|(_, report)| report.on_gpu != "none");
    let (side, report) = on_gpu.or_else(|| sides.first_key_value())?;
    Some(Summary {
        operation: operation.clone(),
        image_size: size.clone(),
        side: side.clone(),
        images_per_second: report.mean_throughput,
        faces_per_second: report.faces_per_second,
        bottleneck: report.bottleneck.clone(),
    })
}
