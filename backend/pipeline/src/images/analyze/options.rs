//! Options of the operator and of callers, their defaults and their valid ranges. The code that
//! applies them is in the other modules of [`super`].

use super::{AnalyzeError, Analyzer, Timings};
use crate::domain::Rotate;
use inference::Priority;
use video::ImageDecoder;
use vision::{Limits, Profile};

/// Minimum accepted value of `min_score`. Below this value, detectors report noise: with 0, YuNet
/// finds thousands of faces in each view of a grey wall, and all of them must be compared, cut and
/// embedded.
///
/// The value is a third of the lowest score that the search uses. Faint boxes that cause a closer
/// search have at least 0.6 of the detector's own threshold: 0.3 for SCRFD and 0.36 for YuNet.
pub const MIN_SCORE_FLOOR: f32 = 0.1;
/// Maximum number of faces of one image; the best ones are kept. A page of a list in the API
/// contains at most the same number of faces.
pub const MAX_FACES: usize = 1_000;

/// Whether to search images of low resolution a second time, after enhancement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enhance {
    /// Searches the image once, without enhancement.
    #[default]
    Off,
    /// If the short side is under 400 pixels and no reliable face is found, also searches the
    /// enhanced image.
    Auto,
}

/// Which views of an image the detector processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Passes {
    /// One view: the whole image on the canvas.
    Single,
    /// A small view first. If nothing in it looks like a face, the image is not searched.
    /// Otherwise, the whole image on the canvas. Tiles are added if the faces found are so small
    /// that more are likely, and, in a limited number, if usable faces of a large image could be
    /// too small for the canvas.
    #[default]
    Auto,
    /// The whole image, the small view and all tiles, up to the full resolution of the image.
    Thorough,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredFaces {
    /// Every face that has an embedding.
    #[default]
    All,
    /// Faces that meet the quality profile. Embeddings of other faces are unreliable, and such
    /// faces cause most of the work in images of crowds.
    Passed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thumbnails {
    /// Images of which a face is stored. Encoding and writing a thumbnail costs more than the
    /// search for faces in an image that shows none.
    #[default]
    Faces,
    All,
    None,
}

/// The configuration of the service, for all callers.
#[derive(Clone, Debug)]
pub struct Config {
    pub limits: Limits,
    /// Side of the square detection canvas in pixels; a multiple of 32.
    pub det_size: u32,
    /// `DETECTION_PASSES`: which views the detector processes by default.
    pub passes: Passes,
    /// `QUALITY_PROFILE`: the default profile of the quality assessment.
    pub quality_profile: Profile,
    pub stored_faces: StoredFaces,
    pub thumbnails: Thumbnails,
    /// Number of images whose pixels are processed concurrently; 0 means one per core.
    pub decode_threads: usize,
    /// `MAX_DECODED_MEGAPIXELS`, converted to bytes: the maximum memory for all decoded images,
    /// including the memory for decoding and enhancing them. Background work may use three quarters
    /// of it. Images that would exceed these limits wait.
    pub decoded_bytes: u64,
    /// Memory of all processes that decode videos, in bytes. A video that needs more is decoded
    /// alone.
    pub video_decoder_bytes: u64,
    /// Decodes the formats for which this program has no decoder of its own.
    pub images: ImageDecoder,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            det_size: 640,
            passes: Passes::Auto,
            quality_profile: Profile::Standard,
            stored_faces: StoredFaces::All,
            thumbnails: Thumbnails::Faces,
            decode_threads: 0,
            decoded_bytes: 750_000_000,
            video_decoder_bytes: 1 << 30,
            images: ImageDecoder::default(),
        }
    }
}

impl Config {
    /// Returns the options for images that a crawl or a scan stores.
    pub fn storing_options(&self) -> AnalyzeOptions {
        AnalyzeOptions { passed_only: self.stored_faces == StoredFaces::Passed, ..AnalyzeOptions::default() }
    }
}

#[derive(Clone, Debug)]
pub struct AnalyzeOptions {
    /// Minimum `det_score`, from [`MIN_SCORE_FLOOR`] to 1; `None` means the detector's default.
    pub min_score: Option<f32>,
    /// Maximum number of faces, at least 1; the best ones are kept. A value above [`MAX_FACES`] is
    /// reduced to it.
    pub max_faces: Option<usize>,
    pub embeddings: bool,
    /// Whether to skip the embedding of a face that was assessed and does not meet the profile.
    pub passed_only: bool,
    pub quality: bool,
    /// Whether to return the aligned face crops too. Each takes 38 kB.
    pub chips: bool,
    pub rotate: Rotate,
    /// Whether to search the enhanced image if that may find more faces.
    pub enhance: Enhance,
    /// Side of the detection canvas in pixels, a multiple of 32 from 64 to 2048; `None` means that
    /// of [`Config`]. A detector with a fixed input size keeps its own canvas.
    pub det_size: Option<u32>,
    /// Which views the detector processes; `None` means the setting of [`Config`].
    pub passes: Option<Passes>,
    /// Profile of the quality assessment; `None` means that of [`Config`].
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

/// The options of one analysis after defaults are applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(super) canvas: (u32, u32),
    pub(super) passes: Passes,
    pub(super) min_score: f32,
    pub(super) max_faces: usize,
    pub(super) profile: Profile,
}

/// One search for faces, with its times so far.
pub(super) struct Run<'a> {
    pub(super) analyzer: &'a Analyzer,
    pub(super) options: &'a AnalyzeOptions,
    pub(super) settings: Settings,
    pub(super) priority: Priority,
    pub(super) timings: Timings,
}

impl Analyzer {
    /// Begins a search for faces, after the stages that took `timings`.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Option`] if an option is out of range.
    pub(super) fn run<'a>(
        &'a self,
        options: &'a AnalyzeOptions,
        priority: Priority,
        timings: Timings,
    ) -> Result<Run<'a>, AnalyzeError> {
        Ok(Run { analyzer: self, options, settings: self.settings(options)?, priority, timings })
    }

    /// Checks the options and applies the defaults.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Option`] if an option is out of range.
    pub(crate) fn settings(&self, options: &AnalyzeOptions) -> Result<Settings, AnalyzeError> {
        let detector = self.engine().detector();
        let min_score = options.min_score.unwrap_or_else(|| detector.min_score.max(MIN_SCORE_FLOOR));
        if !(MIN_SCORE_FLOOR..=1.0).contains(&min_score) {
            return Err(AnalyzeError::Option(format!(
                "min_score is {min_score}; it must be from {MIN_SCORE_FLOOR} to 1"
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
            canvas: self.canvas(side),
            passes: options.passes.unwrap_or(self.config().passes),
            min_score,
            max_faces: options.max_faces.map_or(MAX_FACES, |most| most.min(MAX_FACES)),
            profile: options.quality_profile.unwrap_or(self.config().quality_profile),
        })
    }
}
