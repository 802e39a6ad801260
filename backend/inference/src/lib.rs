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
pub mod engine;
pub mod ep;
mod error;
pub mod fair_queue;
pub mod graphs;
pub mod image_operations;
pub mod manifest;
pub mod models;
pub mod onnx;
mod plugins;
pub mod report;
pub mod runtime;
pub mod tensorrt;
mod unavailable;
mod vulkan;

pub use batcher::{Priority, Timed};
pub use config::{Config, CpuBackend, DetectionCanvas, DeviceId, GpuBackend, Operation};
pub use config::{PerformanceMode, Precision, TensorrtConfig};
pub use devices::GpuDevice;
pub use engine::{BuiltEngine, build_engines};
pub use engine::{Detector, DetectorInfo, EmbedderInfo, Engine, ScorerInfo};
pub use engine::{
    DeviceFailure, VIDEO_DECODING, VideoPlacement, missing_ffmpeg_report, place_video_decoding,
};
pub use engine::{DeviceTest, SelfTest, TestResult, self_test};
pub use error::{RunError, StartError};
pub use fair_queue::{FairQueue, Requester};
pub use manifest::{Manifest, ModelFamily, ModelFile, ModelKind, OWN_MANIFEST, Pack, ResolvedPack, Wheel};
pub use models::Embedding;
pub use onnx::fp32_model;
pub use report::{
    BatchRun, DeviceReport, LoadedModel, OperationReport, PassedOver, ProviderReport, missing_gpu_runtimes,
};
pub use unavailable::{Refusal, Unavailable, UnavailableKind, gpu_runtime_arguments};

pub mod trace {
    //! Targets of the spans that a profile contains. They are `tracing` spans at trace level, so
    //! without a subscriber each costs only a comparison.

    /// Target of spans that include await points: a stage of one image.
    pub const STAGE: &str = "facecrawl::stage";
    /// Target of spans on a single thread: image processing, or a run on a device. A field `label`
    /// replaces the span's name.
    pub const RUN: &str = "facecrawl::run";
}
