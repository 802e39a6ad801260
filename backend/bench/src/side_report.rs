//! Runs the work in rounds, adds up their results, and computes the figures of one operation and
//! size on the CPU or the GPU. Finds the bottleneck.
use crate::side::{Counts, devices};
use crate::{BenchTarget, Device, ImageSize, Side, Spread};
use futures::{StreamExt, stream};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The results by operation, size and side.
pub type Results = BTreeMap<String, BTreeMap<String, BTreeMap<String, SideReport>>>;

/// Returns the results of every operation, size and side in the order of the documentation.
pub fn sorted_reports(results: &Results) -> Vec<(&str, &str, &str, &SideReport)> {
    let rank = |names: &[&str], name: &str| names.iter().position(|n| *n == name).unwrap_or(names.len());
    let operations = BenchTarget::ALL.map(BenchTarget::name);
    let sizes = ImageSize::ALL.map(ImageSize::name);
    let mut reports = Vec::new();
    for (operation, sizes) in results {
        for (size, sides) in sizes {
            reports.extend(
                sides.iter().map(|(side, report)| (operation.as_str(), size.as_str(), side.as_str(), report)),
            );
        }
    }
    reports
        .sort_by_key(|(operation, size, side, _)| (rank(&operations, operation), rank(&sizes, size), *side));
    reports
}

/// Results of one operation and size on the CPU or the GPU.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SideReport {
    /// Milliseconds per image: wall time divided by the number of images, with `batch_size` in
    /// flight. `null` if every image failed.
    pub mean_time_ms: Option<f64>,
    /// Images per second, 1000 / `mean_time_ms`.
    pub mean_throughput: f64,
    /// Share of images without an error, from 0 to 1.
    pub success_rate: f64,
    /// Median of the milliseconds per image, over the iterations. The next four fields describe the
    /// same values.
    pub median_time_ms: Option<f64>,
    pub p95_time_ms: Option<f64>,
    pub min_time_ms: Option<f64>,
    pub max_time_ms: Option<f64>,
    pub stdev_time_ms: Option<f64>,
    /// Time from call to result, per image.
    pub latency_ms: Option<Spread>,
    /// The unit of `images`: `picture`, or `face` for `face_embedding`.
    pub unit: &'static str,
    /// Number of images that were measured without an error.
    pub images: usize,
    pub failed: usize,
    /// Number of failures by reason.
    pub errors: BTreeMap<String, usize>,
    /// Number of faces that were found or embedded.
    pub faces: usize,
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
    /// The device of each operation that this measurement uses.
    pub device: BTreeMap<&'static str, Device>,
    /// How many of the operations run on a GPU: `all`, `some` or `none`.
    pub on_gpu: &'static str,
    /// Whether a GPU was requested and the CPU did all or a part of the work.
    pub fell_back: bool,
    /// Number of requests that ran on the CPU because a run on the device failed.
    pub runtime_fallbacks: u64,
    pub bottleneck: Option<Bottleneck>,
}

/// The result of one image.
pub(crate) struct Sample {
    /// Time from call to result.
    pub(crate) duration: Duration,
    pub(crate) faces: usize,
    pub(crate) stages: BTreeMap<&'static str, Duration>,
}

/// The results of one round in order of completion, each with the time since the start of the
/// round.
pub(crate) struct Round {
    results: Vec<(Duration, Result<Sample, String>)>,
    wall: Duration,
    /// CPU seconds, if the system reports them.
    cpu: Option<f64>,
}

/// Calls `run_once` with 0, 1, …, `count` - 1, and runs `in_flight` of the calls concurrently.
/// `cpu_seconds` returns the CPU time of the process, if the system reports it.
pub(crate) async fn run_round<F>(
    run_once: impl Fn(usize) -> F,
    count: usize,
    in_flight: usize,
    cpu_seconds: fn() -> Option<f64>,
) -> Round
where
    F: Future<Output = Result<Sample, String>>,
{
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let mut running = stream::iter((0..count).map(run_once)).buffer_unordered(in_flight);
    let mut results = Vec::with_capacity(count);
    while let Some(result) = running.next().await {
        results.push((started.elapsed(), result));
    }
    let cpu = cpu_seconds().zip(cpu).map(|(after, before)| after - before);
    Round { results, wall: started.elapsed(), cpu }
}

