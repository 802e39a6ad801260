//! The engine: models loaded once, called from everywhere.
use crate::{Config, DeviceReport, Embedding, ResolvedPack};
use std::sync::Arc;
use std::time::Duration;
use vision::{Detection, Frame};

/// Who waits for the answer; interactive work goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// A person or a caller of the API.
    Interactive,
    /// A crawl or a batch job.
    Background,
}

/// The detector in use.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DetectorInfo {
    /// File name without extension.
    pub name: String,
    /// sha256 of the file, hex.
    pub sha256: String,
    /// Default `min_score`.
    pub min_score: f32,
    /// IoU above which two boxes are one face.
    pub nms_iou: f32,
    /// The only canvas the model takes, if it is fixed; otherwise any multiple of 32.
    pub fixed_size: Option<(u32, u32)>,
}

/// The embedder in use.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EmbedderInfo {
    /// File name without extension.
    pub name: String,
    /// Identity stored with every face: hex sha256 of file hash and preprocessing.
    pub identity: String,
    /// Components of an embedding.
    pub dimensions: usize,
    /// Default similarity from which two faces count as one person.
    pub match_threshold: f32,
}

/// Why the engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The shared library could not be loaded.
    #[error("cannot load ONNX Runtime from {path}: {reason}")]
    Library {
        /// What was tried.
        path: String,
        /// Why it failed.
        reason: String,
    },
    /// A model could not be loaded.
    #[error("cannot load the model {model}: {reason}")]
    Model {
        /// Its file.
        model: String,
        /// Why it failed.
        reason: String,
    },
    /// `FORCE_GPU_ONLY` and an operation that asked for a GPU did not get it.
    #[error("FORCE_GPU_ONLY is set, but {operation} cannot run on {provider}: {reason}")]
    GpuOnly {
        /// The operation.
        operation: &'static str,
        /// The provider asked for.
        provider: String,
        /// Why it failed.
        reason: String,
    },
}

/// Why one request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RunError {
    /// The queue is full; try again after the time.
    #[error("the {operation} queue is full")]
    Overloaded {
        /// Which queue.
        operation: &'static str,
        /// A guess from the queue's length and speed.
        retry_after: Duration,
    },
    /// The model failed.
    #[error("{operation} failed: {reason}")]
    Failed {
        /// Which operation.
        operation: &'static str,
        /// What the runtime said.
        reason: String,
    },
    /// The engine is stopping.
    #[error("the engine is shutting down")]
    Stopped,
}

/// A result with where its time went.
#[derive(Clone, Debug)]
pub struct Timed<T> {
    /// The result.
    pub output: T,
    /// Waiting for a session.
    pub queued: Duration,
    /// Running (preparation of the tensor and decoding of the outputs included).
    pub ran: Duration,
}

/// Loaded models behind queues; cheap to clone.
#[derive(Clone)]
pub struct Engine {
    _inner: Arc<()>,
}

impl Engine {
    /// Loads the library and the pack's models and warms them up. Blocks; call it off the async threads.
    pub fn start(_config: &Config, _pack: &ResolvedPack) -> Result<Self, StartError> {
        todo!()
    }

    /// Faces on `canvas` (sides multiples of 32, or the detector's fixed size) with `det_score >= min_score`, in canvas pixels, after NMS.
    pub async fn detect(
        &self,
        _canvas: Arc<Frame>,
        _min_score: f32,
        _lane: Lane,
    ) -> Result<Timed<Vec<Detection>>, RunError> {
        todo!()
    }

    /// The embedding of an aligned 112x112 chip.
    pub async fn embed(&self, _chip: Arc<Frame>, _lane: Lane) -> Result<Timed<Embedding>, RunError> {
        todo!()
    }

    /// The detector.
    pub fn detector(&self) -> &DetectorInfo {
        todo!()
    }

    /// The embedder.
    pub fn embedder(&self) -> &EmbedderInfo {
        todo!()
    }

    /// What runs where, and why.
    pub fn report(&self) -> DeviceReport {
        todo!()
    }

    /// Whether every operation can still serve; the reason if not.
    pub fn ready(&self) -> Result<(), String> {
        todo!()
    }
}
