//! Models on ONNX Runtime: sessions, execution providers, batching. The only crate that knows `ort`.

pub mod config;
pub mod embedding;
pub mod engine;
pub mod manifest;
pub mod report;

pub use config::{Config, GpuBackend, Operation, PerformanceMode};
pub use embedding::Embedding;
pub use engine::{DetectorInfo, EmbedderInfo, Engine, Lane, RunError, StartError};
pub use manifest::{Manifest, ModelFile, ModelKind, Pack, ResolvedPack};
pub use report::{DeviceReport, OperationReport};
