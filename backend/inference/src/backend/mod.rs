//! A loaded model on one device. The batcher reaches the runtime only through [`Backend`]; tests
//! implement it to simulate devices. The module `engine` selects the device of a model.
mod images;
mod placement;
mod session;

pub use images::{PixelGraphs, Preparation, PreparedModel};
pub use placement::Placement;
pub(crate) use placement::load_library;
pub use session::OnnxModel;

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

impl<'a> OutputView<'a> {
    /// Returns item `index` of an output `[batch, rows, columns]` or, from models without a batch
    /// axis, `[rows, columns]`.
    ///
    /// # Errors
    /// Fails with a message if the shape does not fit the batch or the values.
    pub fn item(&self, index: usize, batch: usize) -> Result<ItemOutput<'a>, String> {
        let (items, rows, columns) = match *self.shape.as_slice() {
            [items, rows, columns] => (items, rows, columns),
            [rows, columns] => (1, rows, columns),
            ref other => return Err(format!("output {} has the shape {other:?}", self.name)),
        };
        if items != batch || index >= items {
            return Err(format!("output {} contains {items} items; the batch has {batch}", self.name));
        }
        let length = rows * columns;
        let data = self
            .data
            .get(index * length..(index + 1) * length)
            .ok_or_else(|| format!("output {} is shorter than its shape {:?}", self.name, self.shape))?;
        Ok(ItemOutput { rows, columns, data })
    }
}

/// The outputs of a run, and the item of the batch whose result is read from them.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    pub views: &'a [OutputView<'a>],
    /// Index of the item in the batch.
    pub index: usize,
    /// Number of items in the batch.
    pub batch: usize,
}

impl<'a> Outputs<'a> {
    /// Returns the output of a model with one output.
    ///
    /// # Errors
    /// Fails with a message if the model returned another number of outputs.
    pub fn single(&self) -> Result<&'a OutputView<'a>, String> {
        let [output] = self.views else {
            return Err(format!("the model returned {} outputs instead of one", self.views.len()));
        };
        Ok(output)
    }
}

/// The part of an output that belongs to one item of the batch: `rows` times `columns` values.
#[derive(Clone, Copy, Debug)]
pub struct ItemOutput<'a> {
    pub rows: usize,
    pub columns: usize,
    /// The values, row-major.
    pub data: &'a [f32],
}

/// An image for a backend that takes images instead of tensors.
#[derive(Clone, Debug)]
pub struct ImageInput<'a> {
    pub frame: &'a Frame,
    /// The inputs of the graph other than the image.
    pub parameters: Vec<Parameter>,
    /// Index of the backend's graph that processes the image.
    pub graph_index: usize,
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

/// Receives the outputs of a run. The views are valid only during the call, so the outputs are not
/// copied.
pub type OutputReader<'a> = &'a mut dyn FnMut(&[OutputView<'_>]);

/// A loaded model that can run.
pub trait Backend: Send {
    /// Runs one batch and passes the outputs to `read`. A successful run calls `read` exactly once.
    fn run(&mut self, batch: BatchView<'_>, read: OutputReader<'_>) -> Result<(), BackendError>;

    /// Returns whether the backend takes images ([`Self::run_images`]) instead of tensors.
    fn accepts_images(&self) -> bool {
        false
    }

    /// Runs a batch of images; see [`Self::run`]. The outputs have the shape of a batch of `items`,
    /// which is at least the number of images. The outputs of the additional items are meaningless.
    fn run_images(
        &mut self,
        _images: &[ImageInput<'_>],
        _items: usize,
        _read: OutputReader<'_>,
    ) -> Result<(), BackendError> {
        Err(BackendError::Failed(format!("{} accepts tensors, not images", self.device())))
    }

    /// Returns the name of the device: `cpu`, `cuda:0`, …
    fn device(&self) -> &str;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_item_output_with_or_without_batch_axis() {
        let data: Vec<f32> = (0..12_u8).map(f32::from).collect();
        let batched = OutputView { name: "b", shape: vec![2, 3, 2], data: &data, bytes: &[] };
        assert_eq!(batched.item(1, 2).unwrap().data, &data[6..]);
        let unbatched = OutputView { name: "f", shape: vec![6, 2], data: &data, bytes: &[] };
        let item = unbatched.item(0, 1).unwrap();
        assert_eq!((item.rows, item.columns), (6, 2));
        assert!(unbatched.item(0, 2).is_err(), "a model without a batch axis runs items one by one");
        let too_short = OutputView { name: "s", shape: vec![2, 9, 2], data: &data, bytes: &[] };
        assert!(too_short.item(1, 2).unwrap_err().contains("shorter"));
    }
}
