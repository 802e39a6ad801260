//! Decodes the frames of a sampling with and without an analysis, and collects the runs. Also
//! measures the CPU time and the resident memory of this process and of the decoder's process.
use crate::{Process, Spread};
use anyhow::Context;
use inference::Priority;
use pipeline::{Analyzer, FrameFaces, VideoAnalysis, VideoAnalyzer, VideoOptions, VideoProgress};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use video::{Decoder, Index, VideoError, sampling};

/// The result of decoding all frames once.
pub(super) struct Decoded {
    /// Time for the list of keyframes and all frames.
    pub(super) duration: Duration,
    pub(super) usage: Usage,
}

/// Decodes the frames with the same calls as the analysis. The pixels of each frame are read from
/// the decoder's process, and nothing else happens to them. Fails if no frame can be decoded.
pub(super) async fn decode(
    file: File,
    decoder: &Decoder,
    options: &VideoOptions,
    process: &Process,
) -> anyhow::Result<Decoded> {
    let (decoder, options) = (decoder.clone(), options.clone());
    let monitor = Arc::new(UsageMonitor::start(process)?);
    let position_monitor = monitor.clone();
    // The decoder ends with its thread, so everything happens on one thread.
    let read = move || read_all(&decoder, &file, &options, &position_monitor);
    let frames = tokio::task::spawn_blocking(read).await??;
    let monitor = Arc::into_inner(monitor).context("the reader still runs")?;
    let (duration, usage) = monitor.stop();
    anyhow::ensure!(frames > 0, "the video has no frame that could be decoded");
    Ok(Decoded { duration, usage })
}

fn read_all(
    decoder: &Decoder,
    file: &File,
    options: &VideoOptions,
    monitor: &UsageMonitor,
) -> Result<u64, VideoError> {
    let index = decoder.index(file)?;
    let mut count = 0;
    for segment in sampling::plan(&index, options.sampling, options.max_gap_us) {
        let mut frames = decoder.frames(file, &index, &segment)?;
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => {
                    count += 1;
                    monitor.set_position(frame.at_us);
                    frames.recycle(frame.frame);
                }
                Ok(None) => break,
                // A damaged video is used as far as it can be read, as in an analysis.
                Err(_) if count > 0 => return Ok(count),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(count)
}

/// An analysis that succeeded.
pub(super) struct Run {
    pub(super) duration: Duration,
    pub(super) usage: Usage,
    pub(super) analysis: VideoAnalysis,
    /// Time of the last frame that was analysed, in microseconds.
    last_us: i64,
    /// Number of faces in all frames.
    pub(super) faces: u64,
    /// Time for decoding alone in the same round.
    pub(super) decoding: Duration,
}

#[derive(Default)]
pub(super) struct SideRuns {
    pub(super) runs: Vec<Run>,
    pub(super) errors: BTreeMap<String, usize>,
}

/// All runs of one sampling.
pub(super) struct Runs {
    pub(super) decoded: Vec<Decoded>,
    pub(super) sides: Vec<SideRuns>,
}

impl Runs {
    pub(super) fn new(sides: usize) -> Self {
        Self { decoded: Vec::new(), sides: (0..sides).map(|_| SideRuns::default()).collect() }
    }

    /// Adds an analysis of the side with this number. `decoded` belongs to the same round.
    pub(super) fn add(&mut self, side: usize, analyzed: anyhow::Result<Run>, decoded: &Decoded) {
        match analyzed {
            Ok(run) => self.sides[side].runs.push(Run { decoding: decoded.duration, ..run }),
            Err(error) => *self.sides[side].errors.entry(format!("{error:#}")).or_default() += 1,
        }
    }
}

/// Analyses the whole file once.
pub(super) async fn analyze(
    analyzer: &Analyzer,
    file: File,
    decoder: &Decoder,
    options: &VideoOptions,
    process: &Process,
) -> anyhow::Result<Run> {
    let monitor = UsageMonitor::start(process)?;
    let mut reporter = PositionReporter { monitor: &monitor, last_us: 0, faces: 0 };
    let video = VideoAnalyzer { analyzer, decoder, options, priority: Priority::Background };
    let analyzed = video.analyze(file, &mut reporter).await;
    let (last_us, faces) = (reporter.last_us, reporter.faces);
    // If the analysis failed, this also ends the thread that takes the samples.
    let (duration, usage) = monitor.stop();
    Ok(Run { duration, usage, analysis: analyzed?, last_us, faces, decoding: Duration::ZERO })
}

/// Reports the position of the analysis to the monitor.
struct PositionReporter<'a> {
    monitor: &'a UsageMonitor,
    last_us: i64,
    faces: u64,
}

impl VideoProgress for PositionReporter<'_> {
    fn on_open(&mut self, _: &Index) {}

    fn on_frame(&mut self, frame: FrameFaces<'_>) {
        self.last_us = frame.at_us;
        self.faces += frame.faces.len() as u64;
        self.monitor.set_position(frame.at_us);
    }
}

