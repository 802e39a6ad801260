//! Computes the figures of one operation and size on the CPU or the GPU.
use crate::bottleneck::{Facts, bottleneck};
use crate::rounds::{Tally, milliseconds};
use crate::side::devices;
use crate::{BenchTarget, Bottleneck, Device, ImageSize, Side, Spread};
use serde::Serialize;
use std::collections::BTreeMap;

/// The results by operation, size and side.
pub type Results = BTreeMap<String, BTreeMap<String, BTreeMap<String, SideReport>>>;

/// Returns the results of every operation, size and side in the order of the documentation, not in
/// alphabetical order.
pub fn ordered(results: &Results) -> Vec<(&str, &str, &str, &SideReport)> {
    let rank = |names: &[&str], name: &str| names.iter().position(|n| *n == name).unwrap_or(names.len());
    let operations = BenchTarget::ALL.map(BenchTarget::name);
    let sizes = ImageSize::ALL.map(ImageSize::name);
    let mut all = Vec::new();
    for (operation, of_size) in results {
        for (size, of_side) in of_size {
            all.extend(
                of_side
                    .iter()
                    .map(|(side, report)| (operation.as_str(), size.as_str(), side.as_str(), report)),
            );
        }
    }
    all.sort_by_key(|(operation, size, side, _)| (rank(&operations, operation), rank(&sizes, size), *side));
    all
}

/// Results of one operation and size on the CPU or the GPU.
#[derive(Clone, Debug, Serialize)]
pub struct SideReport {
    /// Milliseconds per image: wall time divided by the number of images, with `batch_size` in
    /// flight. `null` if every image failed.
    pub mean_time_ms: Option<f64>,
    /// Images per second, 1000 / `mean_time_ms`.
    pub mean_throughput: f64,
    /// Share of images without an error, from 0 to 1.
    pub success_rate: f64,
    /// Median of the iterations' milliseconds per image. The next four are of the same values.
    pub median_time_ms: Option<f64>,
    pub p95_time_ms: Option<f64>,
    pub min_time_ms: Option<f64>,
    pub max_time_ms: Option<f64>,
    pub stdev_time_ms: Option<f64>,
    /// Time from call to result, per image.
    pub latency_ms: Option<Spread>,
    /// What `images` counts: `picture`, or `face` for `face_embedding`.
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

impl Tally {
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
        let asked = succeeded + self.failed;
        let wall = self.wall.as_secs_f64();
        let per_second = |count: usize| if wall > 0.0 { count as f64 / wall } else { 0.0 };
        let per_picture = |total: f64| (succeeded > 0).then(|| total / succeeded as f64);
        let times = Spread::of(&self.per_picture);
        let stages: BTreeMap<&'static str, f64> = self
            .stages
            .iter()
            .filter_map(|(stage, total)| Some((*stage, per_picture(milliseconds(*total))?)))
            .collect();
        let cores_used = self.cpu.filter(|_| wall > 0.0).map(|seconds| seconds / wall);

        let device = devices(side, target);
        let placed = device.values().filter(|device| device.effective != "cpu").count();
        let on_gpu = match placed {
            0 => "none",
            some if some == device.len() => "all",
            _ => "some",
        };
        let bottleneck =
            bottleneck(&Facts { stages: &stages, device: &device, cores, cores_used, in_flight });
        SideReport {
            mean_time_ms: per_picture(milliseconds(self.wall)),
            mean_throughput: per_second(succeeded),
            success_rate: if asked > 0 { succeeded as f64 / asked as f64 } else { 0.0 },
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
            cpu_ms_per_image: self.cpu.and_then(|seconds| per_picture(seconds * 1e3)),
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