/// The totals of all rounds on the CPU or the GPU.
#[derive(Default)]
pub(crate) struct Totals {
    /// Milliseconds per image, one value per iteration.
    per_image: Vec<f64>,
    /// Milliseconds from call to result, one value per image.
    latencies: Vec<f64>,
    pub(crate) failed: usize,
    pub(crate) errors: BTreeMap<String, usize>,
    pub(crate) faces: usize,
    pub(crate) stages: BTreeMap<&'static str, Duration>,
    pub(crate) wall: Duration,
    /// CPU seconds; `None` if the system does not report them.
    pub(crate) cpu: Option<f64>,
    pub(crate) counts: Counts,
}

impl Totals {
    /// Adds a round. An iteration consists of `batch` consecutive results and lasts from the last
    /// result of the previous iteration to its own last result. The images in flight stay constant,
    /// so there is no pause between iterations.
    pub(crate) fn add(&mut self, round: Round, batch: usize, counts: &Counts) {
        self.wall += round.wall;
        self.cpu = round.cpu.map(|seconds| self.cpu.unwrap_or(0.0) + seconds);
        self.counts.add(counts);
        let mut start = Duration::ZERO;
        for iteration in round.results.chunks(batch.max(1)) {
            let end = iteration.last().map_or(start, |(at, _)| *at);
            let succeeded = iteration.iter().filter(|(_, result)| result.is_ok()).count();
            if succeeded > 0 {
                self.per_image.push(milliseconds(end.saturating_sub(start)) / succeeded as f64);
            }
            start = end;
        }
        for (_, result) in round.results {
            match result {
                Ok(sample) => self.add_sample(&sample),
                Err(reason) => {
                    self.failed += 1;
                    *self.errors.entry(reason).or_default() += 1;
                }
            }
        }
    }

