//! The first stage: bytes to pixels and hashes.

use super::{AnalyzeError, Analyzer, Timings};
use bytes::Bytes;
use inference::trace;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;
use vision::{Format, Frame, PerceptualHashes};

/// A decoded picture, before anything was looked for in it.
#[derive(Clone, Debug)]
pub struct Picture {
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
    pub(super) timings: Timings,
    pub(super) started: Instant,
}

impl Analyzer {
    /// The sha256 of a file: enough to tell an exact duplicate, and far cheaper than decoding it.
    ///
    /// # Errors
    /// Only [`AnalyzeError::Panicked`].
    pub async fn digest(&self, bytes: Bytes) -> Result<[u8; 32], AnalyzeError> {
        Ok(self.cpu().run(move || sha256(&bytes)).await?.output)
    }

    /// Decodes and hashes.
    ///
    /// # Errors
    /// [`AnalyzeError::Decode`] and [`AnalyzeError::Panicked`].
    pub async fn decode(&self, bytes: Bytes) -> Result<Picture, AnalyzeError> {
        self.decode_hashed(bytes, None).await
    }

    /// [`Self::decode`] for bytes whose sha256 is known already.
    pub(crate) async fn decode_hashed(
        &self,
        bytes: Bytes,
        known: Option<[u8; 32]>,
    ) -> Result<Picture, AnalyzeError> {
        let started = Instant::now();
        let limits = self.config().limits;
        let length = bytes.len();
        let ran = self
            .cpu()
            .run(move || {
                let _span = tracing::trace_span!(target: trace::RUN, "decode and hash").entered();
                let decoded = vision::decode(&bytes, &limits)?;
                let hashes = PerceptualHashes::of(&decoded.frame);
                Ok::<_, AnalyzeError>((decoded, hashes, known.unwrap_or_else(|| sha256(&bytes))))
            })
            .instrument(tracing::trace_span!(target: trace::STAGE, "decode", bytes = length))
            .await?;
        let (decoded, hashes, sha256) = ran.output?;
        Ok(Picture {
            frame: Arc::new(decoded.frame),
            format: decoded.format,
            sha256,
            hashes,
            bytes: length,
            timings: Timings { decode: ran.ran, queue: ran.queued, ..Timings::default() },
            started,
        })
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
