//! Defines the inputs of models and the meaning of their outputs, independent of the runtime.
pub mod anchors;
mod chip;
mod detector;
mod embedder;
mod pixels;
mod quality;
mod scrfd;
mod yunet;

pub(crate) use chip::check_chip;
pub use detector::{DetectionRequest, DetectorModel};
pub use embedder::EmbedderModel;
pub(crate) use embedder::identity;
pub use pixels::PixelWriter;
pub use quality::QualityModel;

use crate::Operation;
use crate::backend::{ImageInput, OutputView};

/// Defines how requests become a tensor and outputs become results.
pub trait Model: Send + Sync + 'static {
    /// One request.
    type Input: Send + Sync + 'static;
    type Output: Send + 'static;

    fn operation(&self) -> Operation;

    /// Returns `[channels, height, width]` of the tensor for `input`; only equal shapes share a
    /// batch.
    fn shape(&self, input: &Self::Input) -> [usize; 3];

    /// Fills one item of the batch. The length of `slot` is the product of `shape`. Not called for
    /// operations that only take images.
    fn write(&self, _input: &Self::Input, _slot: &mut [f32]) {
        unreachable!("{} requires a backend that accepts images", self.operation().name());
    }

    /// Returns the request as an image, for backends that take images; `None` if impossible.
    fn image_input<'a>(&self, _input: &'a Self::Input) -> Option<ImageInput<'a>> {
        None
    }

    /// Reads the result of item `index` from the outputs of a run over `batch` items.
    fn read(
        &self,
        input: &Self::Input,
        outputs: &[OutputView<'_>],
        index: usize,
        batch: usize,
    ) -> Result<Self::Output, String>;
}
