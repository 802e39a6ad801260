//! Handles `scan_video`: copies the file of a video, analyses it and stores its tracks part by
//! part. If the worker ends, the next one continues after the last part.

use super::video_file::{self, CopyError};
use crate::domain::jobs::{self, VideoJob};
use crate::ingest::{ReadVideoError, VideoReader};
use crate::{AnalyzeError, Ingest, IngestError, VideoAnalyzeError};
use crawler::Fetcher;
use domain::{Reason, VideoState};
use queue::{ClaimedJob, Handler, Outcome, Queue, QueueError};
use std::path::PathBuf;
use std::time::Duration;
use store::videos::VideoEnd;
use store::{Store, StoreError, retried};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use video::{Decoder, VideoError};

/// What a worker needs to read videos.
#[derive(Clone, Debug)]
pub struct VideoTools {
    /// The decoder.
    pub decoder: Decoder,
    /// The folder for copies of files that are being read. They have no name, so nothing remains
    /// of them when the process ends.
    pub spool: PathBuf,
}

/// The handler of `scan_video`.
pub(super) struct ScanVideo {
    store: Store,
    queue: Queue,
    ingest: Ingest,
    fetcher: Fetcher,
    tools: VideoTools,
}

/// Why a video was not read to its end.
#[derive(Debug, thiserror::Error)]
enum ScanError {
    #[error(transparent)]
    Read(#[from] ReadVideoError),
    #[error(transparent)]
    Copy(#[from] CopyError),
}

impl From<StoreError> for ScanError {
    fn from(error: StoreError) -> Self {
        Self::Read(ReadVideoError::Ingest(error.into()))
    }
}

#[async_trait::async_trait]
impl Handler for ScanVideo {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> Outcome {
        let id = match jobs::read::<VideoJob>(&job.payload) {
            Ok(job) => job.video_id,
            Err(error) => return Outcome::Discard(error),
        };
        let error = tokio::select! {
            done = self.read(&job, id) => match done {
                Ok(outcome) => return outcome,
                Err(error) => error,
            },
            outcome = self.until_stopped(id) => return outcome,
            // The claim is lost or will be released. Snoozing a lost claim is a no-op.
            () = cancel.cancelled() => return Outcome::Snooze(Duration::ZERO),
        };
        self.handle_error(&job, id, error).await
    }
}

impl ScanVideo {
    pub(super) fn new(
        store: Store,
        queue: Queue,
        ingest: Ingest,
        fetcher: Fetcher,
        tools: VideoTools,
    ) -> Self {
        Self { store, queue, ingest, fetcher, tools }
    }

    async fn read(&self, job: &ClaimedJob, id: Uuid) -> Result<Outcome, ScanError> {
        let video = match retried("video", || self.store.video(id)).await {
            Err(StoreError::NotFound { .. }) => return Ok(Outcome::Done),
            video => video?,
        };
        if !video.state.is_live() {
            return Ok(Outcome::Done);
        }
        self.begin(id).await?;
        let (blobs, spool) = (self.ingest.blobs(), &self.tools.spool);
        let file = video_file::copy(&self.store, blobs, &self.fetcher, spool, &video).await?;
        let (decoder, reader) = (&self.tools.decoder, VideoReader::Job(job.claim));
        let end = self.ingest.read_video(decoder, file, &video, reader, &mut ()).await?;
        tracing::info!(video = %id, frames = end.frames, seconds = end.total.as_secs(), "video read");
        Ok(Outcome::Settled)
    }

    async fn begin(&self, id: Uuid) -> Result<(), StoreError> {
        retried("begin_video", || async {
            let mut tx = self.store.begin().await?;
            let from = [VideoState::Queued, VideoState::Running];
            self.store.set_video_state(tx.conn(), id, &from, VideoState::Running).await?;
            tx.commit().await
        })
        .await
    }

    /// Waits until the video was paused, cancelled or deleted.
    async fn until_stopped(&self, id: Uuid) -> Outcome {
        match self.ingest.video_stopped(id).await {
            // The group is held, so the job runs again after the video is resumed.
            Some(VideoState::Paused) => Outcome::Snooze(Duration::ZERO),
            _ => Outcome::Stale,
        }
    }

    async fn handle_error(&self, job: &ClaimedJob, id: Uuid, error: ScanError) -> Outcome {
        let detail = error.to_string();
        tracing::debug!(video = %id, attempt = job.attempt, ?error, "video error");
        let (reason, is_transient) = match error {
            ScanError::Copy(error) => error.reason(),
            ScanError::Read(ReadVideoError::Duplicate(_)) => (Reason::ExactDuplicate, false),
            ScanError::Read(ReadVideoError::Options(_)) => (Reason::BadOptions, false),
            ScanError::Read(ReadVideoError::Analyze(error)) => (error.reason(), is_transient(&error)),
            ScanError::Read(ReadVideoError::Ingest(error)) => match error {
                IngestError::Queue(QueueError::Stale(_)) => return Outcome::Stale,
                // It was paused, cancelled or deleted in the meantime.
                IngestError::Store(StoreError::NotFound { .. }) => return Outcome::Done,
                IngestError::Store(StoreError::Conflict(_)) => return Outcome::Retry(detail, None),
                IngestError::Store(_) => (Reason::StoreFailure, true),
                IngestError::Queue(_) => (Reason::QueueFailure, true),
                IngestError::Analyze(error) => (error.reason(), true),
            },
        };
        if is_transient && job.attempt < job.max_attempts {
            return Outcome::Retry(detail, None);
        }
        match self.fail(job, id, reason, &detail, is_transient).await {
            Ok(()) => Outcome::Settled,
            Err(IngestError::Queue(QueueError::Stale(_))) => Outcome::Stale,
            Err(error) => Outcome::Retry(error.to_string(), None),
        }
    }

    /// Ends the video as failed, and its job. What is stored of it remains. If `spent` is `true`,
    /// the job has no attempts left. It is kept as discarded, so that it can be inspected.
    async fn fail(
        &self,
        job: &ClaimedJob,
        id: Uuid,
        reason: Reason,
        detail: &str,
        spent: bool,
    ) -> Result<(), IngestError> {
        let end =
            VideoEnd { state: VideoState::Failed, people: None, reason: Some(reason), detail: Some(detail) };
        let unused = retried("fail_video", || async {
            let mut tx = self.store.begin().await?;
            if spent {
                self.queue.fail(tx.conn(), job.claim, detail, true, None).await?;
            } else {
                self.queue.complete(tx.conn(), job.claim).await?;
            }
            let unused = self.store.end_video(tx.conn(), id, end.clone()).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(unused)
        })
        .await?;
        if let Err(error) = self.store.drop_blobs(self.ingest.blobs(), &unused).await {
            tracing::warn!(%error, "failed to delete the file of a video; a sweep deletes it");
        }
        Ok(())
    }
}

/// Returns whether another attempt can succeed.
fn is_transient(error: &VideoAnalyzeError) -> bool {
    match error {
        VideoAnalyzeError::Video(error) => matches!(error, VideoError::Io(_) | VideoError::Unavailable(_)),
        VideoAnalyzeError::Analyze(error) => !matches!(error, AnalyzeError::Option { .. }),
        VideoAnalyzeError::TooManyFrames | VideoAnalyzeError::TooManyTracks => false,
    }
}
