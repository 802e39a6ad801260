//! Computes the figures of one sampling on the CPU or the GPU.
use super::run::{Run, Runs, SideRuns};
use super::usage::{MemorySample, Resident, Usage};
use crate::side::devices;
use crate::{BenchTarget, Device, Side, Spread};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Results of one sampling on the CPU or the GPU.
#[derive(Clone, Debug, Serialize)]
pub struct VideoSide {
    /// Length of the video divided by the time of an analysis, over the iterations. `null` if all
    /// of them failed.
    pub times_real_time: Option<Spread>,
    /// Seconds of an analysis, over the iterations.
    pub seconds: Option<Spread>,
    /// Median of the seconds until the keyframes are known, a part of `seconds`.
    pub indexing_seconds: Option<f64>,
    /// Share of analyses without an error, from 0 to 1.
    pub success_rate: f64,
    /// Number of analyses without an error.
    pub analyses: usize,
    pub failed: usize,
    /// Number of failures by reason.
    pub errors: BTreeMap<String, usize>,
    /// Number of frames that one analysis processes.
    pub frames: u64,
    pub frames_per_second: f64,
    /// Number of faces in these frames.
    pub faces: u64,
    pub tracks: usize,
    pub people: u32,
    /// CPU seconds per minute of the video; `null` if the system does not report them.
    pub cpu_seconds_per_minute: Option<CpuPerMinute>,
    /// CPU time of this process and the decoder, divided by wall time.
    pub cores_used: Option<f64>,
    pub decoding: Decoding,
    /// Median of the time for decoding alone, divided by that of the analysis in the same round.
    pub share_of_decode_limit: Option<f64>,
    /// The resident memory; `null` if the system does not report it.
    pub resident_bytes: Option<Resident>,
    /// The device of each operation that is used.
    pub device: BTreeMap<&'static str, Device>,
}

/// CPU seconds per minute of the video.
#[derive(Clone, Debug, Serialize)]
pub struct CpuPerMinute {
    /// Those of this process.
    pub service: f64,
    /// Those of the decoder's processes.
    pub decoder: f64,
    /// Those of this process by the part of the work.
    pub parts: BTreeMap<&'static str, f64>,
}

/// The frames of a sampling, decoded without an analysis.
#[derive(Clone, Debug, Serialize)]
pub struct Decoding {
    /// Length of the video divided by the time of decoding, over the iterations.
    pub times_real_time: Option<Spread>,
    pub cpu_seconds_per_minute: Option<CpuPerMinute>,
}

impl Runs {
    /// Computes the reports by the keys of the sides. `seconds` is the length of the video.
    pub(super) fn report(self, sides: &[Side], seconds: f64) -> BTreeMap<String, VideoSide> {
        let rates: Vec<f64> = self.decoded.iter().map(|one| rate(seconds, one.took)).collect();
        let usages: Vec<&Usage> = self.decoded.iter().map(|one| &one.usage).collect();
        let decoding = Decoding {
            times_real_time: Spread::of(&rates),
            cpu_seconds_per_minute: per_minute(&usages, seconds),
        };
        let reports = sides.iter().zip(self.sides);
        reports
            .map(|(side, runs)| (side.key().to_owned(), runs.report(side, decoding.clone(), seconds)))
            .collect()
    }
}

impl SideRuns {
    fn report(self, side: &Side, decoding: Decoding, seconds: f64) -> VideoSide {
        let runs = &self.runs;
        let spread = |value: &dyn Fn(&Run) -> f64| Spread::of(&runs.iter().map(value).collect::<Vec<_>>());
        let usages: Vec<&Usage> = runs.iter().map(|run| &run.usage).collect();
        let memory: Vec<MemorySample> = runs.iter().flat_map(|run| run.usage.memory.clone()).collect();
        let failed: usize = self.errors.values().sum();
        let wall: f64 = runs.iter().map(|run| run.took.as_secs_f64()).sum();
        let last = runs.last().map(|run| &run.analysis);
        let frames: u64 = runs.iter().map(|run| run.analysis.frames).sum();
        let cpu = per_minute(&usages, seconds);
        let minutes = runs.len() as f64 * seconds / 60.0;
        VideoSide {
            times_real_time: spread(&|run| rate(seconds, run.took)),
            seconds: spread(&|run| run.took.as_secs_f64()),
            indexing_seconds: spread(&|run| run.analysis.indexing.as_secs_f64()).map(|spread| spread.median),
            success_rate: runs.len() as f64 / (runs.len() + failed).max(1) as f64,
            analyses: runs.len(),
            failed,
            frames: last.map_or(0, |analysis| analysis.frames),
            frames_per_second: frames as f64 / wall.max(1e-9),
            faces: runs.last().map_or(0, |run| run.faces),
            tracks: last.map_or(0, |analysis| analysis.tracks.len()),
            people: last.map_or(0, |analysis| analysis.people),
            cores_used: cpu.as_ref().map(|cpu| (cpu.service + cpu.decoder) * minutes / wall.max(1e-9)),
            cpu_seconds_per_minute: cpu,
            share_of_decode_limit: spread(&|run| {
                run.decoding.as_secs_f64() / run.took.as_secs_f64().max(1e-9)
            })
            .map(|spread| spread.median),
            decoding,
            resident_bytes: Resident::of(&memory, seconds),
            device: devices(side, BenchTarget::Pipeline),
            errors: self.errors,
        }
    }
}

fn rate(seconds: f64, took: Duration) -> f64 {
    seconds / took.as_secs_f64().max(1e-9)
}

/// Returns the mean of the runs, or `None` if the system does not report CPU time.
fn per_minute(usages: &[&Usage], seconds: f64) -> Option<CpuPerMinute> {
    let minutes = usages.len() as f64 * seconds.max(1e-9) / 60.0;
    let mut parts = BTreeMap::new();
    for (part, time) in usages.iter().flat_map(|usage| &usage.parts) {
        *parts.entry(*part).or_default() += time / minutes;
    }
    let mean = |times: Option<f64>| times.filter(|_| !usages.is_empty()).map(|time| time / minutes);
    Some(CpuPerMinute {
        service: mean(usages.iter().map(|usage| usage.service).sum())?,
        decoder: mean(usages.iter().map(|usage| usage.decoder).sum())?,
        parts,
    })
}
