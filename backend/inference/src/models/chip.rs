//! Models whose input is one aligned chip and whose output is one row of numbers: face embedders
//! and learned quality scores.
use super::{Model, PixelWriter};
use crate::Operation;
use crate::backend::OutputView;
use crate::manifest::{Channels, ModelFamily, ModelFile};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use vision::{CHIP_SIDE, Frame};

/// Checks that `chip` has the size of an aligned chip.
pub(crate) fn check_chip(chip: &Frame) -> Result<(), String> {
    if (chip.width(), chip.height()) == (CHIP_SIDE, CHIP_SIDE) {
        Ok(())
    } else {
        Err(format!(
            "the chip is {}x{}; an aligned face is {CHIP_SIDE}x{CHIP_SIDE}",
            chip.width(),
            chip.height()
        ))
    }
}

/// Defines the operation of a model of chips and the meaning of its row. The conversion of chips
/// and outputs is the same for all of these models.
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
    if input[2..].iter().any(|side| side.is_some_and(|s| s != CHIP_SIDE as usize)) {
        return Err(format!(
            "the input is {:?} x {:?}; {CHIP_SIDE} x {CHIP_SIDE} is expected",
            input[3], input[2]
        ));
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
        [3, CHIP_SIDE as usize, CHIP_SIDE as usize]
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
        let length = self.row_length();
        if output.data.len() != length * batch {
            let (rows, shape) = (M::ROW_NOUN, &output.shape);
            return Err(format!("the output {shape:?} does not contain {batch} {rows} of {length} numbers"));
        }
        self.read_row(&output.data[index * length..(index + 1) * length])
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
        let pixels = create_pixel_writer(file, expected, input, outputs)?;
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
        "{};norm_crop=arcface-{CHIP_SIDE};channels={channels};mean={};std={}{}",
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
        Ok(Self { pixels: create_pixel_writer(file, expected, input, outputs)? })
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
