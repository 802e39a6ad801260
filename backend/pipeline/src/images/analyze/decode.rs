//! The first stage of an analysis: from the bytes of a file to pixels and hashes, on a bounded pool
//! of threads. The decoders are in the crate `vision`; ffmpeg, which decodes some formats, is run
//! by the crate `video`.
use super::{AnalyzeError, Analyzer, Enhance, Timings};
use crate::admission::places::FairSemaphore;
use bytes::Bytes;
use inference::{Operation, Priority, Requester, RunError, Timed, trace};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;
use vision::enhance::{Enhanced, LOW_RESOLUTION_SIDE};
use vision::{Format, Frame, PerceptualHashes, enhance};

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
    /// [`Self::with_deadline`].
    pub async fn digest(&self, bytes: Bytes) -> Result<[u8; 32], AnalyzeError> {
        Ok(self.cpu().run(move || sha256(&bytes)).await?.output)
    }

    /// Decodes and hashes an image. It first waits for memory with `priority`, until the deadline
    /// of [`Self::with_deadline`] at the latest.
    ///
    /// A caller that holds a [`DecodedImage`] must not wait for another one, because callers could
    /// then block each other forever; see [`crate::admission`].
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
    /// enhancement of a small image. `known_sha256` is the SHA-256 of `bytes` if the caller has it.
    pub(crate) async fn decode_hashed(
        &self,
        bytes: Bytes,
        known_sha256: Option<[u8; 32]>,
        enhance: Enhance,
        priority: Priority,
    ) -> Result<DecodedImage, AnalyzeError> {
        let limits = self.config().limits;
        let extra_bytes = |image: (u32, u32)| match enhance {
            Enhance::Auto if image.0.min(image.1) < LOW_RESOLUTION_SIDE => {
                enhance::working_bytes(image, &limits)
            }
            _ => 0,
        };
        self.decode_with(bytes, known_sha256, extra_bytes, priority).await
    }

    /// Decodes and hashes an image. `extra_bytes` returns the number of bytes that the caller will
    /// use in addition to an image of the given size (width, height).
    async fn decode_with(
        &self,
        bytes: Bytes,
        known_sha256: Option<[u8; 32]>,
        extra_bytes: impl FnOnce((u32, u32)) -> u64,
        priority: Priority,
    ) -> Result<DecodedImage, AnalyzeError> {
        let started = Instant::now();
        let limits = self.config().limits;
        let length = bytes.len();
        let header_bytes = bytes.clone();
        let probed = self.inner.header_cpu.run(move || vision::probe(&header_bytes, &limits)).await?;
        let head = probed.output?;
        let held_bytes = head.decoded_bytes() + extra_bytes((head.width, head.height));
        let requested = Instant::now();
        let budget = &self.memory().images;
        let mut share =
            budget.acquire(head.decoding_bytes().max(held_bytes), priority, self.engine().deadline()).await?;
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
                Ok::<_, AnalyzeError>((frame, hashes, known_sha256.unwrap_or_else(|| sha256(&bytes))))
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

/// A bounded share of Tokio's blocking threads. Cloning it is cheap.
#[derive(Clone)]
pub(crate) struct CpuPool {
    permits: FairSemaphore,
    requester: Requester,
    deadline: Option<Instant>,
}

impl CpuPool {
    /// Creates a pool that runs up to `threads` tasks concurrently; 0 means one per core.
    pub(super) fn new(threads: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let permits = FairSemaphore::new(if threads == 0 { cores } else { threads });
        Self { permits, requester: Requester::default(), deadline: None }
    }

    /// Returns the same pool for work on behalf of a requester that needs no result after the
    /// deadline. Requesters are served in turn.
    pub(super) fn for_caller(&self, requester: Requester, deadline: Option<Instant>) -> Self {
        Self { permits: self.permits.clone(), requester, deadline }
    }

    /// Runs `work` on a blocking thread as soon as one is free. A panic in `work` becomes
    /// [`AnalyzeError::Panicked`]. The work holds the permit, so the limit applies even if the
    /// caller drops the future. Does not start the work after the deadline or after the caller has
    /// dropped the future.
    ///
    /// # Errors
    /// Fails with `DeadlineExceeded` at the deadline, or immediately if it has passed.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Timed<T>, AnalyzeError> {
        let deadline = self.deadline;
        let requested_at = Instant::now();
        let is_late = move || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if is_late() {
            return Err(deadline_error());
        }
        let permit = await_until(deadline, self.permits.acquire(self.requester)).await?;
        // Dropped together with this future. Through the weak reference, the work checks whether
        // the caller still waits.
        let caller = Arc::new(());
        let waiting_caller = Arc::downgrade(&caller);
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            if is_late() || waiting_caller.strong_count() == 0 {
                return None;
            }
            let queued = requested_at.elapsed();
            let started = Instant::now();
            let output = work();
            Some(Timed { output, queued, ran: started.elapsed() })
        });
        let joined = await_until(deadline, task).await?;
        drop(caller);
        let timed = joined.map_err(|error| {
            tracing::error!(%error, "pixel task failed");
            AnalyzeError::Panicked
        })?;
        timed.ok_or_else(deadline_error)
    }
}

/// Awaits `work` until `deadline` at the latest.
async fn await_until<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Result<T, AnalyzeError> {
    match deadline {
        None => Ok(work.await),
        Some(deadline) => tokio::time::timeout_at(deadline.into(), work).await.map_err(|_| deadline_error()),
    }
}

fn deadline_error() -> AnalyzeError {
    RunError::DeadlineExceeded { operation: Operation::ImageProcessing.name() }.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn panic_returns_error_and_frees_thread() {
        let cpu = CpuPool::new(1);
        for _ in 0..3 {
            let ran = cpu.run(|| -> u32 { panic!("a decoder's bug") }).await;
            assert!(matches!(ran.err(), Some(AnalyzeError::Panicked)));
        }
        assert_eq!(cpu.run(|| 7).await.map(|ran| ran.output).ok(), Some(7));
    }

    fn is_deadline_error<T>(result: Result<Timed<T>, AnalyzeError>) -> bool {
        matches!(result.err(), Some(AnalyzeError::Run(RunError::DeadlineExceeded { .. })))
    }

    #[tokio::test]
    async fn cpu_work_past_deadline_is_not_started() {
        let cpu = CpuPool::new(1);
        let runs = Arc::new(AtomicUsize::new(0));
        let work = || {
            let runs = runs.clone();
            move || runs.fetch_add(1, Ordering::SeqCst)
        };
        assert!(is_deadline_error(cpu.for_caller(Requester(1), Some(Instant::now())).run(work()).await));
        // The deadline passes while other work uses the only thread.
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let busy = cpu.clone();
        let busy = tokio::spawn(async move {
            busy.run(move || {
                let _ = started.send(());
                finished.recv()
            })
            .await
        });
        has_started.await.unwrap();
        let soon = Instant::now() + std::time::Duration::from_millis(20);
        assert!(is_deadline_error(cpu.for_caller(Requester(1), Some(soon)).run(work()).await));
        // The caller drops the future.
        drop(Box::pin(cpu.run(work())));
        finish.send(()).unwrap();
        assert!(busy.await.unwrap().is_ok());
        assert_eq!(runs.load(Ordering::SeqCst), 0);
        assert!(
            cpu.for_caller(Requester(1), Some(Instant::now() + std::time::Duration::from_secs(60)))
                .run(work())
                .await
                .is_ok()
        );
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }
}
