//! The results of an analysis.

use inference::Embedding;
use std::sync::Arc;
use std::time::Duration;
use vision::{Detection, Format, Frame, PerceptualHashes, QualityReport};

/// The duration of each stage. Stages do not overlap, so their sum is at most `total`. `total`
/// includes a pause of the caller between the two stages of the analysis.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Decoding, including the hashes.
    pub decode: Duration,
    /// Drawing and rotating the detector's canvases.
    pub letterbox: Duration,
    /// Detector runs and non-maximum suppression, for all views and rotations.
    pub detect: Duration,
    /// Cutting the aligned face crops.
    pub align: Duration,
    pub quality: Duration,
    pub embed: Duration,
    /// Waiting for memory, a thread or a model session.
    pub queue: Duration,
    /// Time from the call to the result.
    pub total: Duration,
}

impl Timings {
    /// Records the stages in the histogram `facecrawl_stage_seconds{stage}`.
    pub(super) fn record(&self) {
        for (stage, took) in [
            ("decode", self.decode),
            ("letterbox", self.letterbox),
            ("detect", self.detect),
            ("align", self.align),
            ("quality", self.quality),
            ("embed", self.embed),
            ("queue", self.queue),
            ("total", self.total),
        ] {
            metrics::histogram!("facecrawl_stage_seconds", "stage" => stage).record(took);
        }
    }
}

#[derive(Clone, Debug)]
pub struct AnalyzedFace {
    /// The detection, in pixels of the image as a browser shows it. The box lies inside the image;
    /// landmarks may lie outside.
    pub detection: Detection,
    /// `None` if not requested. The pose is that of the upright face, for any `rotation`.
    pub quality: Option<QualityReport>,
    /// `None` if not requested, or if no embedding could be computed, for example for a crop
    /// without content.
    pub embedding: Option<Embedding>,
    /// The aligned, upright face crop, 112x112 pixels; `None` if not requested.
    pub chip: Option<Arc<Frame>>,
}

#[derive(Clone, Debug)]
pub struct Analysis {
    /// The pixels, as a browser shows the image.
    pub frame: Arc<Frame>,
    pub format: Format,
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    pub hashes: PerceptualHashes,
    pub bytes: usize,
    /// Clockwise rotation in degrees that makes the faces upright: 0, 90, 180 or 270.
    pub rotation: u32,
    /// Pixels of the enhanced image per pixel of this one, if the faces were found on the enhanced
    /// image. Coordinates of faces are always those of this image.
    pub enhancement_scale: Option<f32>,
    /// Number of detector runs: one for each view and each rotation.
    pub views: usize,
    /// The faces, best score first.
    pub faces: Vec<AnalyzedFace>,
    pub timings: Timings,
}
