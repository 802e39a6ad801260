//! Runs the models on ONNX Runtime: sessions, execution providers, batching. This is the only crate
//! that depends on `ort`.
//!
//! [`Engine::start`] takes a [`ResolvedPack`]: the model files on disk that a [`Manifest`]
//! describes. Each model has a [`batcher::Batcher`]: one bounded queue, and one thread per
//! [`backend::Backend`] (a session on a device) that takes requests from the queue. A
//! [`models::Model`] defines how inputs become tensors and what the outputs mean; it does not
//! depend on the runtime.

pub mod backend;
pub mod batcher;
pub mod config;
pub mod devices;
pub mod drawing;
pub mod embedding;
pub mod engine;
pub mod ep;
mod error;
pub mod fair_queue;
pub mod graphs;
pub mod manifest;
pub mod models;
pub mod onnx;
pub mod pixels;
mod preload;
pub mod report;
pub mod runtime;
pub mod tensorrt;
pub mod trace;
mod unavailable;

pub use batcher::{Priority, Timed};
pub use config::{Config, CpuBackend, DetectionCanvas, GpuBackend, Operation, PerformanceMode, Precision};
pub use config::{StandIn, TensorrtConfig};
pub use devices::GpuDevice;
pub use embedding::Embedding;
pub use engine::{BuiltEngine, build_engines, fp32_model};
pub use engine::{Detector, DetectorInfo, EmbedderInfo, Engine, ScorerInfo};
pub use engine::{DeviceFailure, VIDEO_DECODING, VideoPlacement, no_video_decoding, place_video_decoding};
pub use engine::{DeviceTest, SelfTest, TestOutcome, self_test};
pub use error::{RunError, StartError};
pub use fair_queue::{FairQueue, Requester};
pub use manifest::{Manifest, ModelFamily, ModelFile, ModelKind, OWN_MANIFEST, Pack, ResolvedPack, Wheel};
pub use report::{BatchRun, DeviceReport, LoadedModel, OperationReport, ProviderReport};
pub use unavailable::{Refusal, Unavailable, UnavailableKind, gpu_runtime};
