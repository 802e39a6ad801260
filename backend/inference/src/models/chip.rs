//! Models that look at one aligned chip and answer one row of numbers.
use super::{Model, PixelWriter};
use crate::Operation;
use crate::backend::OutputView;
use crate::manifest::{ModelFamily, ModelFile};
use std::sync::Arc;
use vision::Frame;

/// Pixels per side of an aligned chip.
pub(crate) const CHIP: u32 = 112;

/// Whether `chip` is an aligned one.
pub(crate) fn check_chip(chip: &Frame) -> Result<(), String> {
    if (chip.width(), chip.height()) == (CHIP, CHIP) {
        Ok(())
    } else {
        Err(format!("the chip is {}x{}; an aligned face is {CHIP}x{CHIP}", chip.width(), chip.height()))
    }
}

/// What such a model does and what its row means; how chips enter and rows leave is the same for all.
pub trait ChipModel: Send + Sync + 'static {
    /// What is made of a row.
    type Output: Send + 'static;

    /// Which operation it does.
    const OPERATION: Operation;
    /// What a row is, in the plural.
    const ROWS: &'static str;

    /// How chips enter it.
    fn pixels(&self) -> &PixelWriter;

    /// Numbers in a row.
    fn row(&self) -> usize;

    /// Reads a row; `None` if it says nothing.
    fn read_row(&self, row: &[f32]) -> Option<Self::Output>;
}

/// How chips enter the model that `file` describes, once its family, its number of outputs and its input's sides are what is expected.
pub(super) fn chip_pixels(
    file: &ModelFile,
    (family, families, expected): (ModelFamily, &str, &str),
    input: [Option<usize>; 4],
    outputs: usize,
) -> Result<PixelWriter, String> {
    if file.family != family {
        return Err(format!("{:?} is no family of {families}", file.family));
    }
    if outputs != 1 {
        return Err(format!("it has {outputs} outputs; one {expected} is expected"));
    }
    if input[2..].iter().any(|side| side.is_some_and(|s| s != CHIP as usize)) {
        return Err(format!("its input is {:?} x {:?}; {CHIP} x {CHIP} is expected", input[3], input[2]));
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
        let row = self.row();
        if output.data.len() != row * batch {
            let (rows, shape) = (M::ROWS, &output.shape);
            return Err(format!("the output {shape:?} does not hold {batch} {rows} of {row} numbers"));
        }
        self.read_row(&output.data[index * row..(index + 1) * row])
            .ok_or_else(|| crate::error::EMPTY_OUTPUT.to_owned())
    }
}
