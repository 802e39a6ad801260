//! What the operator and the callers choose, and the ranges that hold.

use super::{AnalyzeError, Analyzer};
use store::collections::Collection;
use vision::{Limits, Profile};

/// Lowest `min_score` that a caller may ask for. Below it the detectors call thousands of patches
/// of any picture a face, and comparing them with each other takes the processor for minutes.
pub const LOWEST_SCORE: f32 = 0.1;

/// Whether to look for turned faces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rotate {
    /// Upright only.
    #[default]
    Off,
    /// When nothing convincing is found upright, try 90, 180 and 270 degrees too, and take the turn with the best scores.
    Auto,
}

/// Whether to look at pictures of low resolution twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enhance {
    /// Once, as they are.
    #[default]
    Off,
    /// When the short side is under 400 pixels and nothing or only weak faces are found, look again at the enhanced picture.
    Auto,
}

/// How often the detector looks at a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Passes {
    /// Once, the whole picture on the canvas.
    Single,
    /// Also small, for faces that fill the frame; and in tiles, where the faces found are so small that there are likely to be more, and in
    /// some tiles of a large picture that shows no sure face.
    #[default]
    Auto,
    /// Always small and in tiles, down to the picture's own resolution.
    Thorough,
}

/// Which faces of a picture that is kept are worth keeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredFaces {
    /// Every one that has an embedding.
    #[default]
    All,
    /// Those that meet the quality profile: embeddings of the others say little, and are most of the work where there are crowds.
    Passed,
}

/// What the service chose for everyone.
#[derive(Clone, Debug)]
pub struct Config {
    /// Decoding limits.
    pub limits: Limits,
    /// Side of the square detection canvas; a multiple of 32.
    pub det_size: u32,
    /// `DETECTION_PASSES`.
    pub passes: Passes,
    /// `QUALITY_PROFILE`.
    pub quality_profile: Profile,
    /// `STORED_FACES`.
    pub stored_faces: StoredFaces,
    /// Pictures whose pixels are worked on at once; 0 means one per core.
    pub decode_threads: usize,
    /// `MAX_DECODED_MEGAPIXELS`: bytes of decoded pictures, and of what their decoding and enhancement need, that may be held at once. Background work may hold
    /// three quarters; others wait.
    pub decoded_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            det_size: 640,
            passes: Passes::Auto,
            quality_profile: Profile::Standard,
            stored_faces: StoredFaces::All,
            decode_threads: 0,
            decoded_bytes: 750_000_000,
        }
    }
}

impl Config {
    /// How a picture is analysed that a crawl or a scan keeps.
    pub fn keeping(&self) -> AnalyzeOptions {
        AnalyzeOptions { passed_only: self.stored_faces == StoredFaces::Passed, ..AnalyzeOptions::default() }
    }
}

/// What one caller wants.
#[derive(Clone, Debug)]
pub struct AnalyzeOptions {
    /// Lowest `det_score`, [`LOWEST_SCORE`]..=1; `None` is the detector's own.
    pub min_score: Option<f32>,
    /// Keep only the best so many, at least 1.
    pub max_faces: Option<usize>,
    /// Compute embeddings.
    pub embeddings: bool,
    /// No embeddings of faces that are judged and do not meet the profile.
    pub passed_only: bool,
    /// Judge quality.
    pub quality: bool,
    /// Answer the aligned chips too: 38 kB for each face.
    pub chips: bool,
    /// Look for turned faces.
    pub rotate: Rotate,
    /// Look at an enhanced picture where that may help.
    pub enhance: Enhance,
    /// Side of the detection canvas, a multiple of 32 from 64 to 2048; `None` is the service's. A detector with a fixed input keeps its own canvas.
    pub det_size: Option<u32>,
    /// How often to look; `None` is the service's.
    pub passes: Option<Passes>,
    /// Profile of the quality judgement; `None` is the service's.
    pub quality_profile: Option<Profile>,
}

impl Default for AnalyzeOptions {
    fn default() -> Self {
        Self {
            min_score: None,
            max_faces: None,
            embeddings: true,
            passed_only: false,
            quality: true,
            chips: false,
            rotate: Rotate::Off,
            enhance: Enhance::Off,
            det_size: None,
            passes: None,
            quality_profile: None,
        }
    }
}

/// The quality profile that a collection chose; `None` is the service's.
pub fn profile_of(collection: &Collection) -> Option<Profile> {
    let name = collection.quality_profile.as_deref()?;
    serde_json::from_value(name.into()).ok()
}

/// Options with every default filled in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) canvas: (u32, u32),
    pub(super) passes: Passes,
    pub(super) min_score: f32,
    pub(super) max_faces: usize,
    pub(super) profile: Profile,
}

impl Analyzer {
    /// Checks the options and fills in the defaults.
    pub(super) fn settings(&self, options: &AnalyzeOptions) -> Result<Settings, AnalyzeError> {
        let detector = self.engine().detector();
        let min_score = options.min_score.unwrap_or(detector.min_score);
        // The detector's own is not asked for: it was chosen for the model.
        if options.min_score.is_some_and(|asked| !(LOWEST_SCORE..=1.0).contains(&asked)) {
            return Err(AnalyzeError::Option(format!(
                "min_score is {min_score}; it must be from {LOWEST_SCORE} to 1"
            )));
        }
        if options.max_faces == Some(0) {
            return Err(AnalyzeError::Option("max_faces is 0; it must be at least 1".into()));
        }
        let side = options.det_size.unwrap_or(self.config().det_size);
        if !(64..=2048).contains(&side) || !side.is_multiple_of(32) {
            return Err(AnalyzeError::Option(format!(
                "det_size is {side}; it must be a multiple of 32 from 64 to 2048"
            )));
        }
        Ok(Settings {
            canvas: detector.fixed_size.unwrap_or((side, side)),
            passes: options.passes.unwrap_or(self.config().passes),
            min_score,
            max_faces: options.max_faces.unwrap_or(usize::MAX),
            profile: options.quality_profile.unwrap_or(self.config().quality_profile),
        })
    }
}
