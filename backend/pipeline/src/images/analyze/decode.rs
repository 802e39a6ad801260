//! The first stage of an analysis: from the bytes of a file to pixels and hashes. The decoders are
//! in the crate `vision`; ffmpeg, which decodes some formats, is run by the crate `video`.

use super::{AnalyzeError, Analyzer, Enhance, Timings};
use bytes::Bytes;
use inference::{Priority, trace};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;
use vision::enhance::{self, Enhanced, LOW_SIDE};
use vision::{Format, Frame, PerceptualHashes};

/// A decoded image before the search for faces. Its share of the memory budget is returned when the
/// last reference to its pixels is dropped.
#[derive(Clone, Debug)]
pub struct DecodedImage {
    /// The pixels, as a browser shows the image.
    pub frame: Arc<Frame>,
    pub format: Format,
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    pub hashes: PerceptualHashes,
    pub bytes: usize,
    pub(super) timings: Timings,
    pub(super) started: Instant,
}

impl Analyzer {
    /// Returns the SHA-256 of a file. The hash suffices to recognise an exact duplicate and costs
    /// far less than decoding.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Panicked`], or with `DeadlineExceeded` after the deadline of
    /// [`Self::before`].
    pub async fn digest(&self, bytes: Bytes) -> Result<[u8; 32], AnalyzeError> {
        Ok(self.cpu().run(move || sha256(&bytes)).await?.output)
    }

    /// Decodes and hashes an image. It first waits for memory with `priority`, until the deadline
    /// of [`Self::before`] at the latest.
    ///
    /// A caller that holds a [`DecodedImage`] must not wait for another one, because callers could
    /// then block each other forever; see [`crate::admission::budget`].
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Decode`], [`AnalyzeError::Exhausted`],
    /// [`AnalyzeError::Panicked`], or with `DeadlineExceeded` after the deadline.
    pub async fn decode(&self, bytes: Bytes, priority: Priority) -> Result<DecodedImage, AnalyzeError> {
        self.decode_hashed(bytes, None, Enhance::Off, priority).await
    }

    /// Decodes and enhances an image (see [`vision::enhance`]).
    ///
    /// # Errors
    /// Fails with the errors of [`Self::decode`] and of [`super::Pixels::enhance`].
    pub async fn enhance(&self, bytes: Bytes, priority: Priority) -> Result<Enhanced, AnalyzeError> {
        let limits = self.config().limits;
        let extra_bytes = |image| enhance::working_bytes(image, &limits);
        let decoded = self.decode_with(bytes, None, extra_bytes, priority).await?;
        Ok(self.pixels().enhance(decoded.frame, priority).await?.output)
    }

    /// Works like [`Self::decode`]. With [`Enhance::Auto`], it also reserves the memory for the
    /// enhancement of a small image. `known` is the SHA-256 of `bytes` if the caller has it.
    pub(crate) async fn decode_hashed(
        &self,
        bytes: Bytes,
        known: Option<[u8; 32]>,
        enhance: Enhance,
        priority: Priority,
    ) -> Result<DecodedImage, AnalyzeError> {
        let limits = self.config().limits;
        let extra_bytes = |image: (u32, u32)| match enhance {
            Enhance::Auto if image.0.min(image.1) < LOW_SIDE => enhance::working_bytes(image, &limits),
            _ => 0,
        };
        self.decode_with(bytes, known, extra_bytes, priority).await
    }

    /// Decodes and hashes an image. `extra_bytes` returns the number of bytes that the caller will
    /// use in addition to an image of the given size (width, height).
    async fn decode_with(
        &self,
        bytes: Bytes,
        known: Option<[u8; 32]>,
        extra_bytes: impl FnOnce((u32, u32)) -> u64,
        priority: Priority,
    ) -> Result<DecodedImage, AnalyzeError> {
        let started = Instant::now();
        let limits = self.config().limits;
        let length = bytes.len();
        let read = bytes.clone();
        let probed = self.inner.header_cpu.run(move || vision::probe(&read, &limits)).await?;
        let head = probed.output?;
        let held_bytes = head.decoded_bytes() + extra_bytes((head.width, head.height));
        let requested = Instant::now();
        let budget = &self.inner.memory;
        let mut share =
            budget.take(head.decoding_bytes().max(held_bytes), priority, self.engine().deadline()).await?;
        let waited = requested.elapsed();
        let images = head.format.needs_ffmpeg().then(|| self.config().images.clone());
        let ran = self
            .cpu()
            .run(move || {
                let _span = tracing::trace_span!(target: trace::RUN, "decode and hash").entered();
                let decoded = match images {
                    Some(images) => images.decode(&bytes, &limits)?,
                    None => vision::decode(&bytes, &limits)?,
                };
                share.shrink(held_bytes);
                let frame = decoded.frame.with_attachment(share);
                let hashes = PerceptualHashes::of(&frame);
                Ok::<_, AnalyzeError>((frame, hashes, known.unwrap_or_else(|| sha256(&bytes))))
            })
            .instrument(tracing::trace_span!(target: trace::STAGE, "decode", bytes = length))
            .await?;
        let (frame, hashes, sha256) = ran.output?;
        let queue = probed.queued + waited + ran.queued;
        Ok(DecodedImage {
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
