//! Handles `scan_video`: copies the file of a video, analyses it and stores its tracks part by
//! part. If the worker ends, the next one continues after the last part.
//!
//! A crawl that found videos ends after the last of them.

use super::context::Context;
use super::job_error::JobError;
use super::video_file::{self, CopyError};
use crate::completion;
use crate::domain::jobs::{self, VideoJob};
use crate::domain::{ChangeError, forget_jobs};
use crate::ingest::{ReadVideoError, VideoReader};
use crate::{AnalyzeError, IngestError, VideoAnalyzeError};
use domain::{Reason, VideoState};
use queue::{ClaimedJob, Handler, Outcome, QueueError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::videos::{Video, VideoEnd};
use store::{StoreError, retried};
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
    context: Arc<Context>,
    tools: VideoTools,
}

/// Time until a video is tried again whose crawl is paused, or that waits for a video of the same
/// file.
const LATER: Duration = Duration::from_secs(30);
/// Maximum number of attempts if a response takes too long. Each occupies the worker for up to an
/// hour.
const SLOW_ATTEMPTS: i16 = 2;

/// Why a video was not read to its end.
#[derive(Debug, thiserror::Error)]
enum ScanError {
    #[error(transparent)]
    Read(#[from] ReadVideoError),
    #[error(transparent)]
    Copy(#[from] CopyError),
}

impl ScanError {
    /// Works like [`ReadVideoError::for_users`].
    fn for_users(&self) -> String {
        match self {
            Self::Read(error) => error.for_users(),
            Self::Copy(error) => error.to_string(),
        }
    }
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
        let video = match retried("video", || self.context.store.video(id)).await {
            Ok(video) if video.state.is_live() => video,
            Ok(_) | Err(StoreError::NotFound { .. }) => return Outcome::Done,
            Err(error) => return Outcome::Retry(error.to_string(), None),
        };
        let outcome = self.run_video(&job, &video, &cancel).await;
        if let Some(crawl) = video.crawl_id
            && (matches!(outcome, Outcome::Settled | Outcome::Stale) || cancel.is_cancelled())
        {
            completion::end_if_done(&self.context.store, &self.context.queue, crawl).await;
        }
        outcome
    }
}

impl ScanVideo {
    pub(super) fn new(context: Arc<Context>, tools: VideoTools) -> Self {
        Self { context, tools }
    }

    async fn run_video(&self, job: &ClaimedJob, video: &Video, cancel: &CancellationToken) -> Outcome {
        let error = tokio::select! {
            done = self.read(job, video) => match done {
                Ok(outcome) => return outcome,
                Err(error) => error,
            },
            outcome = self.until_stopped(video.id) => return outcome,
            // The claim is lost or will be released. Snoozing a lost claim is a no-op.
            () = cancel.cancelled() => return Outcome::Snooze(Duration::ZERO),
        };
        self.handle_error(job, video.id, error).await
    }

    async fn read(&self, job: &ClaimedJob, video: &Video) -> Result<Outcome, ScanError> {
        if let Some(original) = video.original_id {
            self.check_original(video.id, original).await?;
        }
        self.begin(video.id).await?;
        let file = video_file::copy(&self.context, &self.tools.spool, video).await?;
        let (decoder, reader) = (&self.tools.decoder, VideoReader::Job(job.claim));
        let end = self.context.ingest.read_video(decoder, file, video, reader, &mut ()).await?;
        tracing::info!(video = %video.id, frames = end.frames, seconds = end.total.as_secs(), "video read");
        Ok(Outcome::Settled)
    }

    /// Ends the run if the video of the same file, for which this one waited, is live or completed.
    /// If that one failed or was deleted, this one is read.
    async fn check_original(&self, id: Uuid, original: Uuid) -> Result<(), ScanError> {
        let store = &self.context.store;
        match retried("video_state", || store.video_state(original)).await? {
            Some(VideoState::Failed | VideoState::Cancelled) | None => {
                retried("set_video_original", || async {
                    let mut tx = store.begin().await?;
                    store.set_video_original(tx.conn(), id, None).await?;
                    tx.commit().await
                })
                .await?;
                Ok(())
            }
            Some(_) => Err(ReadVideoError::Duplicate(original).into()),
        }
    }

