//! Analyses one image: decodes it, detects and aligns its faces, assesses and embeds them.
//!
//! The analysis has two stages, so that a caller can stop after the first. [`Analyzer::decode`]
//! returns pixels and hashes, which suffice to recognise a duplicate. [`Analyzer::find_faces`]
//! finds, assesses and embeds the faces. [`Analyzer::analyze`] runs both.
//!
//! The models, their batches and their devices are in the crate `inference`. The algorithms on
//! pixels are in the crate `vision`.
mod decode;
mod faces;
mod pixels;
mod search;
use crate::admission::budget::{AnalysisMemory, Budget, BudgetExhausted, DecodedImageBudget};
use crate::domain::Rotate;
use bytes::Bytes;
use decode::CpuPool;
pub use decode::DecodedImage;
use domain::{Reason, Unprocessed};
use inference::{Embedding, Engine, Priority, Requester, RunError, trace};
pub use pixels::Pixels;
pub use search::small_view;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;
use video::{ImageDecoder, ImageError};
use vision::{
    DecodeError, Detection, Format, Frame, Letterbox, Limits, PerceptualHashes, Profile, QualityReport,
};

/// Analyses images. Cloning it is cheap.
#[derive(Clone)]
pub struct Analyzer {
    engine: Engine,
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    cpu: CpuPool,
    /// A separate pool that parses image headers, so that parsing does not wait for decoding.
    header_cpu: CpuPool,
    memory: AnalysisMemory,
}

impl Analyzer {
    pub fn new(engine: Engine, config: Config) -> Self {
        let (cpu, header_cpu) = (CpuPool::new(config.decode_threads), CpuPool::new(config.decode_threads));
        let largest = config.limits.max_pixels.saturating_mul(vision::BYTES_PER_PIXEL);
        let memory = AnalysisMemory {
            images: DecodedImageBudget::new(config.decoded_bytes, largest),
            decoders: Budget::new("video_decoders", config.video_decoder_bytes),
        };
        Self { engine, inner: Arc::new(Inner { config, cpu, header_cpu, memory }) }
    }

    /// Returns the same analyzer for a caller that needs no result after `deadline`; see
    /// [`Engine::with_deadline`].
    pub fn with_deadline(&self, deadline: Instant) -> Self {
        Self { engine: self.engine.with_deadline(deadline), inner: self.inner.clone() }
    }

    /// Returns the same analyzer for work on behalf of `requester`; see [`Engine::with_requester`].
    pub fn on_behalf_of(&self, requester: Requester) -> Self {
        Self { engine: self.engine.with_requester(requester), inner: self.inner.clone() }
    }

    /// Analyses one image.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError`]. The options are checked before any work is done.
    pub async fn analyze(
        &self,
        bytes: Bytes,
        options: &AnalyzeOptions,
        priority: Priority,
    ) -> Result<Analysis, AnalyzeError> {
        self.resolve_options(options)?;
        let analysis = async {
            let decoded = self.decode_hashed(bytes, None, options.enhance, priority).await?;
            self.find_faces(decoded, options, priority).await
        };
        analysis.instrument(tracing::trace_span!(target: trace::STAGE, "analyze")).await
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Returns the placement of a whole frame on the detector's canvas.
    pub fn letterbox(&self, frame: &Frame) -> Letterbox {
        let canvas = self.canvas(self.config().det_size);
        self.engine.face_detector().adapt_letterbox(Letterbox::fit((frame.width(), frame.height()), canvas))
    }

    /// Returns the canvas for `det_size`: a square, unless the detector accepts only one size.
    fn canvas(&self, det_size: u32) -> (u32, u32) {
        self.engine.detector().fixed_size.unwrap_or((det_size, det_size))
    }

    /// Returns the budgets of the memory of all analyses.
    pub(crate) fn memory(&self) -> &AnalysisMemory {
        &self.inner.memory
    }

    /// Returns the thread pool for work on pixels, with the requester of [`Self::on_behalf_of`] and
    /// the deadline of [`Self::with_deadline`].
    pub(crate) fn cpu(&self) -> CpuPool {
        self.inner.cpu.for_caller(self.engine.requester(), self.engine.deadline())
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum AnalyzeError {
    /// The file is not an image, has an unsupported format, or exceeds a limit.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A model failed, is overloaded, is stopping, or did not finish before the deadline.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Other images use all the memory for pixels.
    #[error(transparent)]
    Exhausted(#[from] BudgetExhausted),
    /// An option is out of range. The text is a complete sentence.
    #[error("{0}")]
    Option(String),
    /// ffmpeg, which decodes the format, could not be run or was killed.
    #[error("the decoder failed: {0}")]
    Decoder(String),
    /// Code that works on pixels panicked. The image is rejected; the service continues.
    #[error("the image could not be decoded")]
    Panicked,
}

impl From<ImageError> for AnalyzeError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Decode(error) => error.into(),
            ImageError::Decoder(error) => Self::Decoder(error.to_string()),
        }
    }
}

impl AnalyzeError {
    /// Returns the state of an image that cannot be analysed: skipped if the file is not a usable
    /// image, failed if it is corrupt or if the service failed.
    pub fn state(&self) -> Unprocessed {
        match self {
            Self::Decode(DecodeError::Corrupt { .. }) => Unprocessed::Failed,
            Self::Decode(_) => Unprocessed::Skipped,
            _ => Unprocessed::Failed,
        }
    }

