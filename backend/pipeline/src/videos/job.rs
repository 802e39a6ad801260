//! Handles `fetch_video` and `scan_video`. The first one fetches the file from its address and
//! stores it, so that a slow host does not occupy a slot for decoding. The second one copies the
//! stored file and reads it with `store`, which continues after the last part that is stored. A
//! crawl that found videos ends after the last of them.
use crate::crawls::closing;
use crate::crawls::context::Context;
use crate::crawls::job_error::{DISK_FULL_WAIT, JobError};
use crate::domain::jobs::VideoJob;
use crate::domain::{ChangeError, TimeSlice, VideoLimits, discard_blobs, forget_jobs, jobs, video_end};
use crate::videos::file;
use crate::videos::file::CopyError;
use crate::videos::store::{ReadVideoError, VideoFile, VideoReader, read_video, until_video_stops};
use crate::{AnalyzeError, IngestError, VideoAnalyzeError};
use domain::{Reason, VideoState};
use queue::{ClaimedJob, Handler, NewJob, QueueError, RunEnd};
use std::sync::Arc;
use std::time::Duration;
use store::videos::{Video, VideoEnd};
use store::{SpoolFolder, StoreError, retried};
use tokio::fs::File;
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;
use video::{Decoder, VideoError};

/// The tools and limits with which a worker reads videos.
#[derive(Clone, Debug)]
pub struct VideoTools {
    pub decoder: Decoder,
    /// The folder for copies of files that are being read.
    pub spool: SpoolFolder,
    pub limits: VideoLimits,
    /// Time after which a video is interrupted if a video of another collection waits.
    pub time_slice: Duration,
}

/// The step that a job performs for a video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Fetch,
    Scan,
}

pub(crate) struct VideoHandler {
    pub(crate) context: Arc<Context>,
    pub(crate) tools: VideoTools,
    step: Step,
}

/// Wait before a video is tried again if its crawl is paused or if it waits for its original.
pub(crate) const RETRY_WAIT: Duration = Duration::from_secs(30);

/// Time between two reads of the checkpoint. At most this much of the next part is read twice when
/// a time slice ends.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(500);

#[async_trait::async_trait]
impl Handler for VideoHandler {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> RunEnd {
        let id = match jobs::parse::<VideoJob>(&job.payload) {
            Ok(job) => job.video_id,
            Err(error) => return RunEnd::Discard(error),
        };
        let video = match retried("video", || self.context.store.videos().get(id)).await {
            Ok(video) if video.state.is_live() => video,
            Ok(_) | Err(StoreError::NotFound { .. }) => return RunEnd::Done,
            Err(error) => return RunEnd::Retry(error.to_string(), None),
        };
        let outcome = self.run_video(&job, &video, &cancel).await;
        if let Some(crawl) = video.crawl_id
            && (matches!(outcome, RunEnd::Settled | RunEnd::Stale | RunEnd::Done) || cancel.is_cancelled())
        {
            closing::end_if_done(&self.context.store, &self.context.queue, crawl).await;
        }
        outcome
    }
}

impl VideoHandler {
    pub(crate) fn new(context: Arc<Context>, tools: VideoTools, step: Step) -> Self {
        Self { context, tools, step }
    }

    async fn run_video(&self, job: &ClaimedJob, video: &Video, cancel: &CancellationToken) -> RunEnd {
        let error = tokio::select! {
            done = self.read(job, video) => match done {
                Ok(outcome) => return outcome,
                Err(error) => error,
            },
            outcome = self.until_stopped(video.id) => return outcome,
            () = self.until_time_slice_ends(job, video), if self.step == Step::Scan => {
                return self.postpone(job, video.id, Duration::ZERO).await;
            }
            // The claim is lost or will be released. Snoozing a lost claim is a no-op.
            () = cancel.cancelled() => return RunEnd::Snooze(Duration::ZERO),
        };
        self.handle_error(job, video.id, error).await
    }