/// Returns the length of the video in seconds. If the file does not report it, returns the time of
/// the last analysed frame.
pub(super) fn video_seconds(index: &Index, measured: &[Runs]) -> f64 {
    let runs = measured.iter().flat_map(|runs| &runs.sides).flat_map(|side| &side.runs);
    let last_us = runs.map(|run| run.last_us).max().unwrap_or(0);
    index.duration_us.unwrap_or(last_us) as f64 / 1e6
}

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Usage {
    /// CPU seconds of this process, if the system reports them.
    pub(super) service: Option<f64>,
    /// CPU seconds of the decoder's processes.
    pub(super) decoder: Option<f64>,
    /// CPU seconds by the part of the work that a thread does.
    pub(super) parts: BTreeMap<&'static str, f64>,
    /// The memory at several times; empty if the system does not report it.
    pub(super) memory: Vec<MemorySample>,
}

struct UsageMonitor {
    position_us: Arc<AtomicI64>,
    should_stop: Arc<AtomicBool>,
    sampler: JoinHandle<(Vec<MemorySample>, BTreeMap<&'static str, f64>)>,
    started: Instant,
    service: Option<f64>,
    decoder: Option<f64>,
    process: Process,
}

impl UsageMonitor {
    /// Starts to measure. Fails if no thread can be started.
    pub(super) fn start(process: &Process) -> io::Result<Self> {
        let (position_us, should_stop) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
        let (position, thread_should_stop) = (position_us.clone(), should_stop.clone());
        let sampler = std::thread::Builder::new().name("watch".into()).spawn(move || {
            let mut threads = ThreadTimes::start();
            let mut memory = Vec::new();
            loop {
                let stop = thread_should_stop.load(Ordering::Relaxed);
                threads.sample();
                if let Some(service) = own_resident_bytes() {
                    let at_us = position.load(Ordering::Relaxed);
                    memory.push(MemorySample { at_us, service, decoder: children_resident_bytes() });
                }
                if stop {
                    return (memory, threads.parts());
                }
                std::thread::park_timeout(SAMPLE_INTERVAL);
            }
        })?;
        Ok(Self {
            position_us,
            should_stop,
            sampler,
            started: Instant::now(),
            service: (process.cpu_seconds)(),
            decoder: (process.children_cpu_seconds)(),
            process: process.clone(),
        })
    }

    /// Sets the position in the video in microseconds, to which later samples belong.
    pub(super) fn set_position(&self, position_us: i64) {
        self.position_us.store(position_us, Ordering::Relaxed);
    }

    /// Ends the measurement. Returns the time since the start, and the usage.
    fn stop(self) -> (Duration, Usage) {
        let duration = self.started.elapsed();
        let since = |start: Option<f64>, end: Option<f64>| end.zip(start).map(|(end, start)| end - start);
        let service = since(self.service, (self.process.cpu_seconds)());
        let decoder = since(self.decoder, (self.process.children_cpu_seconds)());
        self.should_stop.store(true, Ordering::Relaxed);
        self.sampler.thread().unpark();
        let (memory, parts) = self.sampler.join().unwrap_or_default();
        (duration, Usage { service, decoder, parts, memory })
    }
}

/// Number of equal parts of the video for which memory is reported.
const TENTHS: usize = 10;

/// The resident memory at one time, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemorySample {
    /// Position in the video in microseconds.
    at_us: i64,
    /// Memory of this process.
    pub(super) service: u64,
    /// Memory of the decoder's processes.
    pub(super) decoder: u64,
}

/// The resident memory during the analyses, in bytes, from samples every 0.2 s.
#[derive(Clone, Debug, Serialize)]
pub struct Resident {
    /// Maximum of this process.
    pub peak_service: u64,
    /// Maximum of the decoder's process; `null` if it ended before the first sample.
    pub peak_decoder: Option<u64>,
    /// Maximum of the sum of both. Pages that both use count twice.
    pub peak_together: u64,
    /// The sum of both in each tenth of the video; `null` for a part without a sample.
    pub tenths: Vec<Option<Part>>,
}

/// The resident memory during a part of the video, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Part {
    pub min: u64,
    pub median: u64,
    pub max: u64,
}

impl Resident {
    /// Summarises samples of a video of `seconds`. Returns `None` without samples.
    pub(super) fn of(samples: &[MemorySample], seconds: f64) -> Option<Self> {
        let sum = |sample: &MemorySample| sample.service + sample.decoder;
        let part = |number: usize| {
            let within = |sample: &&MemorySample| {
                let share = sample.at_us as f64 / (seconds * 1e6).max(1.0);
                ((share * TENTHS as f64) as usize).min(TENTHS - 1) == number
            };
            let values: Vec<f64> = samples.iter().filter(within).map(|sample| sum(sample) as f64).collect();
            let spread = Spread::of(&values)?;
            Some(Part { min: spread.min as u64, median: spread.median as u64, max: spread.max as u64 })
        };
        Some(Self {
            peak_service: samples.iter().map(|sample| sample.service).max()?,
            peak_decoder: samples.iter().map(|sample| sample.decoder).max().filter(|bytes| *bytes > 0),
            peak_together: samples.iter().map(sum).max()?,
            tenths: (0..TENTHS).map(part).collect(),
        })
    }
}

