//! Handles `fetch_video` and `scan_video`. The first one is in the module `video_fetch`. The second
//! one copies the stored file of a video, analyses it and stores its tracks part by part. If the
//! worker ends, the next one continues after the last part. A crawl that found videos ends after
//! the last of them.

use crate::crawls::closing;
use crate::crawls::context::Context;
use crate::crawls::job_error::JobError;
use crate::domain::jobs::{self, VideoJob};
use crate::domain::turn::Turn;
use crate::domain::{ChangeError, VideoLimits};
use crate::images::ingest::{ReadVideoError, VideoReader};
use crate::videos::address;
use crate::videos::file;
use crate::videos::file::CopyError;
use crate::videos::job_error::ScanError;
use domain::{Reason, VideoState};
use queue::{ClaimedJob, Handler, Outcome, QueueError};
use std::sync::Arc;
use std::time::Duration;
use store::videos::Video;
use store::{SpoolFolder, StoreError, retried};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use video::Decoder;

/// What a worker needs to read videos.
#[derive(Clone, Debug)]
pub struct VideoTools {
    pub decoder: Decoder,
    /// The folder for copies of files that are being read.
    pub spool: SpoolFolder,
    pub limits: VideoLimits,
    /// Time after which a video lets one of another collection continue. It continues later.
    pub turn: Duration,
}

/// What a job does with a video.
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

/// Time until a video is tried again whose crawl is paused, or that waits for its original.
pub(crate) const LATER: Duration = Duration::from_secs(30);

/// Time between two reads of the checkpoint. At most this much of the next part is read twice
/// when a turn ends.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(500);

#[async_trait::async_trait]
impl Handler for VideoHandler {
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
            && (matches!(outcome, Outcome::Settled | Outcome::Stale | Outcome::Done) || cancel.is_cancelled())
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

    async fn run_video(&self, job: &ClaimedJob, video: &Video, cancel: &CancellationToken) -> Outcome {
        let error = tokio::select! {
            done = self.read(job, video) => match done {
                Ok(outcome) => return outcome,
                Err(error) => error,
            },
            outcome = self.until_stopped(video.id) => return outcome,
            () = self.until_turn_ends(job, video), if self.step == Step::Scan => {
                return self.postpone(job, video.id, Duration::ZERO).await;
            }
            // The claim is lost or will be released. Snoozing a lost claim is a no-op.
            () = cancel.cancelled() => return Outcome::Snooze(Duration::ZERO),
        };
        self.handle_error(job, video.id, error).await
    }

    async fn read(&self, job: &ClaimedJob, video: &Video) -> Result<Outcome, ScanError> {
        let next = VideoJob { video_id: video.id };
        match (self.step, &video.source_key) {
            (Step::Scan, None) => return self.replace(job, next.fetch(video.collection_id)).await,
            // The file was fetched by an earlier run, and the video has failed and is retried.
            (Step::Fetch, Some(_)) => return self.replace(job, next.scan(video.collection_id)).await,
            _ => {}
        }
        if let Some(original) = video.original_id {
            self.check_original(video.id, original).await?;
        }
        self.begin(video.id).await?;
        self.context.ingest.blobs().check_space()?;
        if self.step == Step::Fetch {
            return self.fetch(job, video).await;
        }
        if let Some(crawl) = video.crawl_id
            && let Err(later @ JobError::Later(_)) = self.context.running(crawl).await
        {
            return Err(CopyError::Crawl(later).into());
        }
        address::check_allowed(&self.context, video).await?;
        let file = file::copy(&self.context, &self.tools.spool, video).await?;
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
    pub(crate) async fn end_duplicate(
        &self,
        job: &ClaimedJob,
        id: Uuid,
        original: Uuid,
        detail: &str,
    ) -> Outcome {
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
    pub(crate) async fn postpone(&self, job: &ClaimedJob, id: Uuid, wait: Duration) -> Outcome {
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

    /// Waits until all of this holds: the turn of this video is over, a video of another collection
    /// waits, and a part was stored a moment ago.
    async fn until_turn_ends(&self, job: &ClaimedJob, video: &Video) {
        let turn = Turn::of(&self.context.queue, job, self.tools.turn);
        let mut stored = video.checkpoint_us;
        loop {
            tokio::time::sleep(CHECKPOINT_INTERVAL).await;
            let Ok(checkpoint) = self.context.store.video_checkpoint(video.id).await else { continue };
            if checkpoint > stored && turn.is_over().await {
                return;
            }
            stored = checkpoint;
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
}
