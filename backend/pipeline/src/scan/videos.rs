//! Scans the video files of a scan of local files. The files remain where they are.
//!
//! The video has no job. It belongs to the scan's crawl: it ends with the crawl, also if the
//! command is killed and the crawl's lease expires. The next scan of the file with the same options
//! then continues after the last part that is stored.

use crate::VideoProgress;
use crate::domain::{VideoRequest, forget_jobs};
use crate::images::ingest::{IngestError, ReadVideoError, VideoFile, VideoReader};
use crate::scan::{Scan, end_lapsed};
use domain::{Reason, Unprocessed, VideoState};
use std::path::Path;
use std::time::Duration;
use store::videos::crawled::VideoCounts;
use store::videos::{NewVideo, Video, VideoEnd};
use store::{StoreError, retried};
use url::Url;
use uuid::Uuid;
use video::Decoder;

/// Time between two checks whether another scan still reads the same file.
const OTHER_SCAN_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub enum ScannedVideo {
    /// The video was read to its end, or as far as a damaged file can be read.
    Stored {
        video: Box<Video>,
        /// What is stored of it.
        counts: VideoCounts,
    },
    /// The collection has this video, or another process is reading the same file.
    Duplicate(Uuid),
    /// The video was erased and must not be stored again.
    Suppressed,
    /// The video was not read to its end. What is stored of it remains.
    Unprocessed {
        video: Uuid,
        /// The state for summaries.
        state: Unprocessed,
        reason: Reason,
        /// A human-readable explanation.
        detail: String,
    },
}

/// Which row a scan uses for a file.
enum Begun {
    Running(Uuid),
    Existing(Uuid),
    Suppressed,
}

impl Scan {
    /// Analyses and stores one video file. If the future is dropped, everything up to the last part
    /// remains stored, and [`Scan::finish`] ends the video.
    ///
    /// # Errors
    /// Fails if the store fails, or if another process ended the scan.
    pub async fn video(
        &self,
        decoder: &Decoder,
        path: &Path,
        file: VideoFile,
        request: VideoRequest,
        progress: &mut dyn VideoProgress,
    ) -> Result<ScannedVideo, IngestError> {
        self.check_alive()?;
        let new = NewVideo {
            collection: self.crawl.collection_id,
            sha256: Some(file.sha256),
            bytes: Some(i64::try_from(file.bytes).unwrap_or(i64::MAX)),
            source_url: Url::from_file_path(path).ok().map(Into::into),
            source_key: None,
            scan: Some(self.crawl.id),
            options: serde_json::to_value(request).expect("options are plain data"),
        };
        let id = match self.begin_video(&new).await? {
            Begun::Running(id) => id,
            Begun::Existing(id) => return self.duplicate(&new, id).await,
            Begun::Suppressed => return Ok(ScannedVideo::Suppressed),
        };
        let video = retried("video", || self.store.video(id)).await?;
        let reader = VideoReader::Scan(self.crawl.id);
        let error = tokio::select! {
            read = self.ingest.read_video(decoder, file, &video, reader, progress) => match read {
                Ok(_) => return self.stored(id).await,
                Err(error) => error,
            },
            _ = self.ingest.video_stopped(id) => {
                StoreError::Conflict("the video was ended by another process".into()).into()
            }
        };
        self.unprocessed(id, error).await
    }

    /// Inserts the row of a file, or takes that of an interrupted scan. Waits if another scan may
    /// be reading the file.
    async fn begin_video(&self, new: &NewVideo) -> Result<Begun, IngestError> {
        let mut first_lease = None;
        loop {
            let existing = match retried("begin_scanned_video", || self.try_begin_video(new)).await? {
                Begun::Existing(id) => id,
                begun => return Ok(begun),
            };
            // A scan that reads the file has a lease. If its command was killed, the lease expires;
            // if not, the lease is renewed.
            let Some(lease) = self.store.lease_of_scanned_video(existing).await? else {
                let live = self.store.video_state(existing).await?;
                // It may have ended after the insertion failed.
                if matches!(live, Some(VideoState::Cancelled | VideoState::Failed) | None) {
                    continue;
                }
                return Ok(Begun::Existing(existing));
            };
            match first_lease.replace((existing, lease)) {
                Some(first) if first != (existing, lease) => return Ok(Begun::Existing(existing)),
                None => {
                    tracing::info!(video = %existing, "another scan may be reading the file; waiting for it")
                }
                Some(_) => {}
            }
            tokio::time::sleep(OTHER_SCAN_INTERVAL).await;
            end_lapsed(&self.store, &self.ingest.inner.queue).await?;
        }
    }