    /// Ends the video as a duplicate if `original` is completed. While that one is live, this one
    /// waits for it, without another download: if that one fails, this one is read.
    async fn end_duplicate(&self, job: &ClaimedJob, id: Uuid, original: Uuid, detail: &str) -> Outcome {
        let store = &self.context.store;
        let waits = retried("wait_for_video", || async {
            let completed = store.video_state(original).await? == Some(VideoState::Completed);
            if !completed {
                let mut tx = store.begin().await?;
                store.set_video_original(tx.conn(), id, Some(original)).await?;
                tx.commit().await?;
            }
            Ok::<_, StoreError>(!completed)
        });
        match waits.await {
            Ok(true) => self.postpone(job, id, LATER).await,
            Ok(false) => {
                self.end_failed(job, id, Reason::ExactDuplicate, detail, Some(original), false).await
            }
            Err(error) => Outcome::Retry(error.to_string(), None),
        }
    }

    async fn begin(&self, id: Uuid) -> Result<(), StoreError> {
        retried("begin_video", || async {
            let mut tx = self.context.store.begin().await?;
            let from = [VideoState::Queued, VideoState::Running];
            self.context.store.set_video_state(tx.conn(), id, &from, VideoState::Running).await?;
            tx.commit().await
        })
        .await
    }

    /// Lets the video wait again. This run is not counted as an attempt.
    async fn postpone(&self, job: &ClaimedJob, id: Uuid, wait: Duration) -> Outcome {
        let Context { store, queue, .. } = &*self.context;
        let waiting = retried("postpone_video", || async {
            let mut tx = store.begin().await?;
            // Without the claim, another worker may be reading the video.
            queue.hold(tx.conn(), job.claim).await?;
            store.set_video_state(tx.conn(), id, &[VideoState::Running], VideoState::Queued).await?;
            Ok::<_, ChangeError>(tx.commit().await?)
        });
        match waiting.await {
            // It was paused, cancelled or deleted in the meantime.
            Ok(()) | Err(ChangeError::Store(StoreError::Conflict(_) | StoreError::NotFound { .. })) => {
                Outcome::Snooze(wait)
            }
            Err(ChangeError::Queue(QueueError::Stale(_))) => Outcome::Stale,
            Err(error) => Outcome::Retry(error.to_string(), None),
        }
    }

    /// Waits until the video was paused, cancelled or deleted.
    async fn until_stopped(&self, id: Uuid) -> Outcome {
        match self.context.ingest.video_stopped(id).await {
            // The group is held, so the job runs again after the video is resumed.
            Some(VideoState::Paused) => Outcome::Snooze(Duration::ZERO),
            // If its crawl was cancelled or it was erased, its job is still live.
            _ => Outcome::Done,
        }
    }

