//! Decides what becomes of a video that was not read to its end, and of its job.

use crate::crawls::context::Context;
use crate::crawls::job_error::{DISK_FULL_WAIT, JobError};
use crate::domain::forget_jobs;
use crate::images::ingest::ReadVideoError;
use crate::videos::file::CopyError;
use crate::videos::job::{LATER, VideoHandler};
use crate::{AnalyzeError, IngestError, VideoAnalyzeError};
use domain::{Reason, VideoState};
use queue::{ClaimedJob, Outcome, QueueError};
use std::time::Duration;
use store::videos::VideoEnd;
use store::{StoreError, retried};
use uuid::Uuid;
use video::VideoError;

/// Maximum number of attempts if a response takes too long. Each occupies a worker for up to 1 h.
const SLOW_ATTEMPTS: i16 = 2;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
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

impl VideoHandler {
    /// Returns the outcome of a job whose video was not read to its end.
    pub(crate) async fn handle_error(&self, job: &ClaimedJob, id: Uuid, error: ScanError) -> Outcome {
        let (detail, for_users) = (error.to_string(), error.for_users());
        tracing::debug!(video = %id, attempt = job.attempt, ?error, "video error");
        let (mut wait, mut original, mut attempts) = (None, None, job.max_attempts);
        let (reason, is_transient) = match error {
            ScanError::Read(ReadVideoError::Ingest(IngestError::Store(StoreError::DiskFull { .. })))
            | ScanError::Copy(CopyError::Store(StoreError::DiskFull { .. })) => {
                return self.postpone(job, id, DISK_FULL_WAIT).await;
            }
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
            ScanError::Read(ReadVideoError::OtherModel) => (Reason::ModelChanged, true),
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
        // Stored parts reset the number of attempts.
        let attempt = match self.context.queue.attempt(job.claim).await {
            Ok(attempt) => attempt,
            Err(QueueError::Stale(_)) => return Outcome::Stale,
            Err(error) => return Outcome::Retry(error.to_string(), wait),
        };
        if is_transient && attempt < attempts {
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

    /// Ends the video as failed. If `spent` is `true`, its job has no attempts left, and the file
    /// is kept: the owner can retry.
    pub(crate) async fn end_failed(
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
            keeps_file: spent,
        };
        match self.fail(job, id, end, spent).await {
            Ok(()) => Outcome::Settled,
            Err(IngestError::Queue(QueueError::Stale(_))) => Outcome::Stale,
            Err(error) => Outcome::Retry(error.to_string(), None),
        }
    }

    /// Ends the video as failed, and its job. Its stored parts remain. If `spent` is `true`, the
    /// job has no attempts left. It is kept as discarded, so that it can be inspected.
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
            // An erasure finds the video ended, or this transaction finds what was erased.
            store.lock_suppressions(tx.conn(), job.tenant, false).await?;
            let unused = store.end_video(tx.conn(), id, end.clone()).await?;
            let jobs = match end.reason {
                Some(Reason::SuppressedUrl | Reason::SuppressedVideo) => {
                    store.erase_suppressed_video(tx.conn(), id).await?
                }
                _ => store.erase_emptied_video(tx.conn(), id).await?,
            };
            forget_jobs(queue, &mut tx, &jobs).await?;
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
            use VideoError::{GpuFailed, Io, Killed, Unavailable};
            matches!(error, Io(_) | Unavailable(_) | Killed | GpuFailed(_))
        }
        VideoAnalyzeError::Analyze(error) => !matches!(error, AnalyzeError::Option { .. }),
        VideoAnalyzeError::TooManyFrames | VideoAnalyzeError::TooManyTracks => false,
    }
}
