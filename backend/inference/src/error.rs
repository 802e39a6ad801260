//! Errors of the engine's start and of single requests.
use crate::unavailable::Refusal;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot load ONNX Runtime from {path}: {reason}")]
    Library { path: String, reason: String },
    #[error("cannot load the model {model}: {reason}")]
    Model { model: String, reason: String },
    /// TensorRT engines were requested and cannot be built.
    #[error("cannot build TensorRT engines: {reason}")]
    NoTensorrt {
        /// What is missing.
        reason: String,
    },
    /// `FORCE_GPU_ONLY` is set, and an operation that requests a GPU cannot use one.
    #[error(
        "FORCE_GPU_ONLY is set, but {operation} cannot run on a GPU (GPU_BACKEND={provider})\nreason: {}{}\nwhat to do: {}",
        .refusal.main_reason.prefix(), .refusal.main_reason.message(), .refusal.advice_or_cpu()
    )]
    GpuOnly { operation: &'static str, provider: String, refusal: Box<Refusal> },
}

impl StartError {
    pub(crate) fn model(model: &str, reason: impl Into<String>) -> Self {
        Self::Model { model: model.to_owned(), reason: reason.into() }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum RunError {
    /// The queue is full; the caller may retry after the given time.
    #[error("the {operation} queue is full")]
    Overloaded {
        operation: &'static str,
        /// An estimate from the queue's length and speed.
        retry_after: Duration,
    },
    #[error("{operation} failed: {reason}")]
    Failed {
        operation: &'static str,
        /// The error of the runtime or of the model's code.
        reason: String,
    },
    #[error("{operation} did not finish before the deadline of the request")]
    DeadlineExceeded { operation: &'static str },
    #[error("the engine is shutting down")]
    Stopped,
}

/// The reason of `RunError::Failed` when the model ran but its output is zero or not finite.
pub(crate) const EMPTY_OUTPUT: &str = "the model's output is zero or not finite";

impl RunError {
    /// Returns whether the model ran but its output for this input is empty. This depends on the
    /// input; every other failure is caused by the model or the device.
    pub fn is_empty_output(&self) -> bool {
        matches!(self, Self::Failed { reason, .. } if reason == EMPTY_OUTPUT)
    }
}
