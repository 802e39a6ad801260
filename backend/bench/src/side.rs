//! What can be measured, on which side, and in which process.
use crate::Counters;
use inference::Operation;
use pipeline::Analyzer;
use serde::Serialize;
use std::collections::BTreeMap;

/// What is measured.
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
    pub fn uses(self) -> &'static [Operation] {
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

    /// Returns what is counted: `picture`, or `face` if the inputs are chips.
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
    pub asked: String,
    /// The device that does the work: `cpu`, `cuda:0`, …
    pub effective: String,
    /// Why the two devices differ.
    pub reason: Option<String>,
    /// Whether a GPU was requested and the CPU does the work.
    pub fell_back: bool,
}

pub(crate) fn devices(side: &Side, target: BenchTarget) -> BTreeMap<&'static str, Device> {
    let all = side.analyzer.engine().operations();
    let used = target.uses().iter().filter_map(|operation| {
        let found = all.iter().find(|report| report.operation == operation.name())?;
        let device = Device {
            asked: found.requested.clone(),
            effective: found.effective.clone(),
            reason: found.reason.clone(),
            fell_back: found.gpu_requested && found.effective == "cpu",
        };
        Some((operation.name(), device))
    });
    used.collect()
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
