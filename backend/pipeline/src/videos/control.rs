//! Adds, pauses, resumes, cancels and deletes stored videos. The jobs that read them are in `job`.

use crate::crawls::closing;
use crate::domain::jobs::VideoJob;
use crate::domain::{
    ChangeError, VideoLimits, VideoRequest, delete_blobs, discard_blobs, forget_emptied_video, video_end,
};
use domain::{JobKind, Reason, VideoState};
use queue::Queue;
use std::time::Duration;
use store::videos::{NewVideo, Video, VideoEnd, WaitingVideos};
use store::{Blobs, Store, StoreError, Tx, retried};
use time::OffsetDateTime;
use url::Url;
use uuid::Uuid;

/// Maximum number of rows of one query of [`Videos::reconcile`].
const CHUNK: i64 = 1_000;
/// Maximum number of jobs that one call cancels. A video has one job.
const MAX_JOBS: i64 = 1_000;

/// Time for which the file of a failed video is kept, so that the video can be read again.
const FAILED_FILE_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddOutcome {
    New(Uuid),
    /// The collection has a video of the same file, or a live video of the same address.
    Existing(Uuid),
    /// A limit of the collection is reached. Nothing was added.
    LimitReached,
}

#[derive(Clone, Debug)]
pub struct Upload {
    pub sha256: [u8; 32],
    pub bytes: u64,
    /// The blob with the file.
    pub key: String,
}

/// Controls stored videos. Cloning it is cheap.
#[derive(Clone)]
pub struct Videos {
    store: Store,
    queue: Queue,
    blobs: Blobs,
    limits: VideoLimits,
}

impl Videos {
    pub fn new(store: Store, queue: Queue, blobs: Blobs) -> Self {
        Self { store, queue, blobs, limits: VideoLimits::default() }
    }

    #[must_use]
    pub fn with_limits(self, limits: VideoLimits) -> Self {
        Self { limits, ..self }
    }

    /// Returns the limits of a collection.
    pub fn limits(&self) -> VideoLimits {
        self.limits
    }

    /// Returns `true` if a file of `bytes` bytes can be added to a collection. The caller has not
    /// sent it yet, so [`Self::add`] checks again.
    ///
    /// # Errors
    /// Fails with `StoreError::DiskFull` if the disk is full, and if the store fails.
    pub async fn has_capacity(&self, collection: Uuid, bytes: u64) -> Result<bool, ChangeError> {
        self.blobs.check_space()?;
        let waiting = retried("waiting_in_collection", || async {
            let mut tx = self.store.begin().await?;
            self.store.videos().waiting_in_collection(tx.conn(), collection).await
        });
        let waiting = waiting.await?;
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let WaitingVideos { videos, bytes: stored } = waiting;
        Ok(videos < self.limits.videos && stored.saturating_add(bytes) <= self.limits.bytes)
    }

    /// Returns `true` if the collection exceeds a limit. Call it after a video was inserted.
    async fn is_over_limit(&self, tx: &mut Tx, collection: Uuid) -> Result<bool, StoreError> {
        let waiting = self.store.videos().waiting_in_collection(tx.conn(), collection).await?;
        Ok(waiting.videos > self.limits.videos || waiting.bytes > self.limits.bytes)
    }