    async fn handle_error(&self, job: &ClaimedJob, id: Uuid, error: ScanError) -> Outcome {
        let (detail, for_users) = (error.to_string(), error.for_users());
        tracing::debug!(video = %id, attempt = job.attempt, ?error, "video error");
        let (mut wait, mut original, mut attempts) = (None, None, job.max_attempts);
        let (reason, is_transient) = match error {
            ScanError::Copy(CopyError::Crawl(JobError::Later(_))) => {
                return self.postpone(job, id, LATER).await;
            }
            // The crawl has ended, and its videos are cancelled with it.
            ScanError::Copy(CopyError::Crawl(JobError::Gone)) => return Outcome::Done,
            ScanError::Copy(CopyError::Fetch(error)) => {
                match JobError::of_fetch(error, self.context.config.robots_retry) {
                    JobError::Later(wait) => return self.postpone(job, id, wait).await,
                    JobError::Retry { reason, wait: later, .. } => {
                        wait = later;
                        if reason == Reason::Timeout {
                            attempts = attempts.min(SLOW_ATTEMPTS);
                        }
                        (reason, true)
                    }
                    JobError::Final { reason, .. } => (reason, false),
                    JobError::Stale | JobError::Gone => return Outcome::Stale,
                }
            }
            ScanError::Copy(CopyError::NotModified(id)) => {
                original = Some(id);
                (Reason::NotModified, false)
            }
            ScanError::Copy(error) => error.reason(),
            ScanError::Read(ReadVideoError::Duplicate(original)) => {
                return self.end_duplicate(job, id, original, &for_users).await;
            }
            ScanError::Read(ReadVideoError::Suppressed) => (Reason::SuppressedVideo, false),
            ScanError::Read(ReadVideoError::Options(_)) => (Reason::BadOptions, false),
            ScanError::Read(ReadVideoError::Analyze(error)) => (error.reason(), is_transient(&error)),
            ScanError::Read(ReadVideoError::Ingest(error)) => match error {
                IngestError::Queue(QueueError::Stale(_)) => return Outcome::Stale,
                // It was paused, cancelled or deleted in the meantime.
                IngestError::Store(StoreError::NotFound { .. }) => return Outcome::Done,
                IngestError::Store(StoreError::Conflict(_)) => return self.after_conflict(id, detail).await,
                IngestError::Store(_) => (Reason::StoreFailure, true),
                IngestError::Queue(_) => (Reason::QueueFailure, true),
                IngestError::Analyze(error) => (error.reason(), true),
            },
        };
        if is_transient && job.attempt < attempts {
            return Outcome::Retry(detail, wait);
        }
        if for_users != detail {
            tracing::warn!(video = %id, error = detail, "failed to read a video");
        }
        self.end_failed(job, id, reason, &for_users, original, is_transient).await
    }

    /// Returns the outcome after the video had another state than expected. A video that was paused
    /// and resumed in the meantime does not lose an attempt.
    async fn after_conflict(&self, id: Uuid, detail: String) -> Outcome {
        match self.context.store.video_state(id).await {
            Ok(Some(VideoState::Running)) | Err(_) => Outcome::Retry(detail, None),
            Ok(Some(VideoState::Queued | VideoState::Paused)) => Outcome::Snooze(Duration::ZERO),
            Ok(_) => Outcome::Done,
        }
    }

    /// Ends the video as failed. If `spent` is `true`, its job has no attempts left.
    async fn end_failed(
        &self,
        job: &ClaimedJob,
        id: Uuid,
        reason: Reason,
        detail: &str,
        original: Option<Uuid>,
        spent: bool,
    ) -> Outcome {
        let end = VideoEnd {
            state: VideoState::Failed,
            people: None,
            reason: Some(reason),
            detail: Some(detail),
            original,
        };
        match self.fail(job, id, end, spent).await {
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
        end: VideoEnd<'_>,
        spent: bool,
    ) -> Result<(), IngestError> {
        let Context { store, queue, ingest, .. } = &*self.context;
        let unused = retried("fail_video", || async {
            let mut tx = store.begin().await?;
            if spent {
                let detail = end.detail.unwrap_or_default();
                queue.fail(tx.conn(), job.claim, detail, true, None).await?;
            } else {
                queue.complete(tx.conn(), job.claim).await?;
            }
            let unused = store.end_video(tx.conn(), id, end.clone()).await?;
            if matches!(end.reason, Some(Reason::SuppressedUrl | Reason::SuppressedVideo)) {
                let jobs = store.erase_suppressed_video(tx.conn(), id).await?;
                forget_jobs(queue, &mut tx, &jobs).await?;
            }
            tx.commit().await?;
            Ok::<_, IngestError>(unused)
        })
        .await?;
        if let Err(error) = store.drop_blobs(ingest.blobs(), &unused).await {
            tracing::warn!(%error, "failed to delete the file of a video; a sweep deletes it");
        }
        Ok(())
    }
}

/// Returns whether another attempt can succeed.
fn is_transient(error: &VideoAnalyzeError) -> bool {
    match error {
        VideoAnalyzeError::Video(error) => {
            matches!(error, VideoError::Io(_) | VideoError::Unavailable(_) | VideoError::Killed)
        }
        VideoAnalyzeError::Analyze(error) => !matches!(error, AnalyzeError::Option { .. }),
        VideoAnalyzeError::TooManyFrames | VideoAnalyzeError::TooManyTracks => false,
    }
}
