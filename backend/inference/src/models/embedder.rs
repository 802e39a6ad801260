//! Face embedders of the ArcFace kind.
use super::{Model, PixelWriter};
use crate::backend::OutputView;
use crate::manifest::{Channels, ModelFamily, ModelFile, PixelInput};
use crate::{Embedding, Operation};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use vision::Frame;

/// Pixels per side of an aligned chip.
pub(crate) const CHIP: u32 = 112;

/// An embedder: how chips enter it and how its output becomes an embedding.
#[derive(Clone, Debug)]
pub struct EmbedderModel {
    pixels: PixelWriter,
    dimensions: usize,
}

impl EmbedderModel {
    /// The embedder that `file` describes, with the input shape and number of outputs that the loaded model shows.
    /// The error says what is not an embedder about it.
    pub fn new(file: &ModelFile, input: [Option<usize>; 4], outputs: usize) -> Result<Self, String> {
        if file.family != ModelFamily::Arcface {
            return Err(format!("{:?} is no family of embedders", file.family));
        }
        if outputs != 1 {
            return Err(format!("it has {outputs} outputs; one embedding is expected"));
        }
        takes_chips(input)?;
        let dimensions = file.dimensions.ok_or("the manifest gives it no dimensions")?;
        Ok(Self { pixels: PixelWriter::new(&file.input), dimensions })
    }
}

/// Whether a model's input takes aligned chips.
pub(super) fn takes_chips(input: [Option<usize>; 4]) -> Result<(), String> {
    if input[2..].iter().any(|side| side.is_some_and(|s| s != CHIP as usize)) {
        return Err(format!("its input is {:?} x {:?}; {CHIP} x {CHIP} is expected", input[3], input[2]));
    }
    Ok(())
}

/// Whether `chip` is an aligned one.
pub(crate) fn check_chip(chip: &Frame) -> Result<(), String> {
    if (chip.width(), chip.height()) == (CHIP, CHIP) {
        Ok(())
    } else {
        Err(format!("the chip is {}x{}; an aligned face is {CHIP}x{CHIP}", chip.width(), chip.height()))
    }
}

/// What makes two embeddings comparable: the weights and how pixels enter them. Hex sha256 of the file's sha256 and a
/// canonical text of the preprocessing.
pub(crate) fn identity(sha256: &str, input: &PixelInput) -> String {
    let channels = match input.channels {
        Channels::Rgb => "rgb",
        Channels::Bgr => "bgr",
    };
    let list = |values: [f32; 3]| values.map(|v| v.to_string()).join(",");
    let text = format!(
        "{};norm_crop=arcface-{CHIP};channels={channels};mean={};std={}",
        sha256.to_ascii_lowercase(),
        list(input.mean),
        list(input.std)
    );
    hex::encode(Sha256::digest(text.as_bytes()))
}

impl Model for EmbedderModel {
    type Input = Arc<Frame>;
    type Output = Embedding;

    fn operation(&self) -> Operation {
        Operation::FaceEmbedding
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
    ) -> Result<Embedding, String> {
        let [output] = outputs else { return Err(format!("{} outputs instead of one", outputs.len())) };
        if output.data.len() != self.dimensions * batch {
            return Err(format!(
                "the output {:?} does not hold {batch} embeddings of {} dimensions",
                output.shape, self.dimensions
            ));
        }
        let raw = output.data[index * self.dimensions..(index + 1) * self.dimensions].to_vec();
        Embedding::from_raw(raw).ok_or_else(|| crate::error::EMPTY_OUTPUT.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_follows_weights_and_preprocessing() {
        let input = PixelInput { channels: Channels::Rgb, mean: [127.5; 3], std: [127.5; 3] };
        let first = identity("AB", &input);
        assert_eq!(first.len(), 64);
        assert_eq!(first, identity("ab", &input), "letter case of the hash does not matter");
        assert_ne!(first, identity("ac", &input));
        assert_ne!(first, identity("ab", &PixelInput { channels: Channels::Bgr, ..input }));
        assert_ne!(first, identity("ab", &PixelInput { std: [127.5, 127.5, 128.0], ..input }));
    }
}
