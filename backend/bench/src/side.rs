//! Defines the sides of a measurement: an engine on the CPU and one on a GPU.
use pipeline::Analyzer;

/// One way to run the work, with a separate engine.
#[derive(Clone)]
pub struct Side {
    /// Whether GPUs were requested for the engine.
    pub gpu: bool,
    /// The pipeline of this side.
    pub analyzer: Analyzer,
}

impl Side {
    /// Returns the key of this side in the report.
    pub fn key(&self) -> &'static str {
        if self.gpu { "gpu_true" } else { "gpu_false" }
    }
}
