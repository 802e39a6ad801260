//! Formats the report about a video for people.
use crate::output::{megabytes, table_with_unbroken};
use bench::{VideoReport, VideoSide};
use std::fmt::Write;

/// The parts of the work of the service, in the order of a frame.
const PARTS: [&str; 4] = ["read", "detect", "embed", "other"];

/// Returns two tables, a line about the file, and the notes.
pub(super) fn text(report: &VideoReport) -> String {
    let mut speeds = table_with_unbroken(
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
    let mut costs = table_with_unbroken(
        &[0],
        ["CPU s per minute", "decode", "read", "detect", "embed", "other", "all", "decoding\nalone"],
    );
    for (sampling, sides) in report.benchmark_results.values().flatten() {
        for (side, result) in sides {
            let name = format!("{sampling}, {}", if side == "gpu_true" { "GPU" } else { "CPU" });
            speeds.add_row(speed(&name, result));
            costs.add_row(cost(&name, result));
        }
    }
    let plan = &report.plan;
    let seconds = plan.seconds.map_or_else(|| "unknown".into(), |seconds| format!("{seconds:.1}"));
    let mut out = format!(
        "{}: {} {}x{}, {seconds} s, {} keyframes; {} rounds\n{speeds}\n{costs}\n",
        plan.file, plan.codec, plan.width, plan.height, plan.keyframes, plan.iterations
    );
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out.truncate(out.trim_end().len());
    out
}

fn speed(name: &str, result: &VideoSide) -> [String; 8] {
    let times = result.times_real_time;
    let memory = result.resident_bytes.as_ref();
    [
        name.to_owned(),
        times.map_or_else(none, |t| format!("{:.1}\n{:.1}, {:.1}", t.median, t.min, t.max)),
        format!("{}\n{:.1}", result.frames, result.frames_per_second),
        result.share_of_decode_limit.map_or_else(none, |share| format!("{share:.2}")),
        result.cores_used.map(|cores| format!("{cores:.1}")).unwrap_or_default(),
        format!("{}\n{}", result.tracks, result.people),
        memory.map_or_else(none, |memory| {
            let [service, both] = [memory.peak_service, memory.peak_together].map(megabytes);
            let decoder = memory.peak_decoder.map_or_else(none, megabytes);
            format!("{service}\n{decoder}\n{both}")
        }),
        format!("{:.0} %", result.success_rate * 100.0),
    ]
}

fn cost(name: &str, result: &VideoSide) -> [String; 8] {
    let cpu = result.cpu_seconds_per_minute.as_ref();
    let seconds = |value: Option<f64>| value.map_or_else(none, |value| format!("{value:.2}"));
    let [read, detect, embed, other] =
        PARTS.map(|part| seconds(cpu.and_then(|cpu| cpu.parts.get(part).copied())));
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

fn none() -> String {
    "-".into()
}
