//! Models whose input is one aligned chip and whose output is one row of numbers.
use super::{Model, PixelWriter};
use crate::Operation;
use crate::backend::OutputView;
use crate::manifest::{ModelFamily, ModelFile};
use std::sync::Arc;
use vision::{CHIP, Frame};

/// Checks that `chip` has the size of an aligned chip.
pub(crate) fn check_chip(chip: &Frame) -> Result<(), String> {
    if (chip.width(), chip.height()) == (CHIP, CHIP) {
        Ok(())
    } else {
        Err(format!("the chip is {}x{}; an aligned face is {CHIP}x{CHIP}", chip.width(), chip.height()))
    }
}

/// Defines the operation of such a model and the meaning of its row. The conversion of chips and
/// outputs is the same for all of these models.
pub trait ChipModel: Send + Sync + 'static {
    /// The result to which a row is converted.
    type Output: Send + 'static;

    const OPERATION: Operation;
    /// The plural noun for rows, for error messages.
    const ROW_NOUN: &'static str;

    fn pixels(&self) -> &PixelWriter;

    /// Returns the number of values in a row.
    fn row_length(&self) -> usize;

    /// Reads a row; returns `None` if the row contains no result.
    fn read_row(&self, row: &[f32]) -> Option<Self::Output>;
}

/// Returns the writer of the input of the model in `file`. Checks its family, its number of outputs
/// and the sides of its input first.
pub(super) fn chip_pixels(
    file: &ModelFile,
    (family, families, expected): (ModelFamily, &str, &str),
    input: [Option<usize>; 4],
    outputs: usize,
) -> Result<PixelWriter, String> {
    if file.family != family {
        return Err(format!("{:?} is not a family of {families}", file.family));
    }
    if outputs != 1 {
        return Err(format!("the model has {outputs} outputs; one {expected} is expected"));
    }
    if input[2..].iter().any(|side| side.is_some_and(|s| s != CHIP as usize)) {
        return Err(format!("the input is {:?} x {:?}; {CHIP} x {CHIP} is expected", input[3], input[2]));
    }
    Ok(PixelWriter::new(&file.input))
}

impl<M: ChipModel> Model for M {
    type Input = Arc<Frame>;
    type Output = M::Output;

    fn operation(&self) -> Operation {
        M::OPERATION
    }

    fn shape(&self, _: &Arc<Frame>) -> [usize; 3] {
        [3, CHIP as usize, CHIP as usize]
    }

    fn write(&self, input: &Arc<Frame>, slot: &mut [f32]) {
        self.pixels().write(input, slot);
    }

    fn read(
        &self,
        _: &Arc<Frame>,
        outputs: &[OutputView<'_>],
        index: usize,
        batch: usize,
    ) -> Result<M::Output, String> {
        let [output] = outputs else { return Err(format!("{} outputs instead of one", outputs.len())) };
        let row = self.row_length();
        if output.data.len() != row * batch {
            let (rows, shape) = (M::ROW_NOUN, &output.shape);
            return Err(format!("the output {shape:?} does not contain {batch} {rows} of {row} numbers"));
        }
        self.read_row(&output.data[index * row..(index + 1) * row])
            .ok_or_else(|| crate::error::EMPTY_OUTPUT.to_owned())
    }
}