    /// Returns the blob store of uploaded files.
    pub fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Adds an uploaded video and its job.
    ///
    /// # Errors
    /// Fails with `StoreError::Conflict` if the video was erased, and if the store or the queue
    /// fails. The caller keeps the blob until then.
    pub async fn add(
        &self,
        collection: Uuid,
        upload: &Upload,
        request: VideoRequest,
    ) -> Result<AddOutcome, ChangeError> {
        let video = NewVideo {
            collection,
            sha256: Some(upload.sha256),
            bytes: Some(i64::try_from(upload.bytes).unwrap_or(i64::MAX)),
            source_url: None,
            source_key: Some(upload.key.clone()),
            scan: None,
            options: serde_json::to_value(request).expect("options are plain data"),
        };
        retried("add_video", || async {
            let mut tx = self.store.begin().await?;
            self.store.videos().lock_waiting(tx.conn(), collection).await?;
            self.store.suppressions().lock(tx.conn(), collection, false).await?;
            if self.store.suppressions().suppresses_video(&mut *tx.conn(), collection, &upload.sha256).await?
            {
                let reason = "the video was erased and must not be stored again";
                return Err(StoreError::Conflict(reason.into()).into());
            }
            let id = match self.store.videos().insert(tx.conn(), &video).await? {
                Ok(id) => id,
                Err(existing) => {
                    // The insertion recorded that the file was found again.
                    tx.commit().await?;
                    return Ok(AddOutcome::Existing(existing));
                }
            };
            if self.is_over_limit(&mut tx, collection).await? {
                return Ok(AddOutcome::LimitReached);
            }
            self.queue.enqueue(tx.conn(), &[VideoJob { video_id: id }.scan_job(collection)]).await?;
            // An upload of the same bytes that has just ended may be deleting the blob.
            let missing =
                self.store.blobs().prevent_deletion(tx.conn(), std::slice::from_ref(&upload.key)).await?;
            if !missing.is_empty() && !self.blobs.exists(&upload.key).await? {
                let reason = "the same video was deleted at the same time; send it again";
                return Err(StoreError::Conflict(reason.into()).into());
            }
            tx.commit().await?;
            Ok(AddOutcome::New(id))
        })
        .await
    }

    /// Adds a video that a worker fetches from `address`, and its job. If the collection has a
    /// video of the same file, the new one fails as a duplicate later.
    ///
    /// # Errors
    /// Fails if the store or the queue fails.
    pub async fn add_address(
        &self,
        collection: Uuid,
        address: &Url,
        request: VideoRequest,
    ) -> Result<AddOutcome, ChangeError> {
        let video = NewVideo {
            collection,
            sha256: None,
            bytes: None,
            source_url: Some(address.to_string()),
            source_key: None,
            scan: None,
            options: serde_json::to_value(request).expect("options are plain data"),
        };
        retried("add_video", || async {
            let mut tx = self.store.begin().await?;
            let store = &self.store;
            store.videos().lock_waiting(tx.conn(), collection).await?;
            if let Some(live) =
                store.videos().find_by_address(tx.conn(), collection, address.as_str()).await?
            {
                return Ok(AddOutcome::Existing(live));
            }
            let id = match store.videos().insert(tx.conn(), &video).await? {
                Ok(id) | Err(id) => id,
            };
            if self.is_over_limit(&mut tx, collection).await? {
                return Ok(AddOutcome::LimitReached);
            }
            self.queue.enqueue(tx.conn(), &[VideoJob { video_id: id }.fetch_job(collection)]).await?;
            tx.commit().await?;
            Ok(AddOutcome::New(id))
        })
        .await
    }

    /// Records that an uploaded blob is not needed, unless a video refers to it.
    pub async fn discard_upload(&self, key: String) {
        discard_blobs(&self.store, &self.blobs, vec![key]).await;
    }

    /// Pauses a video. The worker that reads it stops within a second, and the video continues
    /// later at its last checkpoint.
    ///
    /// # Errors
    /// Fails with `StoreError::Conflict`, which contains the state, if it is not queued or running,
    /// and if a scan of local files reads it.
    pub async fn pause(&self, store: &Store, id: Uuid) -> Result<Video, ChangeError> {
        retried("pause_video", || async {
            let mut tx = store.begin().await?;
            self.queue.groups().hold(tx.conn(), id).await?;
            let from = [VideoState::Queued, VideoState::Running];
            store.videos().set_state(tx.conn(), id, &from, VideoState::Paused).await?;
            if !self.queue.groups().is_live(tx.conn(), id).await? {
                // The video could not be resumed, because only the scan can access the file.
                let reason =
                    "a scan of local files reads the video; interrupt that command to continue later";
                return Err(StoreError::Conflict(reason.into()).into());
            }
            tx.commit().await?;
            Ok(store.videos().get(id).await?)
        })
        .await
    }

