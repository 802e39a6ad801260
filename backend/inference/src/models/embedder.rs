//! Face embedders of the ArcFace family.
use super::PixelWriter;
use super::chip::{ChipModel, chip_pixels};
use crate::manifest::{Channels, ModelFamily, ModelFile};
use crate::{Embedding, Operation};
use sha2::{Digest, Sha256};
use vision::CHIP;

/// An embedder: converts chips to tensors and outputs to embeddings.
#[derive(Clone, Debug)]
pub struct EmbedderModel {
    pixels: PixelWriter,
    dimensions: usize,
}

impl EmbedderModel {
    /// Creates the embedder that `file` describes, with the input shape and number of outputs of
    /// the loaded model.
    ///
    /// # Errors
    /// Fails if the file, the input or the number of outputs does not fit an embedder.
    pub fn new(file: &ModelFile, input: [Option<usize>; 4], outputs: usize) -> Result<Self, String> {
        let expected = (ModelFamily::Arcface, "embedders", "embedding");
        let pixels = chip_pixels(file, expected, input, outputs)?;
        let dimensions = file.dimensions.ok_or("the manifest defines no dimensions for the model")?;
        Ok(Self { pixels, dimensions })
    }
}

/// Returns the identity of a model's embeddings. Only embeddings with the same identity can be
/// compared. The identity is a SHA-256 in hex. Its input is the file's SHA-256 and a canonical text
/// that describes how pixels and weights are converted.
pub(crate) fn identity(file: &ModelFile) -> String {
    let input = &file.input;
    let channels = match input.channels {
        Channels::Rgb => "rgb",
        Channels::Bgr => "bgr",
    };
    let list = |values: [f32; 3]| values.map(|v| v.to_string()).join(",");
    let text = format!(
        "{};norm_crop=arcface-{CHIP};channels={channels};mean={};std={}{}",
        file.sha256.to_ascii_lowercase(),
        list(input.mean),
        list(input.std),
        file.weights.identity()
    );
    hex::encode(Sha256::digest(text.as_bytes()))
}

impl ChipModel for EmbedderModel {
    type Output = Embedding;

    const OPERATION: Operation = Operation::FaceEmbedding;
    const ROW_NOUN: &'static str = "embeddings";

    fn pixels(&self) -> &PixelWriter {
        &self.pixels
    }

    fn row_length(&self) -> usize {
        self.dimensions
    }

    fn read_row(&self, row: &[f32]) -> Option<Embedding> {
        Embedding::from_raw(row.to_vec())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::manifest::{Manifest, WeightStorage};

    #[test]
    fn the_identity_follows_weights_and_preprocessing() {
        let manifest = Manifest::builtin();
        let file = |name: &str| manifest.files.iter().find(|file| file.file == name).unwrap().clone();
        let first = file("mobilefacenet.onnx");
        // The identity must stay the same across versions, because it is stored with every face.
        assert_eq!(identity(&first), "c428bf7a024bee3e34f7a1e984cd74e690a1a2f156aaa1497597ea6ea2fe2429");
        let with = |change: &dyn Fn(&mut ModelFile)| {
            let mut file = first.clone();
            change(&mut file);
            identity(&file)
        };
        let same = identity(&first);
        assert_eq!(same, with(&|file| file.sha256.make_ascii_uppercase()), "letter case does not matter");
        assert_ne!(same, with(&|file| file.sha256 = "0".repeat(64)));
        assert_ne!(same, with(&|file| file.input.channels = Channels::Bgr));
        assert_ne!(same, with(&|file| file.input.std[2] = 128.0));
        assert_ne!(same, with(&|file| file.weights = WeightStorage::Int8Blocks));
    }
}
