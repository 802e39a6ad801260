//! Formats the report for people.
use crate::output::{megabytes, table, table_with_unbroken};
use bench::{Report, SideReport, ordered};
use std::fmt::Write;

/// The stages, in the order in which an image is processed.
const STAGES: [&str; 8] = ["decode", "letterbox", "detect", "align", "quality", "enhance", "embed", "queue"];

/// Returns two tables, the summary and the notes.
pub(super) fn text(report: &Report) -> String {
    // Some cells contain two values, because twelve columns would exceed the maximum width of a
    // table.
    let mut speeds = table_with_unbroken(
        &[0],
        [
            "operation",
            "runs on",
            "ms/image",
            "median\np95",
            "images/s\nfaces/s",
            "cores",
            "success",
            "GPU gain",
        ],
    );
    let mut stages = table_with_unbroken(&[0], ["ms per image"]);
    stages.set_header(["ms per image"].into_iter().chain(STAGES));
    for (operation, size, side, result) in ordered(&report.benchmark_results) {
        let name = if side == "gpu_true" { "GPU" } else { "CPU" };
        let gain = report.analysis.performance_gains.get(operation).and_then(|gains| gains.get(size));
        let gain =
            gain.filter(|_| side == "gpu_true").map(|gain| match gain.throughput_improvement_percent {
                Some(percent) => format!("{percent:+.1} %"),
                None => "none".to_owned(),
            });
        let both = |one, other| format!("{}\n{}", number(one), number(other));
        let what = format!("{operation}\n{size}, {name}");
        speeds.add_row([
            what.clone(),
            devices(result),
            number(result.mean_time_ms),
            both(result.median_time_ms, result.p95_time_ms),
            both(Some(result.mean_throughput), Some(result.faces_per_second)),
            result.cores_used.map(|cores| format!("{cores:.1}")).unwrap_or_default(),
            format!("{:.0} %", result.success_rate * 100.0),
            gain.unwrap_or_default(),
        ]);
        let took =
            STAGES.map(|stage| result.stages.get(stage).map(|ms| format!("{ms:.2}")).unwrap_or_default());
        stages.add_row(std::iter::once(what).chain(took));
    }
    let mut out = format!("{speeds}\n{stages}\n");
    if let Some(auto) = &report.auto_batch {
        let mut steps = table(["batch", "images/s", "GPU memory", "reason"]);
        for step in &auto.found.steps {
            steps.add_row([
                step.batch.to_string(),
                number(step.images_per_second),
                step.gpu_memory_bytes.map(megabytes).unwrap_or_default(),
                step.reason.clone().unwrap_or_default(),
            ]);
        }
        let _ = writeln!(
            out,
            "Batch sizes for {} on {} images:\n{steps}\n{}",
            auto.operation, auto.image_size, auto.found.why
        );
    }
    if let Some(summary) = &report.summary {
        let _ = writeln!(
            out,
            "{}, {} images, {}: {:.1} images/s, {:.1} faces/s",
            summary.operation,
            summary.image_size,
            if summary.side == "gpu_true" { "GPU" } else { "CPU" },
            summary.images_per_second,
            summary.faces_per_second
        );
        if let Some(bottleneck) = &summary.bottleneck {
            let _ = writeln!(out, "bottleneck: {} ({})", bottleneck.resource, bottleneck.why);
        }
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out.truncate(out.trim_end().len());
    out
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

/// Returns `cpu`, `cuda:0`, or both if the operation uses several devices. Marks sides that fell
/// back to the CPU.
fn devices(result: &SideReport) -> String {
    let mut devices: Vec<&str> = result.device.values().map(|device| device.effective.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    format!("{}{}", devices.join("+"), if result.fell_back { " (fell back)" } else { "" })
}
