//! A loaded model on one device. The batcher reaches the runtime only through [`Backend`]; tests
//! implement it to simulate devices. The module `engine` selects the device of a model.
mod graphs;
mod onnx;
mod prepared;
mod registration;
mod shapes;

pub use graphs::PixelGraphs;
pub use onnx::{OnnxModel, Placement};
pub use prepared::{Preparation, PreparedModel};
pub(crate) use registration::load_library;

use crate::graphs::Parameter;
use vision::Frame;

/// A batch of model inputs: `[items, channels, height, width]`, row-major.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    /// `[items, channels, height, width]`.
    pub shape: [usize; 4],
    /// The values. Their number is the product of `shape`.
    pub data: &'a [f32],
}

/// One output of a run, row-major.
#[derive(Clone, Debug)]
pub struct OutputView<'a> {
    pub name: &'a str,
    pub shape: Vec<usize>,
    /// The values of a float32 output; otherwise empty.
    pub data: &'a [f32],
    /// The values of a uint8 output; otherwise empty.
    pub bytes: &'a [u8],
}

/// An image for a backend that takes images instead of tensors.
#[derive(Clone, Debug)]
pub struct ImageInput<'a> {
    pub frame: &'a Frame,
    /// The inputs of the graph other than the image.
    pub parameters: Vec<Parameter>,
    /// Index of the backend's graph that processes the image.
    pub program: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The device does not have enough memory for this batch; a smaller batch may succeed.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The device is no longer available or is in an undefined state. All later runs on it fail.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

/// A loaded model that can run.
pub trait Backend: Send {
    /// Runs one batch and passes the outputs to `read`. A successful run calls `read` exactly once.
    /// The views are valid only during that call, so the outputs are not copied.
    fn run(
        &mut self,
        batch: BatchView<'_>,
        read: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError>;

    /// Returns whether the backend takes images ([`Self::run_images`]) instead of tensors.
    fn takes_images(&self) -> bool {
        false
    }

    /// Runs a batch of images; see [`Self::run`]. The outputs have the shape of a batch of `items`,
    /// which is at least the number of images. The outputs of the additional items are meaningless.
    fn run_images(
        &mut self,
        _images: &[ImageInput<'_>],
        _items: usize,
        _read: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError> {
        Err(BackendError::Failed(format!("{} accepts tensors, not images", self.device())))
    }

    /// Returns the name of the device: `cpu`, `cuda:0`, …
    fn device(&self) -> &str;
}
