//! Analyses one image: decodes it, detects and aligns its faces, assesses and embeds them.
//!
//! The analysis has two stages, so that a caller can stop after the first. [`Analyzer::decode`]
//! returns pixels and hashes, which suffice to recognise a duplicate. [`Analyzer::find_faces`]
//! finds, assesses and embeds the faces. [`Analyzer::analyze`] runs both.
//!
//! The models, their batches and their devices are in the crate `inference`. The algorithms on
//! pixels are in the crate `vision`.

mod aligned;
mod cpu;
mod decode;
mod enhanced;
mod error;
mod faces;
mod options;
mod pixels;
mod result;
mod rotation;
mod search;
mod turns;

pub use decode::DecodedImage;
pub use error::AnalyzeError;
pub use options::{
    AnalyzeOptions, Config, Enhance, MAX_FACES, MIN_SCORE_FLOOR, Passes, StoredFaces, Thumbnails, profile_of,
};
pub use pixels::Pixels;
pub use result::{Analysis, AnalyzedFace, Timings};
pub use search::small_view;

use crate::admission::budget::{Budget, Exhausted, Share};
use crate::admission::image_budget::DecodedImageBudget;
use bytes::Bytes;
use cpu::{CallerCpu, Cpu};
use inference::{Engine, Priority, Requester, trace};
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;
use vision::{Frame, Letterbox};

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
    memory: DecodedImageBudget,
    /// Memory of processes that decode videos.
    decoders: Budget,
}

impl Analyzer {
    pub fn new(engine: Engine, config: Config) -> Self {
        let (cpu, header_cpu) = (Cpu::new(config.decode_threads), Cpu::new(config.decode_threads));
        let largest = config.limits.max_pixels.saturating_mul(vision::BYTES_PER_PIXEL);
        let memory = DecodedImageBudget::new(config.decoded_bytes, largest);
        let decoders = Budget::new("video_decoders", config.video_decoder_bytes);
        Self { engine, inner: Arc::new(Inner { config, cpu, header_cpu, memory, decoders }) }
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

    /// Waits for memory for `bytes` of decoded pixels, until the deadline of [`Self::before`].
    ///
    /// # Errors
    /// Fails with [`crate::Exhausted`] if the memory does not become free in time.
    pub(crate) async fn reserve(&self, bytes: u64, priority: Priority) -> Result<Share, Exhausted> {
        self.inner.memory.take(bytes, priority, self.engine.deadline()).await
    }

    /// Works like [`Self::reserve`], for `bytes` of a process that decodes a video. Take it before
    /// the memory for its frames.
    ///
    /// # Errors
    /// Fails with [`crate::Exhausted`] if the memory does not become free in time.
    pub(crate) async fn reserve_decoder(&self, bytes: u64, priority: Priority) -> Result<Share, Exhausted> {
        self.inner.decoders.take(bytes, priority, self.engine.deadline()).await
    }

    /// Returns the thread pool for work on pixels, with the requester of [`Self::on_behalf_of`] and
    /// the deadline of [`Self::before`].
    pub(crate) fn cpu(&self) -> CallerCpu<'_> {
        CallerCpu {
            cpu: &self.inner.cpu,
            requester: self.engine.requester(),
            deadline: self.engine.deadline(),
        }
    }
}
