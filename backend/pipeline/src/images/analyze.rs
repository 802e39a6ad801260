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
mod options;
mod pixels;
mod search;
use crate::admission::budget::{AnalysisMemory, Budget, DecodedImageBudget, Exhausted};
use bytes::Bytes;
use decode::Cpu;
pub use decode::DecodedImage;
use domain::{Reason, Unprocessed};
use inference::{Embedding, Engine, Priority, Requester, RunError, trace};
pub use options::{
    AnalyzeOptions, Config, Enhance, MAX_FACES, MIN_SCORE_FLOOR, Passes, StoredFaces, Thumbnails,
};
pub use pixels::Pixels;
pub use search::small_view;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;
use video::ImageError;
use vision::{DecodeError, Detection, Format, Frame, Letterbox, PerceptualHashes, QualityReport};

/// Analyses images. Cloning it is cheap.
#[derive(Clone)]
pub struct Analyzer {
    engine: Engine,
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    cpu: Cpu,
    /// A separate pool that parses image headers. Parsing takes microseconds and must not wait for
    /// decoding.
    header_cpu: Cpu,
    memory: AnalysisMemory,
}

impl Analyzer {
    pub fn new(engine: Engine, config: Config) -> Self {
        let (cpu, header_cpu) = (Cpu::new(config.decode_threads), Cpu::new(config.decode_threads));
        let largest = config.limits.max_pixels.saturating_mul(vision::BYTES_PER_PIXEL);
        let memory = AnalysisMemory {
            images: DecodedImageBudget::new(config.decoded_bytes, largest),
            decoders: Budget::new("video_decoders", config.video_decoder_bytes),
        };
        Self { engine, inner: Arc::new(Inner { config, cpu, header_cpu, memory }) }
    }

    /// Returns the same analyzer for a caller that needs no result after `deadline`; see
    /// [`Engine::before`].
    pub fn before(&self, deadline: Instant) -> Self {
        Self { engine: self.engine.before(deadline), inner: self.inner.clone() }
    }

    /// Returns the same analyzer for work on behalf of `requester`; see [`Engine::on_behalf_of`].
    pub fn on_behalf_of(&self, requester: Requester) -> Self {
        Self { engine: self.engine.on_behalf_of(requester), inner: self.inner.clone() }
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
        self.settings(options)?;
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
        self.engine.faces().adapt_letterbox(Letterbox::fit((frame.width(), frame.height()), canvas))
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
    /// the deadline of [`Self::before`].
    pub(crate) fn cpu(&self) -> Cpu {
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
    Exhausted(#[from] Exhausted),
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
