//! A loaded model on one device: the only thing between the batcher and the runtime, and the place where tests put a
//! device of their own.
mod graphs;
mod onnx;
mod prepared;

pub use graphs::PixelGraphs;
pub(crate) use onnx::is_out_of_memory;
pub use onnx::{OnnxModel, Placement};
pub use prepared::{Preparation, PreparedModel};

use crate::graphs::Parameter;
use vision::Frame;

/// A batch as the model takes it: `[items, channels, height, width]`, row-major.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    /// `[items, channels, height, width]`.
    pub shape: [usize; 4],
    /// `shape`'s product of values.
    pub data: &'a [f32],
}

/// One output of a run, row-major.
#[derive(Clone, Debug)]
pub struct OutputView<'a> {
    /// Its name in the model.
    pub name: &'a str,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its values, if they are floats.
    pub data: &'a [f32],
    /// Its values, if they are bytes.
    pub bytes: &'a [u8],
}

/// A picture as it enters a backend that takes pictures.
#[derive(Clone, Debug)]
pub struct Picture<'a> {
    /// The pixels.
    pub frame: &'a Frame,
    /// What is to be done with them.
    pub parameters: Vec<Parameter>,
    /// Which of the backend's graphs does it.
    pub program: usize,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The device has no memory for this batch; a smaller one may work.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The device is gone or in an undefined state; nothing will work on it again.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// A model that is loaded and can run.
pub trait Backend: Send {
    /// Runs one batch and shows the outputs to `read`, which is called exactly once when the run succeeds. The views
    /// are only valid during that call, so that nothing is copied.
    fn run(
        &mut self,
        batch: BatchView<'_>,
        read: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError>;

    /// Whether requests come as pictures ([`Self::run_pictures`]) and not as a tensor.
    fn takes_pictures(&self) -> bool {
        false
    }

    /// [`Self::run`] for pictures: the outputs are those of a batch of `items`, at least as many as there are pictures; the outputs of
    /// what is missing mean nothing.
    fn run_pictures(
        &mut self,
        _pictures: &[Picture<'_>],
        _items: usize,
        _read: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError> {
        Err(BackendError::Failed(format!("{} takes tensors, not pictures", self.device())))
    }

    /// Where it runs: `cpu`, `cuda:0`, …
    fn device(&self) -> &str;
}
