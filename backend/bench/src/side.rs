//! Defines the targets, the sides and the process of a measurement. Reads the engine's counters
//! during a measurement: runs on devices, and requests that fell back to the CPU.
use inference::Operation;
use metrics_exporter_prometheus::PrometheusHandle;
use pipeline::Analyzer;
use serde::Serialize;
use std::collections::BTreeMap;

/// The target of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchTarget {
    Operation(Operation),
    /// The whole pipeline, from bytes to embeddings.
    Pipeline,
}

impl BenchTarget {
    /// All targets, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::Operation(Operation::FaceDetection),
        Self::Operation(Operation::FaceEmbedding),
        Self::Operation(Operation::ImageProcessing),
        Self::Operation(Operation::ImageEnhancement),
        Self::Operation(Operation::QualityChecks),
        Self::Pipeline,
    ];

    /// Returns the name in snake_case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operation(operation) => operation.name(),
            Self::Pipeline => "pipeline",
        }
    }

    /// Returns the operations whose devices the target uses. The measured operation comes first.
    pub fn operations(self) -> &'static [Operation] {
        use Operation::{FaceDetection, FaceEmbedding, ImageEnhancement, ImageProcessing, QualityChecks};
        match self {
            Self::Operation(FaceDetection) => &[FaceDetection, ImageProcessing],
            Self::Operation(FaceEmbedding) => &[FaceEmbedding],
            Self::Operation(ImageProcessing) => &[ImageProcessing],
            Self::Operation(ImageEnhancement) => &[ImageEnhancement],
            Self::Operation(QualityChecks) => &[QualityChecks],
            Self::Pipeline => &[FaceDetection, FaceEmbedding, ImageProcessing],
        }
    }

    /// Returns the unit of the counts: `picture`, or `face` if the inputs are chips.
    pub fn unit(self) -> &'static str {
        if self == Self::Operation(Operation::FaceEmbedding) { "face" } else { "picture" }
    }
}

/// One way to run the work, with a separate engine.
#[derive(Clone)]
pub struct Side {
    /// Whether GPUs were requested for the engine.
    pub gpu: bool,
    pub analyzer: Analyzer,
}

impl Side {
    /// Returns the key of this side in the report.
    pub fn key(&self) -> &'static str {
        if self.gpu { "gpu_true" } else { "gpu_false" }
    }
}

/// The device of an operation.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// The requested device: `cpu`, `cuda`, `auto`, …
    #[serde(rename = "asked")]
    pub requested: String,
    /// The device that does the work: `cpu`, `cuda:0`, …
    pub effective: String,
    /// The reason why the two devices differ.
    pub reason: Option<String>,
    /// Whether a GPU was requested and the CPU does the work.
    pub fell_back: bool,
}

pub(crate) fn devices(side: &Side, target: BenchTarget) -> BTreeMap<&'static str, Device> {
    let operations = side.analyzer.engine().operations();
    let devices = target.operations().iter().filter_map(|operation| {
        let report = operations.iter().find(|report| report.operation == operation.name())?;
        let device = Device {
            requested: report.requested.clone(),
            effective: report.effective.clone(),
            reason: report.reason.clone(),
            fell_back: report.gpu_requested && report.effective == "cpu",
        };
        Some((operation.name(), device))
    });
    devices.collect()
}

/// The process that runs the measurements.
#[derive(Clone, Debug)]
pub struct Process {
    /// Number of cores that the process may use.
    pub cores: usize,
    /// Returns the CPU time of all threads in seconds, or `None` if the system does not report it.
    pub cpu_seconds: fn() -> Option<f64>,
    /// Returns the CPU time of ended child processes in seconds, or `None` if the system does not
    /// report it.
    pub children_cpu_seconds: fn() -> Option<f64>,
    pub counters: Counters,
}

/// The process's metrics, if they are recorded.
#[derive(Clone, Default)]
pub struct Counters {
    handle: Option<PrometheusHandle>,
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counters").field("recorded", &self.handle.is_some()).finish()
    }
}

/// The counts per operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Number of runs, and number of requests in these runs.
    pub(crate) runs: BTreeMap<String, (f64, f64)>,
    /// Number of requests that ran on the CPU instead of the device.
    pub(crate) fallbacks: f64,
}

impl Counters {
    pub fn new(handle: PrometheusHandle) -> Self {
        Self { handle: Some(handle) }
    }

    pub(crate) fn read(&self) -> Counts {
        self.handle.as_ref().map(|handle| parse_counts(&handle.render())).unwrap_or_default()
    }
}

impl Counts {
    /// Returns the increase from `self` to `later`.
    pub(crate) fn increase_to(&self, later: &Self) -> Self {
        let runs = later.runs.iter().map(|(operation, (runs, requests))| {
            let (old_runs, old_requests) = self.runs.get(operation).copied().unwrap_or_default();
            (operation.clone(), (runs - old_runs, requests - old_requests))
        });
        Self { runs: runs.collect(), fallbacks: later.fallbacks - self.fallbacks }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (operation, (runs, requests)) in &other.runs {
            let total = self.runs.entry(operation.clone()).or_default();
            *total = (total.0 + runs, total.1 + requests);
        }
        self.fallbacks += other.fallbacks;
    }

    /// Returns the mean number of requests per run, for the operations that ran.
    pub(crate) fn mean_batch(&self) -> BTreeMap<String, f64> {
        let ran = self.runs.iter().filter(|(_, (runs, _))| *runs > 0.0);
        ran.map(|(operation, (runs, requests))| (operation.clone(), requests / runs)).collect()
    }
}

/// Parses the text format of Prometheus.
fn parse_counts(text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let operation = || {
            let rest = labels.split_once("operation=\"")?.1;
            Some(rest.split_once('"')?.0.to_owned())
        };
        match name {
            "facecrawl_ep_fallback_total" => counts.fallbacks += value,
            "facecrawl_inference_batch_size_count" => {
                if let Some(operation) = operation() {
                    counts.runs.entry(operation).or_default().0 += value;
                }
            }
            "facecrawl_inference_batch_size_sum" => {
                if let Some(operation) = operation() {
                    counts.runs.entry(operation).or_default().1 += value;
                }
            }
            _ => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_counts_from_rendered_metrics() {
        let recorder = server::telemetry::prometheus().expect("buckets").build_recorder();
        let counters = Counters::new(recorder.handle());
        let before = metrics::with_local_recorder(&recorder, || {
            metrics::histogram!("facecrawl_inference_batch_size", "operation" => "face_detection")
                .record(4.0);
            counters.read()
        });
        metrics::with_local_recorder(&recorder, || {
            for size in [8.0, 2.0] {
                metrics::histogram!("facecrawl_inference_batch_size", "operation" => "face_detection")
                    .record(size);
            }
            metrics::counter!("facecrawl_ep_fallback_total", "operation" => "face_detection", "provider" => "cuda")
                .increment(3);
        });
        let counts = before.increase_to(&counters.read());
        assert_eq!(counts.mean_batch(), BTreeMap::from([("face_detection".to_owned(), 5.0)]));
        assert_eq!(counts.fallbacks, 3.0);
    }
}
