//! Learned face quality.
use super::embedder::{CHIP, takes_chips};
use super::{Model, PixelWriter};
use crate::Operation;
use crate::backend::OutputView;
use crate::manifest::{ModelFamily, ModelFile};
use std::sync::Arc;
use vision::Frame;

/// eDifFIQA (Babnik, Peer and Struc 2024): one score of an aligned 112x112 chip, higher for faces that recognition can rely on. OpenCV Zoo's
/// export takes RGB as `(pixel / 255 - 0.5) / 0.5` and gives one number.
#[derive(Clone, Debug)]
pub struct QualityModel {
    pixels: PixelWriter,
}

impl QualityModel {
    /// The model that `file` describes, with the input shape and number of outputs that the loaded model shows.
    /// The error says what is not a quality model about it.
    pub fn new(file: &ModelFile, input: [Option<usize>; 4], outputs: usize) -> Result<Self, String> {
        if file.family != ModelFamily::Ediffiqa {
            return Err(format!("{:?} is no family of quality models", file.family));
        }
        if outputs != 1 {
            return Err(format!("it has {outputs} outputs; one score is expected"));
        }
        takes_chips(input)?;
        Ok(Self { pixels: PixelWriter::new(&file.input) })
    }
}

impl Model for QualityModel {
    type Input = Arc<Frame>;
    type Output = f32;

    fn operation(&self) -> Operation {
        Operation::QualityChecks
    }

    fn shape(&self, _: &Arc<Frame>) -> [usize; 3] {
        [3, CHIP as usize, CHIP as usize]
    }

    fn write(&self, input: &Arc<Frame>, slot: &mut [f32]) {
        self.pixels.write(input, slot);
    }

    fn read(
        &self,
        _: &Arc<Frame>,
        outputs: &[OutputView<'_>],
        index: usize,
        batch: usize,
    ) -> Result<f32, String> {
        let [output] = outputs else { return Err(format!("{} outputs instead of one", outputs.len())) };
        if output.data.len() != batch {
            return Err(format!("the output {:?} does not hold {batch} scores", output.shape));
        }
        let score = output.data[index];
        if score.is_finite() { Ok(score) } else { Err(crate::error::EMPTY_OUTPUT.to_owned()) }
    }
}
