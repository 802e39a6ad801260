//! What a model takes and what its outputs mean; no runtime in here.
pub mod anchors;
mod chip;
mod detector;
mod embedder;
mod pixels;
mod quality;
mod scrfd;
mod yunet;

pub(crate) use chip::{CHIP, check_chip};
pub use detector::{DetectorModel, Probe};
pub use embedder::EmbedderModel;
pub(crate) use embedder::identity;
pub use pixels::PixelWriter;
pub use quality::QualityModel;

use crate::Operation;
use crate::backend::{OutputView, Picture};

/// How requests become a tensor and outputs become results.
pub trait Model: Send + Sync + 'static {
    /// One request.
    type Input: Send + Sync + 'static;
    /// Its result.
    type Output: Send + 'static;

    /// Which operation it does.
    fn operation(&self) -> Operation;

    /// `[channels, height, width]` that `input` needs; only equal shapes share a batch.
    fn shape(&self, input: &Self::Input) -> [usize; 3];

    /// Fills one item of the batch; `slot` holds `shape`'s product of values. Not called for operations that only have pictures.
    fn write(&self, _input: &Self::Input, _slot: &mut [f32]) {
        unreachable!("{} is only run by backends that take pictures", self.operation().name());
    }

    /// The request as a picture, for backends that take pictures; `None` where it cannot be one.
    fn picture<'a>(&self, _input: &'a Self::Input) -> Option<Picture<'a>> {
        None
    }

    /// Reads the result of item `index` out of the outputs of a run over `batch` items.
    fn read(
        &self,
        input: &Self::Input,
        outputs: &[OutputView<'_>],
        index: usize,
        batch: usize,
    ) -> Result<Self::Output, String>;
}
