//! Defines the report and its conclusions, and draws the throughput in SVG.
//! `docs/reference/BENCHMARKS.md` describes the report in prose.
use crate::{BenchTarget, Bottleneck, Results, SearchReport, SideReport, sorted_reports};
use inference::{GpuDevice, LoadedModel};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

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

/// The plan of the measurement.
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
    #[serde(rename = "pictures")]
    pub images_per_size: usize,
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
            analysis: analyze(&results),
            summary: summarize(&results),
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

/// The most important result. Results of the pipeline, of medium images and of a GPU are preferred.
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
/// throughput. A GPU run whose work fell back to the CPU has no gain, regardless of its figures.
pub fn compute_gain(cpu: &SideReport, gpu: &SideReport) -> Gain {
    let no_gain = |note: String| Gain {
        time_improvement_percent: None,
        throughput_improvement_percent: None,
        note: Some(note),
    };
    let fallbacks: Vec<String> = gpu
        .device
        .iter()
        .filter(|(_, device)| device.fell_back)
        .map(|(operation, device)| {
            let reason = device.reason.as_deref().unwrap_or("unknown reason");
            format!("{operation} fell back to the CPU: {reason}")
        })
        .collect();
    if gpu.on_gpu == "none" {
        let why = if fallbacks.is_empty() { "no GPU was requested".to_owned() } else { fallbacks.join("; ") };
        return no_gain(format!("the GPU run used only the CPU ({why})"));
    }
    if gpu.runtime_fallbacks > 0 {
        return no_gain(format!(
            "runs on the GPU failed, and {} requests ran on the CPU",
            gpu.runtime_fallbacks
        ));
    }
    let (Some(cpu_time), Some(gpu_time)) = (cpu.mean_time_ms, gpu.mean_time_ms) else {
        return no_gain("one side processed no image without an error".to_owned());
    };
    Gain {
        time_improvement_percent: Some((cpu_time - gpu_time) / cpu_time * 100.0),
        throughput_improvement_percent: Some(
            (gpu.mean_throughput - cpu.mean_throughput) / cpu.mean_throughput * 100.0,
        ),
        note: (!fallbacks.is_empty()).then(|| format!("partly on the CPU: {}", fallbacks.join("; "))),
    }
}

fn analyze(results: &Results) -> Analysis {
    let mut performance_gains: BTreeMap<String, BTreeMap<String, Gain>> = BTreeMap::new();
    for (operation, sizes) in results {
        for (size, sides) in sizes {
            if let (Some(cpu), Some(gpu)) = (sides.get("gpu_false"), sides.get("gpu_true")) {
                performance_gains
                    .entry(operation.clone())
                    .or_default()
                    .insert(size.clone(), compute_gain(cpu, gpu));
            }
        }
    }
    Analysis { performance_gains }
}

fn summarize(results: &Results) -> Option<Summary> {
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

const WIDTH: f64 = 880.0;
const LEFT: f64 = 230.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 60.0;
const BAR: f64 = 18.0;
const GAP: f64 = 10.0;
/// Height of an operation's heading.
const HEADING: f64 = 26.0;

/// Draws a bar for every side of every size of every operation. The longest bar of each operation
/// has the full width, because operations differ by orders of magnitude.
pub fn draw_svg(results: &Results, title: &str) -> String {
    let bars = sorted_reports(results);
    let groups: usize = results.values().map(|sizes| sizes.len()).sum();
    let height = TOP + bars.len() as f64 * BAR + groups as f64 * GAP + results.len() as f64 * HEADING + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"20\" y=\"28\" font-size=\"16\" font-weight=\"bold\">{}</text>\n\
         <text x=\"20\" y=\"46\" fill=\"#555\">images per second (faces per second for face_embedding); compare bars only within one operation</text>\n",
        escape(title)
    );
    let mut y = TOP;
    let mut last = ("", "");
    for (operation, size, side, report) in &bars {
        if last.0 != *operation {
            y += HEADING;
            write_text(&mut out, 20.0, y - 6.0, "start", "bold", operation);
        } else if last.1 != *size {
            y += GAP;
        }
        last = (operation, size);
        let max = bars
            .iter()
            .filter(|bar| bar.0 == *operation)
            .map(|bar| bar.3.mean_throughput)
            .fold(0.0, f64::max);
        let share = if max > 0.0 { report.mean_throughput / max } else { 0.0 };
        let length = (WIDTH - LEFT - RIGHT) * share;
        let colour = if report.on_gpu == "none" { "#3b6fb6" } else { "#2b8a3e" };
        let name = match (*side, report.fell_back) {
            ("gpu_true", true) => "GPU (fell back)",
            ("gpu_true", false) => "GPU",
            _ => "CPU",
        };
        write_text(&mut out, LEFT - 8.0, y + BAR - 5.0, "end", "normal", &format!("{size}, {name}"));
        let thickness = BAR - 3.0;
        let _ = writeln!(
            out,
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{thickness:.1}\" fill=\"{colour}\"/>"
        );
        let figure = format!("{:.1}", report.mean_throughput);
        write_text(&mut out, LEFT + length + 6.0, y + BAR - 5.0, "start", "normal", &figure);
        y += BAR;
    }
    out.push_str("</svg>\n");
    out
}

fn write_text(out: &mut String, x: f64, y: f64, anchor: &str, weight: &str, content: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-weight=\"{weight}\">{}</text>",
        escape(content)
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
