//! What an analysis answers.

use inference::Embedding;
use std::sync::Arc;
use std::time::Duration;
use vision::{Detection, Format, Frame, PerceptualHashes, QualityReport};

/// Where the time went. Stages are disjoint, so they never add up to more than `total`, unless the caller paused between the two stages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Bytes to pixels, hashes included.
    pub decode: Duration,
    /// The detector's canvases, and their turns.
    pub letterbox: Duration,
    /// Model and NMS; every view and every turn that was tried.
    pub detect: Duration,
    /// Chips.
    pub align: Duration,
    /// Quality.
    pub quality: Duration,
    /// Embeddings of all faces.
    pub embed: Duration,
    /// Waiting for memory, a thread or a session.
    pub queue: Duration,
    /// From call to answer.
    pub total: Duration,
}

impl Timings {
    /// Feeds `facecrawl_stage_seconds{stage}`.
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

/// One face.
#[derive(Clone, Debug)]
pub struct AnalyzedFace {
    /// In pixels of the image as a browser shows it; the box may reach outside the image, as detectors' boxes do.
    pub detection: Detection,
    /// If asked for. Pose is that of the upright face, whatever the picture's `rotation`.
    pub quality: Option<QualityReport>,
    /// If asked for, and if the model gave one (a chip without content has none).
    pub embedding: Option<Embedding>,
    /// Aligned 112x112, upright; if asked for.
    pub chip: Option<Arc<Frame>>,
}

/// One picture.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// Its pixels, as a browser shows it.
    pub frame: Arc<Frame>,
    /// What the content was.
    pub format: Format,
    /// Of the file's bytes.
    pub sha256: [u8; 32],
    /// Of the picture.
    pub hashes: PerceptualHashes,
    /// Length of the file.
    pub bytes: usize,
    /// Clockwise turn that makes the faces upright: 0, 90, 180, 270.
    pub rotation: u32,
    /// Pixels of the enhanced picture per pixel of this one, if the faces were found on the enhanced one; their coordinates are of this one.
    pub enhancement_scale: Option<f32>,
    /// How often the detector looked: once for each view and each turn that was tried.
    pub views: usize,
    /// Best score first.
    pub faces: Vec<AnalyzedFace>,
    /// Where the time went.
    pub timings: Timings,
}