    /// Resumes a paused video.
    ///
    /// # Errors
    /// Fails with `StoreError::Conflict`, which contains the state, if it is not paused.
    pub async fn resume(&self, store: &Store, id: Uuid) -> Result<Video, ChangeError> {
        retried("resume_video", || async {
            let mut tx = store.begin().await?;
            self.queue.groups().release(tx.conn(), id).await?;
            store.videos().set_state(tx.conn(), id, &[VideoState::Paused], VideoState::Queued).await?;
            tx.commit().await?;
            Ok(store.videos().get(id).await?)
        })
        .await
    }

    /// Cancels a video. Its stored parts remain. Its reader stops within a second.
    ///
    /// # Errors
    /// Fails with `StoreError::Conflict`, which contains the state, if it has ended.
    pub async fn cancel(&self, store: &Store, id: Uuid) -> Result<Video, ChangeError> {
        let collection = store.videos().get(id).await?.collection_id;
        let unused = retried("cancel_video", || async {
            let mut tx = store.begin().await?;
            self.queue.groups().cancel(tx.conn(), id, MAX_JOBS).await?;
            // The lock orders this transaction and erasures, so that none of them misses a change.
            store.suppressions().lock(tx.conn(), collection, false).await?;
            let end = video_end(VideoState::Cancelled, Reason::Cancelled, None);
            let unused = store.videos().end(tx.conn(), id, end).await?;
            forget_emptied_video(store, &self.queue, &mut tx, id).await?;
            tx.commit().await?;
            Ok::<_, ChangeError>(unused)
        })
        .await?;
        delete_blobs(&self.store, &self.blobs, &unused).await;
        let video = store.videos().get(id).await?;
        if let Some(crawl) = video.crawl_id {
            closing::end_if_done(&self.store, &self.queue, crawl).await;
        }
        Ok(video)
    }

    /// Reads a failed video again. It continues after its last stored part.
    ///
    /// # Errors
    /// Fails with `StoreError::Conflict` if it did not fail, if its file is neither kept nor at an
    /// address from a caller, or if the collection has another video of the file. Returns `None` if
    /// too many of its videos wait.
    pub async fn retry(&self, store: &Store, id: Uuid) -> Result<Option<Video>, ChangeError> {
        retried("retry_video", || async {
            let video = store.videos().get(id).await?;
            let mut tx = store.begin().await?;
            store.videos().lock_waiting(tx.conn(), video.collection_id).await?;
            let job = VideoJob { video_id: id };
            let job = match video.source_key {
                Some(_) => job.scan_job(video.collection_id),
                None => job.fetch_job(video.collection_id),
            };
            self.queue.enqueue(tx.conn(), &[job]).await?;
            store.videos().requeue(tx.conn(), id).await?;
            let waiting = store.videos().waiting_in_collection(tx.conn(), video.collection_id).await?;
            if waiting.videos > self.limits.videos {
                return Ok(None);
            }
            tx.commit().await?;
            Ok(Some(store.videos().get(id).await?))
        })
        .await
    }

    /// Deletes the files of videos that failed a week ago. Returns their number.
    async fn delete_failed_files(&self) -> Result<u64, ChangeError> {
        let before = OffsetDateTime::now_utc() - FAILED_FILE_RETENTION;
        let mut tx = self.store.begin().await?;
        let unused = self.store.videos().delete_failed_files(tx.conn(), before, CHUNK).await?;
        tx.commit().await?;
        delete_blobs(&self.store, &self.blobs, &unused).await;
        Ok(unused.len() as u64)
    }

