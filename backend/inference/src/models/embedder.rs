//! Face embedders of the ArcFace kind.
use super::PixelWriter;
use super::chip::{CHIP, ChipModel, chip_pixels};
use crate::manifest::{Channels, ModelFamily, ModelFile, PixelInput};
use crate::{Embedding, Operation};
use sha2::{Digest, Sha256};

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
        let expected = (ModelFamily::Arcface, "embedders", "embedding");
        let pixels = chip_pixels(file, expected, input, outputs)?;
        let dimensions = file.dimensions.ok_or("the manifest gives it no dimensions")?;
        Ok(Self { pixels, dimensions })
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

impl ChipModel for EmbedderModel {
    type Output = Embedding;

    const OPERATION: Operation = Operation::FaceEmbedding;
    const ROWS: &'static str = "embeddings";

    fn pixels(&self) -> &PixelWriter {
        &self.pixels
    }

    fn row(&self) -> usize {
        self.dimensions
    }

    fn read_row(&self, row: &[f32]) -> Option<Embedding> {
        Embedding::from_raw(row.to_vec())
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
