//! What can go wrong at start-up and with one request.
use crate::unavailable::Refusal;
use std::time::Duration;

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
    /// TensorRT engines were asked for and cannot be built.
    #[error("cannot build TensorRT engines: {reason}")]
    NoTensorrt {
        /// What is missing.
        reason: String,
    },
    /// `FORCE_GPU_ONLY` and an operation that asked for a GPU did not get it.
    #[error(
        "FORCE_GPU_ONLY is set, but {operation} cannot run on a GPU (GPU_BACKEND={provider})\nreason: {}{}\nwhat to do: {}",
        .refusal.provider(), .refusal.nearest.message(), .refusal.way_out()
    )]
    GpuOnly {
        /// The operation.
        operation: &'static str,
        /// The provider asked for.
        provider: String,
        /// Why it failed.
        refusal: Box<Refusal>,
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
    /// The time was over before there was an answer.
    #[error("{operation} did not answer before the request's deadline")]
    DeadlineExceeded {
        /// Which operation.
        operation: &'static str,
    },
    /// The engine is stopping.
    #[error("the engine is shutting down")]
    Stopped,
}

/// Reason of `RunError::Failed` when the model ran and its output for this input is nothing.
pub(crate) const EMPTY_OUTPUT: &str = "the model's output is zero or not finite";

impl RunError {
    /// Whether the model ran and had nothing to say about this one input: a matter of the input, where every other failure is one of the model or the
    /// device.
    pub fn is_empty_output(&self) -> bool {
        matches!(self, Self::Failed { reason, .. } if reason == EMPTY_OUTPUT)
    }
}