    async fn read(&self, job: &ClaimedJob, video: &Video) -> Result<RunEnd, ScanError> {
        let next = VideoJob { video_id: video.id };
        match (self.step, &video.source_key) {
            (Step::Scan, None) => return self.replace_job(job, next.fetch_job(video.collection_id)).await,
            // The file was fetched by an earlier run, and the video has failed and is retried.
            (Step::Fetch, Some(_)) => return self.replace_job(job, next.scan_job(video.collection_id)).await,
            _ => {}
        }
        if let Some(original) = video.original_id {
            self.check_original(video.id, original).await?;
        }
        self.begin(video.id).await?;
        self.context.faces.blobs.check_space()?;
        if self.step == Step::Fetch {
            return self.fetch(job, video).await;
        }
        if let Some(crawl) = video.crawl_id
            && let Err(error @ JobError::Snooze(_)) = self.context.running_crawl(crawl).await
        {
            return Err(CopyError::Crawl(error).into());
        }
        file::check_allowed(&self.context, video).await?;
        let file = file::copy(&self.context, &self.tools.spool, video).await?;
        let (decoder, reader) = (&self.tools.decoder, VideoReader::Job(job.claim));
        let end = read_video(&self.context.faces, decoder, file, video, reader, &mut ()).await?;
        tracing::info!(video = %video.id, frames = end.frames, seconds = end.total.as_secs(), "video read");
        Ok(RunEnd::Settled)
    }

    /// Ends the run if the original, an earlier video of the same file, is live or completed. If
    /// the original failed, was cancelled or was deleted, this video is read.
    async fn check_original(&self, id: Uuid, original: Uuid) -> Result<(), ScanError> {
        let store = &self.context.store;
        match retried("video_state", || store.videos().state(original)).await? {
            Some(VideoState::Failed | VideoState::Cancelled) | None => {
                retried("set_video_original", || async {
                    let mut tx = store.begin().await?;
                    store.videos().set_original(tx.conn(), id, None).await?;
                    tx.commit().await
                })
                .await?;
                Ok(())
            }
            Some(_) => Err(ReadVideoError::Duplicate(original).into()),
        }
    }

    /// Ends the video as a duplicate if `original` is completed. While `original` is live, the
    /// video waits without another download. If `original` fails, the video is read.
    pub(crate) async fn end_duplicate(
        &self,
        job: &ClaimedJob,
        id: Uuid,
        original: Uuid,
        detail: &str,
    ) -> RunEnd {
        let store = &self.context.store;
        let must_wait = retried("wait_for_video", || async {
            let completed = store.videos().state(original).await? == Some(VideoState::Completed);
            if !completed {
                let mut tx = store.begin().await?;
                store.videos().set_original(tx.conn(), id, Some(original)).await?;
                tx.commit().await?;
            }
            Ok::<_, StoreError>(!completed)
        });
        match must_wait.await {
            Ok(true) => self.postpone(job, id, RETRY_WAIT).await,
            Ok(false) => {
                self.end_failed(job, id, Reason::ExactDuplicate, detail, Some(original), false).await
            }
            Err(error) => RunEnd::Retry(error.to_string(), None),
        }
    }

    async fn begin(&self, id: Uuid) -> Result<(), StoreError> {
        retried("begin_video", || async {
            let mut tx = self.context.store.begin().await?;
            let from = [VideoState::Queued, VideoState::Running];
            self.context.store.videos().set_state(tx.conn(), id, &from, VideoState::Running).await?;
            tx.commit().await
        })
        .await
    }

