//! Measures the analysis of a video file and the decoding of the same frames alone, and defines
//! their report. `docs/reference/BENCHMARKS.md` describes it in prose.
mod run;
use crate::side::devices;
use crate::video::run::{MemorySample, Resident, Run, SideRuns, Usage};
use crate::{BenchTarget, Device, Process, Side, Spread, System};
use anyhow::Context;
use pipeline::VideoOptions;
use run::{Runs, analyze, decode, video_seconds};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;
use video::{Decoder, Index, Sampling};

/// The measured file and samplings, and the number of rounds.
#[derive(Clone, Debug)]
pub struct VideoPlan {
    pub file: PathBuf,
    /// The samplings, in the order of the report.
    pub samplings: Vec<Sampling>,
    pub options: VideoOptions,
    /// Number of measured rounds; each analyses the whole file once with each sampling.
    pub iterations: usize,
    /// Number of rounds before the measurement.
    pub warmup: usize,
}

impl VideoPlan {
    fn open(&self) -> anyhow::Result<File> {
        File::open(&self.file).with_context(|| format!("cannot open {}", self.file.display()))
    }
}

/// Measures every sampling in rounds. A round decodes the frames of a sampling without an analysis,
/// and analyses them on every side. The order changes between rounds, so that other load on the
/// machine affects all measurements equally. If `decoder` has GPUs, only the side of the GPU uses
/// them. `progress` is called with the name of the next measurement. Also returns the index of the
/// file.
///
/// # Errors
/// Fails if the file cannot be opened or decoded. An analysis that fails later is not an error; it
/// lowers `success_rate`.
pub async fn measure_video(
    plan: &VideoPlan,
    sides: &[Side],
    decoder: &Decoder,
    process: &Process,
    mut progress: impl FnMut(&str),
) -> anyhow::Result<(VideoResults, Index)> {
    let file = plan.open()?;
    let cpu_decoder = decoder.without_gpus();
    let index_decoder = cpu_decoder.clone();
    // Reads the whole file, so that every later run finds it in the cache of the system.
    let index = tokio::task::spawn_blocking(move || index_decoder.index(&file)).await??;
    let mut measured: Vec<Runs> = plan.samplings.iter().map(|_| Runs::new(sides.len())).collect();
    for round in 0..plan.warmup + plan.iterations {
        let is_measured = round >= plan.warmup;
        let mut order: Vec<usize> = (0..plan.samplings.len()).collect();
        order.rotate_left(round % plan.samplings.len().max(1));
        for sampling_index in order {
            let options = VideoOptions { sampling: plan.samplings[sampling_index], ..plan.options.clone() };
            let name = sampling_name(options.sampling);
            progress(&format!("round {}, {name}, decoding", round + 1));
            let decoded = decode(plan.open()?, &cpu_decoder, &options, process).await?;
            for offset in 0..sides.len() {
                let number = (offset + round) % sides.len();
                let side = &sides[number];
                progress(&format!("round {}, {name}, {}", round + 1, side.key()));
                let decoder = if side.gpu { decoder } else { &cpu_decoder };
                let analyzed = analyze(&side.analyzer, plan.open()?, decoder, &options, process).await;
                if is_measured {
                    measured[sampling_index].add(number, analyzed, &decoded);
                }
            }
            if is_measured {
                measured[sampling_index].decoded.push(decoded);
            }
        }
    }
    let seconds = video_seconds(&index, &measured);
    let mut reports = BTreeMap::new();
    for (sampling, runs) in plan.samplings.iter().zip(measured) {
        reports.insert(sampling_name(*sampling), runs.report(sides, seconds));
    }
    Ok((VideoResults::from([("video".to_owned(), reports)]), index))
}

/// Returns the name of a sampling, as the command line accepts it.
fn sampling_name(sampling: Sampling) -> String {
    match sampling {
        Sampling::Keyframes => "keyframes".into(),
        Sampling::Fps(fps) => format!("fps={fps}"),
        Sampling::Auto => "auto".into(),
    }
}

/// The results by operation (always `video`), sampling, and `gpu_true` or `gpu_false`.
pub type VideoResults = BTreeMap<String, BTreeMap<String, BTreeMap<String, VideoSide>>>;

/// The results of one run of `facecrawl bench --operation video`.
#[derive(Clone, Debug, Serialize)]
pub struct VideoReport {
    pub benchmark_results: VideoResults,
    pub plan: VideoPlanReport,
    pub system: System,
    pub notes: Vec<String>,
}

/// The plan of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct VideoPlanReport {
    /// Number of measured rounds.
    pub iterations: usize,
    /// Number of rounds before the measurement.
    pub warmup: usize,
    /// Longest time without an analysed frame of the sampling `auto`, in seconds.
    pub max_gap_seconds: f64,
    pub file: String,
    /// Names of the container's format in ffmpeg.
    pub container: String,
    /// Name of the codec in ffmpeg.
    pub codec: String,
    /// Width of the coded image in pixels.
    pub width: u32,
    pub height: u32,
    /// Duration in seconds, if the file reports one.
    pub seconds: Option<f64>,
    pub keyframes: usize,
    /// The version of ffmpeg.
    pub ffmpeg: String,
    pub decoder_threads: u32,
}

impl VideoPlanReport {
    pub fn new(plan: &VideoPlan, index: &Index, decoder: &Decoder) -> Self {
        Self {
            iterations: plan.iterations,
            warmup: plan.warmup,
            max_gap_seconds: plan.options.max_gap_us as f64 / 1e6,
            file: plan.file.display().to_string(),
            container: index.container.clone(),
            codec: index.codec.clone(),
            width: index.width,
            height: index.height,
            seconds: index.duration_us.map(|us| us as f64 / 1e6),
            keyframes: index.keyframes_us.len(),
            ffmpeg: decoder.sandbox_info().version.clone(),
            decoder_threads: decoder.config().threads,
        }
    }
}

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
    /// CPU seconds of this process.
    pub service: f64,
    /// CPU seconds of the decoder's processes.
    pub decoder: f64,
    /// CPU seconds of this process by the part of the work.
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
    fn report(self, sides: &[Side], seconds: f64) -> BTreeMap<String, VideoSide> {
        let rates: Vec<f64> = self.decoded.iter().map(|decoded| rate(seconds, decoded.duration)).collect();
        let usages: Vec<&Usage> = self.decoded.iter().map(|decoded| &decoded.usage).collect();
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
        let wall: f64 = runs.iter().map(|run| run.duration.as_secs_f64()).sum();
        let last = runs.last().map(|run| &run.analysis);
        let frames: u64 = runs.iter().map(|run| run.analysis.frames).sum();
        let cpu = per_minute(&usages, seconds);
        let minutes = runs.len() as f64 * seconds / 60.0;
        VideoSide {
            times_real_time: spread(&|run| rate(seconds, run.duration)),
            seconds: spread(&|run| run.duration.as_secs_f64()),
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
                run.decoding.as_secs_f64() / run.duration.as_secs_f64().max(1e-9)
            })
            .map(|spread| spread.median),
            decoding,
            resident_bytes: Resident::of(&memory, seconds),
            device: devices(side, BenchTarget::Pipeline),
            errors: self.errors,
        }
    }
}

fn rate(seconds: f64, duration: Duration) -> f64 {
    seconds / duration.as_secs_f64().max(1e-9)
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