/// Returns the resident memory of this process, or `None` if there is no `/proc`.
fn own_resident_bytes() -> Option<u64> {
    resident_bytes("self")
}

/// Returns the resident memory of the child processes. A child that still runs this program is not
/// counted, because it shares the memory of its parent until it executes another program.
fn children_resident_bytes() -> u64 {
    let own_program = executable_path("self");
    let is_other_program = |process: &&str| own_program.is_none() || executable_path(process) != own_program;
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    children
        .map(|list| list.split_whitespace().filter(is_other_program).filter_map(resident_bytes).sum::<u64>())
        .sum()
}

fn executable_path(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/exe")).ok()
}

fn resident_bytes(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Prefixes of the names of threads, and the part of the work that these threads do.
const PARTS: [(&str, &str); 3] =
    [("video", "read"), ("face_detection", "detect"), ("face_embedding", "embed")];
/// The part of the other threads: canvases, chips, quality, tracks.
const OTHER: &str = "other";

/// The CPU time of threads since a start. A thread that has ended counts until its last sample.
struct ThreadTimes {
    /// Nanoseconds by the number of the thread.
    before: HashMap<String, u64>,
    /// Name and nanoseconds by the number of the thread.
    latest: HashMap<String, (String, u64)>,
}

impl ThreadTimes {
    pub(super) fn start() -> Self {
        let before = read_threads().map(|(number, _, time)| (number, time)).collect();
        Self { before, latest: HashMap::new() }
    }

    pub(super) fn sample(&mut self) {
        self.latest.extend(read_threads().map(|(number, name, time)| (number, (name, time))));
    }

    /// Returns the seconds by part; empty if the system does not report them.
    pub(super) fn parts(&self) -> BTreeMap<&'static str, f64> {
        let mut parts = BTreeMap::new();
        for (number, (name, time)) in &self.latest {
            let before = self.before.get(number).copied().unwrap_or(0);
            *parts.entry(part_of_thread(name)).or_default() += time.saturating_sub(before) as f64 / 1e9;
        }
        parts
    }
}

fn part_of_thread(name: &str) -> &'static str {
    PARTS.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or(OTHER, |(_, part)| part)
}

/// Returns number, name and CPU time in nanoseconds of every thread.
fn read_threads() -> impl Iterator<Item = (String, String, u64)> {
    let folder = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    folder.filter_map(|entry| {
        let text = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok();
        // The first of three numbers is the time on a CPU:
        // https://docs.kernel.org/scheduler/sched-stats.html
        let time = text("schedstat")?.split_whitespace().next()?.parse().ok()?;
        Some((entry.file_name().into_string().ok()?, text("comm")?, time))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_samples_are_grouped_by_tenth_of_video() {
        let sample = |at_us, service, decoder| MemorySample { at_us, service, decoder };
        let samples =
            [sample(0, 10, 0), sample(900_000, 10, 5), sample(900_001, 30, 1), sample(10_500_000, 20, 5)];
        let resident = Resident::of(&samples, 10.0).expect("samples");
        assert_eq!((resident.peak_service, resident.peak_decoder, resident.peak_together), (30, Some(5), 31));
        assert_eq!(resident.tenths[0], Some(Part { min: 10, median: 15, max: 31 }));
        assert_eq!(resident.tenths[9], Some(Part { min: 25, median: 25, max: 25 }));
        assert_eq!(resident.tenths[4], None);
        assert!(Resident::of(&[], 10.0).is_none());
        let no_decoder = Resident::of(&[sample(0, 10, 0)], 10.0).expect("a sample");
        assert_eq!(no_decoder.peak_decoder, None, "no decoder ran at the time of a sample");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn reads_memory_of_process_and_children() {
        assert!(own_resident_bytes().is_some_and(|bytes| bytes > 100_000));
        let mut child = std::process::Command::new("sleep").arg("30").spawn().expect("a process");
        let started = std::time::Instant::now();
        while children_resident_bytes() < 100_000 {
            assert!(started.elapsed().as_secs() < 20, "the process has no memory");
            std::thread::yield_now();
        }
        child.kill().and_then(|()| child.wait()).expect("the child ends");
    }

    #[test]
    fn thread_name_determines_pipeline_part() {
        let names = ["video\n", "face_detection-\n", "face_embedding-\n", "tokio-rt-worker\n"];
        assert_eq!(names.map(part_of_thread), ["read", "detect", "embed", "other"]);
    }
}
