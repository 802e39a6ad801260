//! decode -> detect -> align -> quality -> embed, for one picture.
//!
//! The work is offered in two stages, so that a caller can stop in between: [`Analyzer::decode`] gives pixels and hashes (enough to tell a
//! duplicate), [`Analyzer::find_faces`] does the rest. [`Analyzer::analyze`] is both.

mod aligned;
mod cpu;
mod enhanced;
mod error;
mod faces;
mod options;
mod picture;
mod pixels;
mod result;
mod search;
mod turn;

pub use error::AnalyzeError;
pub use options::{AnalyzeOptions, Config, Enhance, LOWEST_SCORE, Passes, Rotate, StoredFaces, profile_of};
pub use picture::Picture;
pub use pixels::Pixels;
pub use result::{Analysis, AnalyzedFace, Timings};

use crate::budget::Budget;
use bytes::Bytes;
use cpu::Cpu;
use inference::{Engine, Lane, trace};
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;

/// The path; cheap to clone.
#[derive(Clone)]
pub struct Analyzer {
    engine: Engine,
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    cpu: Cpu,
    /// The same for heads of files: microseconds, which are not to wait behind decodings.
    heads: Cpu,
    /// Memory for pixels.
    memory: Budget,
}

impl Analyzer {
    /// On a started engine.
    pub fn new(engine: Engine, config: Config) -> Self {
        let (cpu, heads) = (Cpu::new(config.decode_threads), Cpu::new(config.decode_threads));
        let largest = config.limits.max_pixels.saturating_mul(vision::BYTES_PER_PIXEL);
        let memory = Budget::new("decoded_pictures", config.decoded_bytes).with_background_room(largest);
        Self { engine, inner: Arc::new(Inner { config, cpu, heads, memory }) }
    }

    /// The same path for a caller who has no use for an answer after `deadline`; see [`Engine::before`].
    pub fn before(&self, deadline: Instant) -> Self {
        Self { engine: self.engine.before(deadline), inner: self.inner.clone() }
    }

    /// Analyses one picture.
    ///
    /// # Errors
    /// [`AnalyzeError`]; an option out of range is told before any work is done.
    pub async fn analyze(
        &self,
        bytes: Bytes,
        options: &AnalyzeOptions,
        lane: Lane,
    ) -> Result<Analysis, AnalyzeError> {
        self.settings(options)?;
        let analysis = async {
            let picture = self.decode_hashed(bytes, None, options.enhance, lane).await?;
            self.find_faces(picture, options, lane).await
        };
        analysis.instrument(tracing::trace_span!(target: trace::STAGE, "analyze")).await
    }

    /// The engine behind it.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What the service chose for everyone.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(crate) fn cpu(&self) -> &Cpu {
        &self.inner.cpu
    }
}
