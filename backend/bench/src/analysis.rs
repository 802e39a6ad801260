//! Compares the GPU with the CPU, and selects the summary.
use crate::{BenchTarget, Bottleneck, Results, SideReport};
use serde::Serialize;
use std::collections::BTreeMap;

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

/// Computes the gains for operations and sizes that were measured on both the CPU and the GPU.
pub(crate) fn analysis(results: &Results) -> Analysis {
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

/// Selects the result for the summary.
pub(crate) fn summary(results: &Results) -> Option<Summary> {
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
