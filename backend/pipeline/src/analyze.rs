//! decode -> detect -> align -> quality -> embed, for one picture.
use bytes::Bytes;
use inference::{Embedding, Engine, Lane, RunError};
use std::sync::Arc;
use std::time::Duration;
use vision::{DecodeError, Detection, Format, Frame, Limits, PerceptualHashes, Profile, QualityReport};

/// Whether to look for turned faces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rotate {
    /// Upright only.
    #[default]
    Off,
    /// When nothing is found upright, try 90, 180 and 270 degrees.
    Auto,
}

/// What the service chose for everyone.
#[derive(Clone, Debug)]
pub struct Config {
    /// Decoding limits.
    pub limits: Limits,
    /// Side of the square detection canvas; a multiple of 32.
    pub det_size: u32,
    /// `QUALITY_PROFILE`.
    pub quality_profile: Profile,
    /// Pictures decoded at once.
    pub decode_threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            det_size: 640,
            quality_profile: Profile::Standard,
            decode_threads: 0,
        }
    }
}

/// What one caller wants.
#[derive(Clone, Debug)]
pub struct AnalyzeOptions {
    /// Lowest `det_score`; `None` is the detector's own.
    pub min_score: Option<f32>,
    /// Keep only the best so many.
    pub max_faces: Option<usize>,
    /// Compute embeddings.
    pub embeddings: bool,
    /// Judge quality.
    pub quality: bool,
    /// Look for turned faces.
    pub rotate: Rotate,
    /// Side of the detection canvas; `None` is the service's.
    pub det_size: Option<u32>,
    /// Profile of the quality judgement; `None` is the service's.
    pub quality_profile: Option<Profile>,
}

impl Default for AnalyzeOptions {
    fn default() -> Self {
        Self {
            min_score: None,
            max_faces: None,
            embeddings: true,
            quality: true,
            rotate: Rotate::Off,
            det_size: None,
            quality_profile: None,
        }
    }
}

/// Where the time went. `queue` is waiting for a decode thread or a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Bytes to pixels, hashes included.
    pub decode: Duration,
    /// Letterbox, model, NMS.
    pub detect: Duration,
    /// Chips.
    pub align: Duration,
    /// Quality.
    pub quality: Duration,
    /// Embeddings.
    pub embed: Duration,
    /// Waiting.
    pub queue: Duration,
    /// From call to answer.
    pub total: Duration,
}

/// One face.
#[derive(Clone, Debug)]
pub struct AnalyzedFace {
    /// In pixels of the image as a browser shows it.
    pub detection: Detection,
    /// If asked for.
    pub quality: Option<QualityReport>,
    /// If asked for.
    pub embedding: Option<Embedding>,
    /// Aligned 112x112.
    pub chip: Arc<Frame>,
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
    /// Best score first.
    pub faces: Vec<AnalyzedFace>,
    /// Where the time went.
    pub timings: Timings,
}

/// Why a picture could not be analysed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AnalyzeError {
    /// Not a picture we can use.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The models failed or are overloaded.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An option is out of range (a sentence).
    #[error("{0}")]
    Option(String),
    /// A decoder panicked; the picture is refused, the service goes on.
    #[error("the image could not be decoded")]
    Panicked,
}

/// The path; cheap to clone.
#[derive(Clone)]
pub struct Analyzer {
    _engine: Engine,
}

impl Analyzer {
    /// On a started engine.
    pub fn new(_engine: Engine, _config: Config) -> Self {
        todo!()
    }
    /// Analyses one picture.
    pub async fn analyze(
        &self,
        _bytes: Bytes,
        _options: &AnalyzeOptions,
        _lane: Lane,
    ) -> Result<Analysis, AnalyzeError> {
        todo!()
    }
    /// The engine behind it.
    pub fn engine(&self) -> &Engine {
        &self._engine
    }
}
