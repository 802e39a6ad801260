//! Learned face quality scores.
use super::PixelWriter;
use super::chip::{ChipModel, chip_pixels};
use crate::Operation;
use crate::manifest::{ModelFamily, ModelFile};

/// eDifFIQA (Babnik, Peer and Struc 2024): one score of an aligned 112x112 chip. Faces with higher
/// scores are recognised more reliably. OpenCV Zoo's export takes RGB as `(pixel / 255 - 0.5) /
/// 0.5` and returns one number.
#[derive(Clone, Debug)]
pub struct QualityModel {
    pixels: PixelWriter,
}

impl QualityModel {
    /// Creates the model that `file` describes, with the input shape and number of outputs of the
    /// loaded model.
    ///
    /// # Errors
    /// Fails if these do not fit a quality model.
    pub fn new(file: &ModelFile, input: [Option<usize>; 4], outputs: usize) -> Result<Self, String> {
        let expected = (ModelFamily::Ediffiqa, "quality models", "score");
        Ok(Self { pixels: chip_pixels(file, expected, input, outputs)? })
    }
}

impl ChipModel for QualityModel {
    type Output = f32;

    const OPERATION: Operation = Operation::QualityChecks;
    const ROW_NOUN: &'static str = "scores";

    fn pixels(&self) -> &PixelWriter {
        &self.pixels
    }

    fn row_length(&self) -> usize {
        1
    }

    fn read_row(&self, row: &[f32]) -> Option<f32> {
        row.first().copied().filter(|score| score.is_finite())
    }
}
