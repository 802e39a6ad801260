//! Models whose input is one aligned chip and whose output is one row of numbers: face embedders
//! and learned quality scores.
use super::{Model, PixelWriter};
use crate::Operation;
use crate::backend::Outputs;
use crate::manifest::{Channels, ModelFamily, ModelFile};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use vision::{CHIP_SIDE, Frame};

/// Checks that `chip` has the size of an aligned chip.
pub(crate) fn check_chip(chip: &Frame) -> Result<(), String> {
    match (chip.width(), chip.height()) {
        (CHIP_SIDE, CHIP_SIDE) => Ok(()),
        (w, h) => Err(format!("the chip is {w}x{h}; an aligned face is {CHIP_SIDE}x{CHIP_SIDE}")),
    }
}

/// A model of chips. Its output has one row per chip.
#[derive(Clone, Debug)]
pub struct ChipModel<T> {
    pixels: PixelWriter,
    operation: Operation,
    /// The plural noun for rows, for error messages.
    row_noun: &'static str,
    /// Number of values in a row.
    row_length: usize,
    /// Converts a row to the result; returns `None` if the row contains no result.
    read_row: fn(&[f32]) -> Option<T>,
}

/// Checks the family, the number of outputs and the input sides of the model in `file`. Returns the
/// writer of its input.
fn create_pixel_writer(
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
    let [_, _, height, width] = input;
    if [height, width].into_iter().flatten().any(|side| side != CHIP_SIDE as usize) {
        return Err(format!("the input is {width:?} x {height:?}; {CHIP_SIDE} x {CHIP_SIDE} is expected"));
    }
    Ok(PixelWriter::new(&file.input))
}

impl<T: Send + 'static> Model for ChipModel<T> {
    type Input = Arc<Frame>;
    type Output = T;

    fn operation(&self) -> Operation {
        self.operation
    }

    fn shape(&self, _: &Arc<Frame>) -> [usize; 3] {
        [3, CHIP_SIDE as usize, CHIP_SIDE as usize]
    }

    fn write(&self, input: &Arc<Frame>, slot: &mut [f32]) {
        self.pixels.write(input, slot);
    }

    fn read(&self, _: &Arc<Frame>, outputs: Outputs<'_>) -> Result<T, String> {
        let (output, length, Outputs { index, batch, .. }) = (outputs.single()?, self.row_length, outputs);
        if output.data.len() != length * batch {
            let (rows, shape) = (self.row_noun, &output.shape);
            return Err(format!("the output {shape:?} does not contain {batch} {rows} of {length} numbers"));
        }
        (self.read_row)(&output.data[index * length..(index + 1) * length])
            .ok_or_else(|| crate::error::EMPTY_OUTPUT.to_owned())
    }
}

/// An L2-normalised face embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding(Vec<f32>);

impl Embedding {
    /// Normalises `raw` to length 1; returns `None` for an empty, zero or non-finite vector.
    pub fn from_raw(mut raw: Vec<f32>) -> Option<Self> {
        let norm = raw.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
        if raw.is_empty() || !norm.is_finite() || norm <= f64::EPSILON {
            return None;
        }
        raw.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
        Some(Self(raw))
    }

    pub fn as_slice(&self) -> &[f32] {
        &self.0
    }

    /// Returns the cosine similarity, -1..1; `None` if the dimensions differ.
    pub fn similarity(&self, other: &Self) -> Option<f32> {
        self.similarity_to(&other.0)
    }

    /// Works like [`Self::similarity`] for a stored embedding of length 1.
    pub fn similarity_to(&self, stored: &[f32]) -> Option<f32> {
        (self.0.len() == stored.len()).then(|| self.0.iter().zip(stored).map(|(a, b)| a * b).sum())
    }
}

/// An embedder: converts chips to tensors and outputs to embeddings.
pub type EmbedderModel = ChipModel<Embedding>;

impl EmbedderModel {
    /// Creates the embedder that `file` describes, with the input shape and number of outputs of
    /// the loaded model.
    ///
    /// # Errors
    /// Fails if the file, the input or the number of outputs does not fit an embedder.
    pub fn new(file: &ModelFile, input: [Option<usize>; 4], outputs: usize) -> Result<Self, String> {
        let expected = (ModelFamily::Arcface, "embedders", "embedding");
        let pixels = create_pixel_writer(file, expected, input, outputs)?;
        let row_length = file.dimensions.ok_or("the manifest defines no dimensions for the model")?;
        let read_row = |row: &[f32]| Embedding::from_raw(row.to_vec());
        Ok(Self { pixels, operation: Operation::FaceEmbedding, row_noun: "embeddings", row_length, read_row })
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
        "{};norm_crop=arcface-{CHIP_SIDE};channels={channels};mean={};std={}{}",
        file.sha256.to_ascii_lowercase(),
        list(input.mean),
        list(input.std),
        file.weights.identity()
    );
    hex::encode(Sha256::digest(text.as_bytes()))
}

/// eDifFIQA (Babnik, Peer and Struc 2024): one score of an aligned 112x112 chip. Faces with higher
/// scores are recognised more reliably. OpenCV Zoo's export takes RGB as `(pixel / 255 - 0.5) /
/// 0.5` and returns one number.
pub type QualityModel = ChipModel<f32>;

impl QualityModel {
    /// Creates the model that `file` describes, with the input shape and number of outputs of the
    /// loaded model.
    ///
    /// # Errors
    /// Fails if these do not fit a quality model.
    pub fn new(file: &ModelFile, input: [Option<usize>; 4], outputs: usize) -> Result<Self, String> {
        let expected = (ModelFamily::Ediffiqa, "quality models", "score");
        let pixels = create_pixel_writer(file, expected, input, outputs)?;
        let read_row = |row: &[f32]| row.first().copied().filter(|score| score.is_finite());
        Ok(Self { pixels, operation: Operation::QualityChecks, row_noun: "scores", row_length: 1, read_row })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::manifest::{Manifest, WeightStorage};

    #[test]
    fn embedding_identity_depends_on_weights_and_preprocessing() {
        let manifest = Manifest::builtin();
        let file = |name: &str| manifest.files.iter().find(|file| file.file == name).unwrap().clone();
        let first = file("mobilefacenet.onnx");
        // The identity must stay the same across versions, because it is stored with every face.
        assert_eq!(identity(&first), "c428bf7a024bee3e34f7a1e984cd74e690a1a2f156aaa1497597ea6ea2fe2429");
        let identity_of = |change: &dyn Fn(&mut ModelFile)| {
            let mut file = first.clone();
            change(&mut file);
            identity(&file)
        };
        let expected = identity(&first);
        assert_eq!(expected, identity_of(&|file| file.sha256.make_ascii_uppercase()), "the case is ignored");
        assert_ne!(expected, identity_of(&|file| file.sha256 = "0".repeat(64)));
        assert_ne!(expected, identity_of(&|file| file.input.channels = Channels::Bgr));
        assert_ne!(expected, identity_of(&|file| file.input.std[2] = 128.0));
        assert_ne!(expected, identity_of(&|file| file.weights = WeightStorage::Int8Blocks));
    }
}