    /// Returns the video to the state `queued`. This run is not counted as an attempt.
    pub(crate) async fn postpone(&self, job: &ClaimedJob, id: Uuid, wait: Duration) -> RunEnd {
        let Context { store, queue, .. } = &*self.context;
        let postponed = retried("postpone_video", || async {
            let mut tx = store.begin().await?;
            // Without the claim, another worker may be reading the video.
            queue.hold(tx.conn(), job.claim).await?;
            store.videos().set_state(tx.conn(), id, &[VideoState::Running], VideoState::Queued).await?;
            Ok::<_, ChangeError>(tx.commit().await?)
        });
        match postponed.await {
            // The video was paused, cancelled or deleted in the meantime.
            Ok(()) | Err(ChangeError::Store(StoreError::Conflict(_) | StoreError::NotFound { .. })) => {
                RunEnd::Snooze(wait)
            }
            Err(ChangeError::Queue(QueueError::Stale(_))) => RunEnd::Stale,
            Err(error) => RunEnd::Retry(error.to_string(), None),
        }
    }

    /// Waits until these conditions are met: the time slice of this video is over, a video of
    /// another collection waits, and a part has just been stored.
    async fn until_time_slice_ends(&self, job: &ClaimedJob, video: &Video) {
        let time_slice = TimeSlice::new(&self.context.queue, job, self.tools.time_slice);
        let mut stored = video.checkpoint_us;
        loop {
            tokio::time::sleep(CHECKPOINT_INTERVAL).await;
            let Ok(checkpoint) = self.context.store.videos().checkpoint(video.id).await else { continue };
            if checkpoint > stored && time_slice.is_over().await {
                return;
            }
            stored = checkpoint;
        }
    }

