//! Formats the reports for people.
use crate::output::{format_megabytes, table, table_with_unbroken_columns};
use bench::{Report, SideReport, VideoReport, VideoSide, sorted_reports};
use std::fmt::Write;

/// The stages, in the order in which an image is processed.
const STAGES: [&str; 8] = ["decode", "letterbox", "detect", "align", "quality", "enhance", "embed", "queue"];

/// Returns two tables, the summary and the notes.
pub(super) fn text(report: &Report) -> String {
    // Some cells contain two values, because twelve columns would exceed the maximum width of a
    // table.
    let mut speeds = table_with_unbroken_columns(
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
    let mut stages = table_with_unbroken_columns(&[0], ["ms per image"]);
    stages.set_header(["ms per image"].into_iter().chain(STAGES));
    for (operation, size, side, result) in sorted_reports(&report.benchmark_results) {
        let name = if side == "gpu_true" { "GPU" } else { "CPU" };
        let gain = report.analysis.performance_gains.get(operation).and_then(|gains| gains.get(size));
        let gain =
            gain.filter(|_| side == "gpu_true").map(|gain| match gain.throughput_improvement_percent {
                Some(percent) => format!("{percent:+.1} %"),
                None => "none".to_owned(),
            });
        let two_lines = |one, other| format!("{}\n{}", format_number(one), format_number(other));
        let label = format!("{operation}\n{size}, {name}");
        speeds.add_row([
            label.clone(),
            format_devices(result),
            format_number(result.mean_time_ms),
            two_lines(result.median_time_ms, result.p95_time_ms),
            two_lines(Some(result.mean_throughput), Some(result.faces_per_second)),
            result.cores_used.map(|cores| format!("{cores:.1}")).unwrap_or_default(),
            format!("{:.0} %", result.success_rate * 100.0),
            gain.unwrap_or_default(),
        ]);
        let stage_times =
            STAGES.map(|stage| result.stages.get(stage).map(|ms| format!("{ms:.2}")).unwrap_or_default());
        stages.add_row(std::iter::once(label).chain(stage_times));
    }
    let mut out = format!("{speeds}\n{stages}\n");
    if let Some(auto) = &report.auto_batch {
        let mut steps = table(["batch", "images/s", "GPU memory", "reason"]);
        for step in &auto.found.steps {
            steps.add_row([
                step.batch.to_string(),
                format_number(step.images_per_second),
                step.gpu_memory_bytes.map(format_megabytes).unwrap_or_default(),
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
    append_notes(out, &report.notes)
}

fn append_notes(mut out: String, notes: &[String]) -> String {
    for note in notes {
        let _ = writeln!(out, "note: {note}");
    }
    out.truncate(out.trim_end().len());
    out
}

fn format_number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

/// Returns `cpu`, `cuda:0`, or both if the operation uses several devices. Marks sides that fell
/// back to the CPU.
fn format_devices(result: &SideReport) -> String {
    let mut devices: Vec<&str> = result.device.values().map(|device| device.effective.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    format!("{}{}", devices.join("+"), if result.fell_back { " (fell back)" } else { "" })
}

/// The parts of the work on a frame, in the order in which the service does them.
const FRAME_PARTS: [&str; 4] = ["read", "detect", "embed", "other"];

/// Returns two tables, a line about the file, and the notes.
pub(super) fn video_text(report: &VideoReport) -> String {
    let mut speeds = table_with_unbroken_columns(
        &[0],
        [
            "sampling",
            "x real time\nmin, max",
            "frames\nframes/s",
            "share of\ndecoding",
            "cores",
            "tracks\npeople",
            "memory: service,\ndecoder, both",
            "success",
        ],
    );
    let mut costs = table_with_unbroken_columns(
        &[0],
        ["CPU s per minute", "decode", "read", "detect", "embed", "other", "all", "decoding\nalone"],
    );
    for (sampling, sides) in report.benchmark_results.values().flatten() {
        for (side, result) in sides {
            let name = format!("{sampling}, {}", if side == "gpu_true" { "GPU" } else { "CPU" });
            speeds.add_row(speed_row(&name, result));
            costs.add_row(cost_row(&name, result));
        }
    }
    let plan = &report.plan;
    let seconds = plan.seconds.map_or_else(|| "unknown".into(), |seconds| format!("{seconds:.1}"));
    let out = format!(
        "{}: {} {}x{}, {seconds} s, {} keyframes; {} rounds\n{speeds}\n{costs}\n",
        plan.file, plan.codec, plan.width, plan.height, plan.keyframes, plan.iterations
    );
    append_notes(out, &report.notes)
}

fn speed_row(name: &str, result: &VideoSide) -> [String; 8] {
    let times = result.times_real_time;
    let memory = result.resident_bytes.as_ref();
    [
        name.to_owned(),
        times.map_or_else(no_value, |t| format!("{:.1}\n{:.1}, {:.1}", t.median, t.min, t.max)),
        format!("{}\n{:.1}", result.frames, result.frames_per_second),
        result.share_of_decode_limit.map_or_else(no_value, |share| format!("{share:.2}")),
        result.cores_used.map(|cores| format!("{cores:.1}")).unwrap_or_default(),
        format!("{}\n{}", result.tracks, result.people),
        memory.map_or_else(no_value, |memory| {
            let [service, both] = [memory.peak_service, memory.peak_together].map(format_megabytes);
            let decoder = memory.peak_decoder.map_or_else(no_value, format_megabytes);
            format!("{service}\n{decoder}\n{both}")
        }),
        format!("{:.0} %", result.success_rate * 100.0),
    ]
}

fn cost_row(name: &str, result: &VideoSide) -> [String; 8] {
    let cpu = result.cpu_seconds_per_minute.as_ref();
    let seconds = |value: Option<f64>| value.map_or_else(no_value, |value| format!("{value:.2}"));
    let [read, detect, embed, other] =
        FRAME_PARTS.map(|part| seconds(cpu.and_then(|cpu| cpu.parts.get(part).copied())));
    let alone = result.decoding.cpu_seconds_per_minute.as_ref();
    [
        name.to_owned(),
        seconds(cpu.map(|cpu| cpu.decoder)),
        read,
        detect,
        embed,
        other,
        seconds(cpu.map(|cpu| cpu.service + cpu.decoder)),
        seconds(alone.map(|cpu| cpu.service + cpu.decoder)),
    ]
}

fn no_value() -> String {
    "-".into()
}