    /// Returns the reason that the ledgers show.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Decode(error) => error.reason(),
            Self::Panicked | Self::Decoder(_) => Reason::DecoderPanicked,
            Self::Option(_) => Reason::InvalidOption,
            Self::Run(RunError::Overloaded { .. }) | Self::Exhausted(_) => Reason::Overloaded,
            Self::Run(RunError::DeadlineExceeded { .. }) => Reason::DeadlineExceeded,
            Self::Run(RunError::Stopped) => Reason::Stopping,
            Self::Run(_) => Reason::InferenceFailed,
        }
    }
}

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
    fn record(&self) {
        for (stage, duration) in [
            ("decode", self.decode),
            ("letterbox", self.letterbox),
            ("detect", self.detect),
            ("align", self.align),
            ("quality", self.quality),
            ("embed", self.embed),
            ("queue", self.queue),
            ("total", self.total),
        ] {
            metrics::histogram!("facecrawl_stage_seconds", "stage" => stage).record(duration);
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

/// Minimum accepted value of `min_score`. Below this value, detectors report noise. With 0, YuNet
/// finds thousands of faces in each view of a grey wall, and each costs a comparison, a crop and an
/// embedding.
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

/// The views of an image that the detector processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Passes {
    /// One view: the whole image on the canvas.
    Single,
    /// First a small view. If it contains no sign of a face, the search ends. Otherwise, the whole
    /// image on the canvas follows. Tiles follow if the found faces are so small that more faces
    /// are likely. A limited number of tiles follows if usable faces of a large image could be too
    /// small for the canvas.
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
    /// Only images with a stored face. Encoding and writing a thumbnail costs more than the search
    /// for faces in an image that shows none.
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
    /// `DETECTION_PASSES`: the views that the detector processes by default.
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
    /// Memory of all processes that decode videos, in bytes. A larger video is decoded alone.
    pub video_decoder_bytes: u64,
    /// Decodes the formats for which this program has no own decoder.
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
    pub fn storage_options(&self) -> AnalyzeOptions {
        AnalyzeOptions { passed_only: self.stored_faces == StoredFaces::Passed, ..AnalyzeOptions::default() }
    }
}

#[derive(Clone, Debug)]
pub struct AnalyzeOptions {
    /// Minimum `det_score`, from [`MIN_SCORE_FLOOR`] to 1; `None` means the detector's default.
    pub min_score: Option<f32>,
    /// Maximum number of faces, at least 1 and at most [`MAX_FACES`]; the best ones are kept.
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
    /// Side of the detection canvas in pixels, a multiple of 32 from 64 to 2048; `None` means the
    /// value in [`Config`]. A detector with a fixed input size keeps its own canvas.
    pub det_size: Option<u32>,
    /// The views that the detector processes; `None` means the setting of [`Config`].
    pub passes: Option<Passes>,
    /// Profile of the quality assessment; `None` means the profile in [`Config`].
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
    canvas: (u32, u32),
    passes: Passes,
    min_score: f32,
    max_faces: usize,
    profile: Profile,
}

/// One search for faces, with its times so far.
struct Run<'a> {
    analyzer: &'a Analyzer,
    options: &'a AnalyzeOptions,
    settings: Settings,
    priority: Priority,
    timings: Timings,
}

impl Analyzer {
    /// Begins a search for faces, after the stages that took `timings`.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Option`] if an option is out of range.
    fn begin_run<'a>(
        &'a self,
        options: &'a AnalyzeOptions,
        priority: Priority,
        timings: Timings,
    ) -> Result<Run<'a>, AnalyzeError> {
        Ok(Run { analyzer: self, options, settings: self.resolve_options(options)?, priority, timings })
    }

    /// Checks the options and applies the defaults.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Option`] if an option is out of range.
    pub(crate) fn resolve_options(&self, options: &AnalyzeOptions) -> Result<Settings, AnalyzeError> {
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
            max_faces: options.max_faces.map_or(MAX_FACES, |limit| limit.min(MAX_FACES)),
            profile: options.quality_profile.unwrap_or(self.config().quality_profile),
        })
    }
}