    /// Deletes a video with its tracks, frames and faces in the caller's transaction. Returns the
    /// blobs to delete after the commit. `store` is limited to the rows that the caller may delete.
    ///
    /// # Errors
    /// Fails with `StoreError::NotFound` if it does not exist.
    pub async fn delete(&self, tx: &mut Tx, store: &Store, id: Uuid) -> Result<Vec<String>, ChangeError> {
        self.queue.groups().cancel(tx.conn(), id, MAX_JOBS).await?;
        Ok(store.videos().delete(tx.conn(), id).await?)
    }

    /// Repairs videos and returns the number of repairs. Call it periodically. Ends live videos
    /// whose job the queue discarded, because its worker ended in every attempt. Cancels the jobs
    /// of paused videos that have ended or were deleted. Deletes the files of videos that failed
    /// long ago.
    ///
    /// # Errors
    /// Fails if the store or the queue fails. Earlier repairs are kept.
    pub async fn reconcile(&self) -> Result<u64, ChangeError> {
        let (mut repaired, mut after) = (0, Uuid::nil());
        for kind in [JobKind::ScanVideo, JobKind::FetchVideo] {
            repaired += self.cancel_held_jobs(kind).await?;
        }
        repaired += self.delete_failed_files().await?;
        loop {
            let live = self.store.videos().live(after, CHUNK).await?;
            let Some(last) = live.last() else { return Ok(repaired) };
            after = *last;
            let mut tx = self.store.begin().await?;
            let without_job = self.queue.groups().without_jobs(tx.conn(), &live).await?;
            drop(tx);
            for id in without_job {
                repaired += u64::from(self.end_without_job(id).await?);
            }
        }
    }

    /// Cancels the held jobs of videos that have ended or were deleted. A paused video ends without
    /// its job if its crawl is cancelled or deleted, or if it is erased.
    async fn cancel_held_jobs(&self, kind: JobKind) -> Result<u64, ChangeError> {
        let (mut cancelled, mut after) = (0, Uuid::nil());
        loop {
            let mut tx = self.store.begin().await?;
            let held = self.queue.groups().held(tx.conn(), kind.as_str(), after, CHUNK).await?;
            drop(tx);
            let Some(last) = held.last() else { return Ok(cancelled) };
            after = *last;
            let live = self.store.videos().filter_live(&held).await?;
            // Only a retry makes an ended video live again, and it then gets a new job.
            for id in held.into_iter().filter(|id| !live.contains(id)) {
                let mut tx = self.store.begin().await?;
                cancelled += self.queue.groups().cancel(tx.conn(), id, MAX_JOBS).await?;
                tx.commit().await?;
            }
        }
    }

    async fn end_without_job(&self, id: Uuid) -> Result<bool, ChangeError> {
        let collection = match self.store.videos().get(id).await {
            Err(StoreError::NotFound { .. }) => return Ok(false),
            video => video?.collection_id,
        };
        let mut tx = self.store.begin().await?;
        // This call locks the job, whose end changes the state in the same transaction.
        self.queue.groups().is_held(tx.conn(), id).await?;
        if self.queue.groups().is_live(tx.conn(), id).await? {
            return Ok(false);
        }
        self.store.suppressions().lock(tx.conn(), collection, false).await?;
        let detail = "in every attempt, the worker ended or the handler panicked";
        let end = video_end(VideoState::Failed, Reason::JobDiscarded, Some(detail));
        let end = VideoEnd { keep_file: true, ..end };
        match self.store.videos().end(tx.conn(), id, end).await {
            // The video ended or was deleted in the meantime.
            Err(StoreError::Conflict(_) | StoreError::NotFound { .. }) => return Ok(false),
            ended => self.store.blobs().record_deletions(tx.conn(), ended?).await?,
        };
        forget_emptied_video(&self.store, &self.queue, &mut tx, id).await?;
        tx.commit().await?;
        Ok(true)
    }
}
