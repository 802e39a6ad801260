//! The image operations as models: the inputs of a device's graph and the reading of its output.
//! The graphs are in [`crate::graphs`], the CPU's code in [`vision`].
mod canvas;
mod enhancement;
mod statistics;

pub use canvas::{CanvasModel, CanvasRequest};
pub use enhancement::{EnhancementModel, EnhancementRequest};
pub use statistics::StatisticsModel;

use crate::backend::OutputView;
use vision::Frame;

/// Returns the single output, bytes `[1, height, width, 3]`, as a frame.
fn frame_from_output(outputs: &[OutputView<'_>]) -> Result<Frame, String> {
    let [output] = outputs else {
        return Err(format!("the model returned {} outputs instead of one image", outputs.len()));
    };
    let [1, height, width, 3] = output.shape[..] else {
        return Err(format!("the output is {:?}, which is not an image", output.shape));
    };
    let side = |length: usize| u32::try_from(length).map_err(|_| format!("a side has {length} pixels"));
    Frame::new(side(width)?, side(height)?, output.bytes.to_vec())
        .ok_or_else(|| format!("the output {:?} contains {} bytes", output.shape, output.bytes.len()))
}