    async fn try_begin_video(&self, new: &NewVideo) -> Result<Begun, IngestError> {
        let mut tx = self.store.begin().await?;
        self.store.lock_suppressions(tx.conn(), new.collection, false).await?;
        if let Some(sha256) = &new.sha256
            && self.store.suppresses_video(&mut *tx.conn(), new.collection, sha256).await?
        {
            return Ok(Begun::Suppressed);
        }
        let model = self.ingest.inner.model_id;
        let id = match self.store.continue_video(tx.conn(), new, model).await? {
            Some(id) => id,
            None => match self.store.insert_video(tx.conn(), new).await? {
                Err(existing) => return Ok(Begun::Existing(existing)),
                Ok(id) => {
                    let from = [VideoState::Queued];
                    self.store.set_video_state(tx.conn(), id, &from, VideoState::Running).await?;
                    id
                }
            },
        };
        tx.commit().await?;
        Ok(Begun::Running(id))
    }

    /// Records that the file is that of another video. The deletion of the other scan or crawl then
    /// keeps that video.
    async fn duplicate(&self, new: &NewVideo, original: Uuid) -> Result<ScannedVideo, IngestError> {
        // The commit's answer may be lost. The next attempt then finds the record by its id.
        let id = Uuid::now_v7();
        retried("record_duplicate_video", || async {
            let mut tx = self.store.begin().await?;
            self.store.lock_suppressions(tx.conn(), new.collection, false).await?;
            self.store.record_duplicate_video(tx.conn(), id, new, original).await?;
            let jobs = self.store.erase_emptied_video(tx.conn(), id).await?;
            forget_jobs(&self.ingest.inner.queue, &mut tx, &jobs).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(())
        })
        .await?;
        Ok(ScannedVideo::Duplicate(original))
    }

    async fn stored(&self, id: Uuid) -> Result<ScannedVideo, IngestError> {
        let counts = self.store.video_counts(id).await?;
        Ok(ScannedVideo::Stored { video: Box::new(self.store.video(id).await?), counts })
    }

    /// Ends a video that could not be read. Fails with errors that affect all files.
    async fn unprocessed(&self, id: Uuid, error: ReadVideoError) -> Result<ScannedVideo, IngestError> {
        let detail = error.for_users();
        if detail != error.to_string() {
            tracing::warn!(video = %id, %error, "failed to read a video");
        }
        let (state, reason) = match error {
            ReadVideoError::Analyze(error) => (error.state(), error.reason()),
            ReadVideoError::Ingest(IngestError::Analyze(error)) => (error.state(), error.reason()),
            ReadVideoError::Duplicate(other) => return Ok(ScannedVideo::Duplicate(other)),
            ReadVideoError::Suppressed => (Unprocessed::Skipped, Reason::SuppressedVideo),
            ReadVideoError::OtherModel => (Unprocessed::Failed, Reason::ModelChanged),
            ReadVideoError::Options(_) => (Unprocessed::Failed, Reason::BadOptions),
            ReadVideoError::Ingest(error) => return self.after_store_error(id, error).await,
        };
        let end = VideoEnd {
            state: VideoState::Failed,
            people: None,
            reason: Some(reason.clone()),
            detail: Some(&detail),
            original: None,
            keeps_file: false,
        };
        let ended = retried("fail_scanned_video", || async {
            let mut tx = self.store.begin().await?;
            // An erasure finds the video ended, or this transaction finds what was erased.
            self.store.lock_suppressions(tx.conn(), self.crawl.collection_id, false).await?;
            self.store.hold_scanned_video(tx.conn(), id, self.crawl.id).await?;
            self.store.end_video(tx.conn(), id, end.clone()).await?;
            // A crawl may have found the same file.
            let jobs = self.store.erase_emptied_video(tx.conn(), id).await?;
            forget_jobs(&self.ingest.inner.queue, &mut tx, &jobs).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(())
        })
        .await;
        match ended {
            Ok(()) => Ok(ScannedVideo::Unprocessed { video: id, state, reason, detail }),
            Err(error) => self.after_store_error(id, error).await,
        }
    }

    /// Tells a video that was ended or deleted from outside from a failure of the store.
    async fn after_store_error(&self, id: Uuid, error: IngestError) -> Result<ScannedVideo, IngestError> {
        match self.store.video_state(id).await? {
            // The transaction that ended it was committed, but its answer was lost.
            Some(VideoState::Completed) => self.stored(id).await,
            Some(VideoState::Cancelled | VideoState::Failed) | None => {
                self.check_alive()?;
                let (state, reason) = (Unprocessed::Skipped, Reason::Cancelled);
                let detail = "the video was cancelled or deleted while it was read".into();
                Ok(ScannedVideo::Unprocessed { video: id, state, reason, detail })
            }
            _ => Err(error),
        }
    }
}
