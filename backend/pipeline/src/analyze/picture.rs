//! The first stage: bytes to pixels and hashes.

use super::{AnalyzeError, Analyzer, Enhance, Timings};
use bytes::Bytes;
use inference::{Lane, trace};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;
use vision::enhance::{self, Enhanced, LOW_SIDE};
use vision::{Format, Frame, PerceptualHashes};

/// A decoded picture, before anything was looked for in it. Its place in the memory for pixels goes with the last of its pixels.
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
    /// [`AnalyzeError::Panicked`], and `DeadlineExceeded` after the deadline of [`Self::before`].
    pub async fn digest(&self, bytes: Bytes) -> Result<[u8; 32], AnalyzeError> {
        Ok(self.cpu().run(move || sha256(&bytes)).await?.output)
    }

    /// Decodes and hashes, once there is memory for it. Waits for that in the lane of the work, and not beyond the deadline of [`Self::before`].
    ///
    /// Whoever holds a picture must not wait for another one: see [`crate::budget`].
    ///
    /// # Errors
    /// [`AnalyzeError::Decode`], [`AnalyzeError::Exhausted`] and [`AnalyzeError::Panicked`].
    pub async fn decode(&self, bytes: Bytes, lane: Lane) -> Result<Picture, AnalyzeError> {
        self.decode_hashed(bytes, None, Enhance::Off, lane).await
    }

    /// Decodes and enhances (see [`vision::enhance`]).
    ///
    /// # Errors
    /// Those of [`Self::decode`] and of [`super::Pixels::enhance`].
    pub async fn enhance(&self, bytes: Bytes, lane: Lane) -> Result<Enhanced, AnalyzeError> {
        let limits = self.config().limits;
        let besides = |image| enhance::working_bytes(image, &limits);
        let picture = self.decode_with(bytes, None, besides, lane).await?;
        Ok(self.pixels().enhance(picture.frame, lane).await?.output)
    }

    /// [`Self::decode`] of a picture that is looked at enhanced too, where that is asked for, and of bytes whose sha256 may be known already.
    pub(crate) async fn decode_hashed(
        &self,
        bytes: Bytes,
        known: Option<[u8; 32]>,
        enhance: Enhance,
        lane: Lane,
    ) -> Result<Picture, AnalyzeError> {
        let limits = self.config().limits;
        let besides = |image: (u32, u32)| match enhance {
            Enhance::Auto if image.0.min(image.1) < LOW_SIDE => enhance::working_bytes(image, &limits),
            _ => 0,
        };
        self.decode_with(bytes, known, besides, lane).await
    }

    /// `besides`: bytes that will be held beside a picture of this size.
    async fn decode_with(
        &self,
        bytes: Bytes,
        known: Option<[u8; 32]>,
        besides: impl FnOnce((u32, u32)) -> u64,
        lane: Lane,
    ) -> Result<Picture, AnalyzeError> {
        let started = Instant::now();
        let limits = self.config().limits;
        let length = bytes.len();
        let read = bytes.clone();
        let probed = self.inner.heads.run(move || vision::probe(&read, &limits)).await?;
        let head = probed.output?;
        let kept = head.decoded_bytes() + besides((head.width, head.height));
        let asked = Instant::now();
        let budget = &self.inner.memory;
        let mut share = budget.take(head.decoding_bytes().max(kept), lane, self.engine().deadline()).await?;
        let waited = asked.elapsed();
        let ran = self
            .cpu()
            .run(move || {
                let _span = tracing::trace_span!(target: trace::RUN, "decode and hash").entered();
                let decoded = vision::decode(&bytes, &limits)?;
                share.shrink(kept);
                let frame = decoded.frame.holding(share);
                let hashes = PerceptualHashes::of(&frame);
                Ok::<_, AnalyzeError>((frame, hashes, known.unwrap_or_else(|| sha256(&bytes))))
            })
            .instrument(tracing::trace_span!(target: trace::STAGE, "decode", bytes = length))
            .await?;
        let (frame, hashes, sha256) = ran.output?;
        let queue = probed.queued + waited + ran.queued;
        Ok(Picture {
            frame: Arc::new(frame),
            format: head.format,
            sha256,
            hashes,
            bytes: length,
            timings: Timings { decode: probed.ran + ran.ran, queue, ..Timings::default() },
            started,
        })
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