    async fn until_stopped(&self, id: Uuid) -> RunEnd {
        match until_video_stops(&self.context.store, id).await {
            // The group is held, so the job runs again after the video is resumed.
            Some(VideoState::Paused) => RunEnd::Snooze(Duration::ZERO),
            // If its crawl was cancelled or it was erased, its job is still live.
            _ => RunEnd::Done,
        }
    }
}

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
    fn user_message(&self) -> String {
        match self {
            Self::Read(error) => error.user_message(),
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
    pub(crate) async fn handle_error(&self, job: &ClaimedJob, id: Uuid, error: ScanError) -> RunEnd {
        let (detail, user_message) = (error.to_string(), error.user_message());
        tracing::debug!(video = %id, attempt = job.attempt, ?error, "video error");
        let (mut wait, mut original, mut attempts) = (None, None, job.max_attempts);
        let (reason, is_transient) = match error {
            ScanError::Read(ReadVideoError::Ingest(IngestError::Store(StoreError::DiskFull { .. })))
            | ScanError::Copy(CopyError::Store(StoreError::DiskFull { .. })) => {
                return self.postpone(job, id, DISK_FULL_WAIT).await;
            }
            ScanError::Copy(CopyError::Crawl(JobError::Snooze(_))) => {
                return self.postpone(job, id, RETRY_WAIT).await;
            }
            // The crawl has ended, and its videos are cancelled with it.
            ScanError::Copy(CopyError::Crawl(JobError::CrawlEnded)) => return RunEnd::Done,
            ScanError::Copy(CopyError::Fetch(error)) => {
                match JobError::from_fetch(error, self.context.config.robots_retry) {
                    JobError::Snooze(wait) => return self.postpone(job, id, wait).await,
                    JobError::Retry { reason, wait: retry_wait, .. } => {
                        wait = retry_wait;
                        if reason == Reason::Timeout {
                            attempts = attempts.min(SLOW_ATTEMPTS);
                        }
                        (reason, true)
                    }
                    JobError::Final { reason, .. } => (reason, false),
                    JobError::Stale | JobError::CrawlEnded => return RunEnd::Stale,
                }
            }
            ScanError::Copy(CopyError::NotModified(id)) => {
                original = Some(id);
                (Reason::NotModified, false)
            }
            ScanError::Copy(error) => error.reason(),
            ScanError::Read(ReadVideoError::Duplicate(original)) => {
                return self.end_duplicate(job, id, original, &user_message).await;
            }
            ScanError::Read(ReadVideoError::Suppressed) => (Reason::SuppressedVideo, false),
            ScanError::Read(ReadVideoError::OtherModel) => (Reason::ModelChanged, true),
            ScanError::Read(ReadVideoError::Options(_)) => (Reason::BadOptions, false),
            ScanError::Read(ReadVideoError::Analyze(error)) => (error.reason(), is_transient(&error)),
            ScanError::Read(ReadVideoError::Ingest(error)) => match error {
                IngestError::Queue(QueueError::Stale(_)) => return RunEnd::Stale,
                // It was paused, cancelled or deleted in the meantime.
                IngestError::Store(StoreError::NotFound { .. }) => return RunEnd::Done,
                IngestError::Store(StoreError::Conflict(_)) => return self.after_conflict(id, detail).await,
                IngestError::Store(_) => (Reason::StoreFailure, true),
                IngestError::Queue(_) => (Reason::QueueFailure, true),
                IngestError::Analyze(error) => (error.reason(), true),
            },
        };
        // Stored parts reset the number of attempts.
        let attempt = match self.context.queue.attempt(job.claim).await {
            Ok(attempt) => attempt,
            Err(QueueError::Stale(_)) => return RunEnd::Stale,
            Err(error) => return RunEnd::Retry(error.to_string(), wait),
        };
        if is_transient && attempt < attempts {
            return RunEnd::Retry(detail, wait);
        }
        if user_message != detail {
            tracing::warn!(video = %id, error = detail, "failed to read a video");
        }
        self.end_failed(job, id, reason, &user_message, original, is_transient).await
    }

    /// Returns the outcome after the video had another state than expected. A video that was paused
    /// and resumed in the meantime does not lose an attempt.
    async fn after_conflict(&self, id: Uuid, detail: String) -> RunEnd {
        match self.context.store.videos().state(id).await {
            Ok(Some(VideoState::Running)) | Err(_) => RunEnd::Retry(detail, None),
            Ok(Some(VideoState::Queued | VideoState::Paused)) => RunEnd::Snooze(Duration::ZERO),
            Ok(_) => RunEnd::Done,
        }
    }

    /// Ends the video as failed. If `can_retry` is `true`, the file is kept for a retry by a user.
    pub(crate) async fn end_failed(
        &self,
        job: &ClaimedJob,
        id: Uuid,
        reason: Reason,
        detail: &str,
        original: Option<Uuid>,
        can_retry: bool,
    ) -> RunEnd {
        let end = video_end(VideoState::Failed, reason, Some(detail));
        let end = VideoEnd { original, keep_file: can_retry, ..end };
        match self.fail(job, id, end, can_retry).await {
            Ok(()) => RunEnd::Settled,
            Err(IngestError::Queue(QueueError::Stale(_))) => RunEnd::Stale,
            Err(error) => RunEnd::Retry(error.to_string(), None),
        }
    }

    /// Ends the video as failed, and its job. Its stored parts remain. If `can_retry` is `true`,
    /// the job is kept as discarded, so that it can be inspected.
    async fn fail(
        &self,
        job: &ClaimedJob,
        id: Uuid,
        end: VideoEnd<'_>,
        can_retry: bool,
    ) -> Result<(), IngestError> {
        let Context { store, queue, faces, .. } = &*self.context;
        let unused = retried("fail_video", || async {
            let mut tx = store.begin().await?;
            if can_retry {
                let detail = end.detail.unwrap_or_default();
                queue.fail(tx.conn(), job.claim, detail, true, None).await?;
            } else {
                queue.complete(tx.conn(), job.claim).await?;
            }
            // The lock orders this transaction and erasures, so that none of them misses a change.
            store.suppressions().lock(tx.conn(), job.tenant, false).await?;
            let unused = store.videos().end(tx.conn(), id, end.clone()).await?;
            let jobs = match end.reason {
                Some(Reason::SuppressedUrl | Reason::SuppressedVideo) => {
                    store.erasures().erase_suppressed_video(tx.conn(), id).await?
                }
                _ => store.erasures().erase_video_if_empty(tx.conn(), id).await?,
            };
            forget_jobs(queue, &mut tx, &jobs).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(unused)
        })
        .await?;
        faces.delete_blobs(&unused).await;
        Ok(())
    }
}

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

impl VideoHandler {
    pub(crate) async fn fetch(&self, job: &ClaimedJob, video: &Video) -> Result<RunEnd, ScanError> {
        let Some(address) = &video.source_url else { return Err(CopyError::FileMissing.into()) };
        let address = Url::parse(address).map_err(|_| CopyError::FileMissing)?;
        let collection = video.collection_id;
        let waiting = retried("waiting_in_collection", || async {
            let mut tx = self.context.store.begin().await?;
            self.context.store.videos().waiting_in_collection(tx.conn(), collection).await
        });
        if waiting.await?.bytes >= self.tools.limits.bytes {
            // The files that wait must be read first.
            return Ok(self.postpone(job, video.id, RETRY_WAIT).await);
        }
        let fetched = file::fetch(&self.context, &self.tools.spool, video, &address).await?;
        let VideoFile { file, sha256, bytes } = fetched;
        let blobs = &self.context.faces.blobs;
        let key = blobs.put_file("videos", "bin", &sha256, &mut File::from_std(file)).await?;
        let stored =
            retried("record_fetched_video", || self.record_fetched(job, video, &sha256, bytes, &key)).await;
        if !matches!(stored, Ok(Ok(()))) {
            discard_blobs(&self.context.store, blobs, vec![key]).await;
        }
        stored??;
        Ok(RunEnd::Settled)
    }

    /// Records the stored file, and replaces the job by one that reads the video.
    async fn record_fetched(
        &self,
        job: &ClaimedJob,
        video: &Video,
        sha256: &[u8; 32],
        bytes: u64,
        key: &String,
    ) -> Result<Result<(), ReadVideoError>, IngestError> {
        let (store, queue) = (&self.context.store, &self.context.queue);
        let (id, collection) = (video.id, video.collection_id);
        let mut tx = store.begin().await?;
        queue.complete(tx.conn(), job.claim).await?;
        // The lock orders this transaction and erasures, so that none of them misses a change.
        store.suppressions().lock(tx.conn(), collection, false).await?;
        if store.suppressions().suppresses_video(&mut *tx.conn(), collection, sha256).await? {
            return Ok(Err(ReadVideoError::Suppressed));
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if let Err(other) = store.videos().record_fetched(tx.conn(), id, sha256, bytes, key).await? {
            return Ok(Err(ReadVideoError::Duplicate(other)));
        }
        queue.enqueue(tx.conn(), &[VideoJob { video_id: id }.scan_job(collection)]).await?;
        // A video of the same file that has just ended may be deleting the blob.
        let missing = store.blobs().prevent_deletion(tx.conn(), std::slice::from_ref(key)).await?;
        if !missing.is_empty() && !self.context.faces.blobs.exists(key).await? {
            return Err(StoreError::Blob("the file was deleted at the same time".into()).into());
        }
        tx.commit().await?;
        Ok(Ok(()))
    }

    /// Replaces the job by `next`.
    pub(crate) async fn replace_job(&self, job: &ClaimedJob, next: NewJob) -> Result<RunEnd, ScanError> {
        let (store, queue) = (&self.context.store, &self.context.queue);
        let replaced = retried("replace_video_job", || async {
            let mut tx = store.begin().await?;
            queue.complete(tx.conn(), job.claim).await?;
            queue.enqueue(tx.conn(), std::slice::from_ref(&next)).await?;
            Ok::<_, ChangeError>(tx.commit().await?)
        });
        replaced.await.map_err(IngestError::from)?;
        Ok(RunEnd::Settled)
    }
}

impl From<IngestError> for ScanError {
    fn from(error: IngestError) -> Self {
        Self::Read(error.into())
    }
}