    fn add_sample(&mut self, sample: &Sample) {
        self.latencies.push(milliseconds(sample.duration));
        self.faces += sample.faces;
        for (stage, duration) in &sample.stages {
            *self.stages.entry(stage).or_default() += *duration;
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Totals {
    /// Computes the report. `in_flight` is the number of concurrent images, and `cores` is the
    /// number of cores that the process may use.
    pub(crate) fn report(
        self,
        side: &Side,
        target: BenchTarget,
        in_flight: usize,
        cores: usize,
    ) -> SideReport {
        let succeeded = self.latencies.len();
        let total = succeeded + self.failed;
        let wall = self.wall.as_secs_f64();
        let per_second = |count: usize| if wall > 0.0 { count as f64 / wall } else { 0.0 };
        let per_image = |total: f64| (succeeded > 0).then(|| total / succeeded as f64);
        let times = Spread::of(&self.per_image);
        let stages: BTreeMap<&'static str, f64> = self
            .stages
            .iter()
            .filter_map(|(stage, total)| Some((*stage, per_image(milliseconds(*total))?)))
            .collect();
        let cores_used = self.cpu.filter(|_| wall > 0.0).map(|seconds| seconds / wall);

        let device = devices(side, target);
        let on_gpu_count = device.values().filter(|device| device.effective != "cpu").count();
        let on_gpu = match on_gpu_count {
            0 => "none",
            some if some == device.len() => "all",
            _ => "some",
        };
        let bottleneck = find_bottleneck(&stages, &device, cores, cores_used, in_flight);
        SideReport {
            mean_time_ms: per_image(milliseconds(self.wall)),
            mean_throughput: per_second(succeeded),
            success_rate: if total > 0 { succeeded as f64 / total as f64 } else { 0.0 },
            median_time_ms: times.map(|t| t.median),
            p95_time_ms: times.map(|t| t.p95),
            min_time_ms: times.map(|t| t.min),
            max_time_ms: times.map(|t| t.max),
            stdev_time_ms: times.map(|t| t.stdev),
            latency_ms: Spread::of(&self.latencies),
            unit: target.unit(),
            images: succeeded,
            failed: self.failed,
            errors: self.errors,
            faces: self.faces,
            faces_per_second: per_second(self.faces),
            stages,
            cpu_ms_per_image: self.cpu.and_then(|seconds| per_image(seconds * 1e3)),
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

/// Share of used cores above which the CPU is considered saturated.
const BUSY_CORE_SHARE: f64 = 0.85;
/// Wait share (for a thread or session) above which workers are considered saturated.
const SATURATED_WAIT_SHARE: f64 = 0.1;

/// The resource and the stage that limit the throughput.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bottleneck {
    /// `cpu`, `gpu`, or `concurrency` (nothing is saturated; more images could be in flight).
    pub resource: &'static str,
    /// The stage with the largest share of the work.
    pub stage: &'static str,
    /// The stage's share of the time of all stages except `queue`, from 0 to 1.
    pub share: f64,
    pub why: String,
}

/// Returns the bottleneck, or `None` if nothing was measured. `stages` contains the milliseconds
/// per image and stage; the stage `queue` is the waiting time. `device` is the device of each
/// operation. `cores` and `in_flight` are those of [`Totals::report`], and `cores_used` is the CPU
/// time divided by the wall time, if the system reports it.
fn find_bottleneck(
    stages: &BTreeMap<&'static str, f64>,
    device: &BTreeMap<&'static str, Device>,
    cores: usize,
    cores_used: Option<f64>,
    in_flight: usize,
) -> Option<Bottleneck> {
    let working = || stages.iter().filter(|(stage, _)| **stage != "queue");
    let work: f64 = working().map(|(_, duration)| duration).sum();
    let (stage, duration) = working().max_by(|a, b| a.1.total_cmp(b.1))?;
    if work <= 0.0 {
        return None;
    }
    let share = duration / work;
    let percent = format!("{stage} is {:.0} % of the work", share * 100.0);
    let core_use = cores_used.map_or_else(
        || format!("an unknown part of {cores} cores"),
        |used| format!("{used:.1} of {cores} cores"),
    );
    let waiting = stages.get("queue").copied().unwrap_or(0.0);
    let gpu = gpu_of_stage(stage, device);
    let is_saturated = cores_used.is_some_and(|used| used >= BUSY_CORE_SHARE * cores as f64);
    let is_queued = waiting > SATURATED_WAIT_SHARE * (work + waiting);

    let (resource, why) = if let Some(gpu) = gpu.filter(|_| !is_saturated) {
        let more = if is_queued { "" } else { "; more images in flight may fill larger batches" };
        ("gpu", format!("{percent}, on {gpu}, while {core_use} are busy{more}"))
    } else if is_saturated {
        ("cpu", format!("{core_use} are busy; {percent}"))
    } else if is_queued && in_flight >= cores {
        (
            "cpu",
            format!(
                "images wait for a thread or a session, but only {core_use} are available (other processes use the rest); {percent}"
            ),
        )
    } else {
        ("concurrency", format!("only {core_use} are busy with {in_flight} in flight; {percent}"))
    };
    Some(Bottleneck { resource, stage, share, why })
}

/// Returns the GPU on which a stage runs, or `None` if it runs on the CPU.
fn gpu_of_stage<'a>(stage: &str, device: &'a BTreeMap<&'static str, Device>) -> Option<&'a str> {
    let operation = match stage {
        "detect" => "face_detection",
        "embed" => "face_embedding",
        "letterbox" => "image_processing",
        "enhance" => "image_enhancement",
        "quality" => "quality_checks",
        _ => return None,
    };
    let effective = device.get(operation)?.effective.as_str();
    (effective != "cpu").then_some(effective)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn bottleneck_of(
        stages: &[(&'static str, f64)],
        detection: &str,
        cores_used: f64,
        in_flight: usize,
    ) -> Option<Bottleneck> {
        let detector_device = Device {
            requested: detection.into(),
            effective: detection.into(),
            reason: None,
            fell_back: false,
        };
        let device = BTreeMap::from([("face_detection", detector_device)]);
        find_bottleneck(&stages.iter().copied().collect(), &device, 4, Some(cores_used), in_flight)
    }

    #[test]
    fn bottleneck_is_busy_resource_with_largest_stage() {
        let stages = [("decode", 10.0), ("detect", 30.0), ("queue", 100.0)];
        let busy = bottleneck_of(&stages, "cpu", 3.9, 8).expect("a bottleneck");
        assert_eq!((busy.resource, busy.stage, busy.share), ("cpu", "detect", 0.75));
        assert!(busy.why.contains("3.9 of 4 cores are busy") && busy.why.contains("75 %"), "{}", busy.why);
        let gpu = bottleneck_of(&stages, "cuda:0", 1.0, 8).expect("a bottleneck");
        assert!(gpu.resource == "gpu" && gpu.why.contains("cuda:0"), "{gpu:?}");
        let host =
            bottleneck_of(&[("decode", 30.0), ("detect", 3.0)], "cuda:0", 3.9, 8).expect("a bottleneck");
        assert_eq!(
            (host.resource, host.stage),
            ("cpu", "decode"),
            "a GPU that waits for pixels is not the bottleneck"
        );
    }

    #[test]
    fn idle_cores_mean_low_concurrency_unless_images_queue() {
        let idle = bottleneck_of(&[("detect", 30.0), ("queue", 0.1)], "cpu", 1.0, 1).expect("a bottleneck");
        assert!(idle.resource == "concurrency" && idle.why.contains("1 in flight"), "{idle:?}");
        let contended =
            bottleneck_of(&[("detect", 30.0), ("queue", 60.0)], "cpu", 1.0, 8).expect("a bottleneck");
        assert!(contended.resource == "cpu" && contended.why.contains("other processes"), "{contended:?}");
        assert_eq!(bottleneck_of(&[("queue", 1.0)], "cpu", 1.0, 8), None);
    }

    fn sample() -> Sample {
        Sample {
            duration: Duration::from_millis(7),
            faces: 2,
            stages: BTreeMap::from([("detect", Duration::from_millis(5))]),
        }
    }

    #[tokio::test]
    async fn round_keeps_fixed_number_of_requests_in_flight() {
        let (current, max) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let run_once = |_| async {
            max.fetch_max(current.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            current.fetch_sub(1, Ordering::SeqCst);
            Ok(sample())
        };
        assert_eq!(run_round(run_once, 20, 4, || None).await.results.len(), 20);
        assert_eq!(max.load(Ordering::SeqCst), 4);
    }

    #[test]
    fn iteration_starts_at_last_result_of_previous_iteration() {
        let at =
            |ms, ok: bool| (Duration::from_millis(ms), if ok { Ok(sample()) } else { Err("no".to_owned()) });
        let results =
            vec![at(10, true), at(20, true), at(25, true), at(50, false), at(51, false), at(60, false)];
        let round = Round { results, wall: Duration::from_millis(60), cpu: Some(0.1) };
        let mut totals = Totals::default();
        totals.add(round, 2, &Counts::default());
        assert_eq!(
            totals.per_image,
            [10.0, 30.0],
            "failures count neither as images nor as separate iterations"
        );
        assert_eq!((totals.latencies.len(), totals.failed, totals.faces), (3, 3, 6));
        assert_eq!(totals.errors["no"], 3);
        assert_eq!(totals.stages["detect"], Duration::from_millis(15));
    }
}
