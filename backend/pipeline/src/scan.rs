//! Runs a scan of local files and records it as a crawl. Every image has a row in the image ledger,
//! like every URL of a crawl. The caller lists and reads the files, and decides on concurrency.
//!
//! A scan has no jobs. It holds a lease on the crawl record. If the command of the scan is killed,
//! the lease expires. The next maintenance run of a service, or the next scan, then ends the scan
//! as failed, with its videos. The next scan of a video's file with the same options continues
//! after the last part that is stored.
use crate::crawls::closing;
use crate::domain::{
    ChangeError, CrawlError, Row, RowEnd, VideoRequest, collection_id, count_outcome, forget_emptied_video,
    forget_jobs, profile_of, video_end,
};
use crate::images::face_store::{FaceStore, IngestError};
use crate::images::ingest::{Incoming, Ingest, IngestOutcome};
use crate::videos::store::{ReadVideoError, VideoFile, VideoReader, read_video, until_video_stops};
use crate::{AnalyzeOptions, Dedupe, Rotate, VideoProgress};
use bytes::Bytes;
use domain::{CrawlKind, CrawlState, Reason, Unprocessed, VideoState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::crawls::Crawl;
use store::crawls::ledger::Ledger;
use store::crawls::pages::{AdmittedUrl, NewImageUrl};
use store::videos::crawled::VideoCounts;
use store::videos::{NewVideo, Video};
use store::{Store, StoreError, retried};
use tokio_util::task::AbortOnDropHandle;
use url::Url;
use uuid::Uuid;
use video::Decoder;

/// Duration of the lease. It is long, so that a scan can continue after its computer was suspended
/// for a short time.
const LEASE: Duration = Duration::from_secs(120);
/// Time between two renewals of the lease.
const RENEWAL: Duration = Duration::from_secs(20);

/// A running scan. Cloning it is cheap, so that many tasks can add files to it.
#[derive(Clone)]
pub struct Scan {
    store: Store,
    faces: FaceStore,
    ingest: Ingest,
    crawl: Crawl,
    dedupe: Dedupe,
    options: AnalyzeOptions,
    lease: Arc<AbortOnDropHandle<()>>,
}

/// Renews the scan's lease until the handle is dropped or another process ends the scan.
fn hold_lease(store: Store, scan: Uuid) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(RENEWAL).await;
            match renew(&store, scan).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::warn!(%scan, %error, "failed to renew the lease of a scan"),
            }
        }
    }))
}

async fn renew(store: &Store, scan: Uuid) -> Result<bool, StoreError> {
    let mut tx = store.begin().await?;
    let is_held = store.crawls().renew_scan(tx.conn(), scan, LEASE).await?;
    tx.commit().await?;
    Ok(is_held)
}

impl Scan {
    /// Inserts the crawl record (kind `scan`). `seeds` are the paths that the user specified. The
    /// collection's quality profile applies, unless the options contain one.
    ///
    /// # Errors
    /// Fails with [`CrawlError::Invalid`] if the collection does not exist.
    pub async fn begin(
        faces: FaceStore,
        collection: &str,
        seeds: &[String],
        dedupe: Dedupe,
        options: AnalyzeOptions,
    ) -> Result<Self, CrawlError> {
        let store = faces.store.clone();
        let collection = collection_id(&store, collection).await?;
        closing::end_expired_scans(&store, &faces.queue).await?;
        let profile = profile_of(&store.collections().by_id(collection).await?);
        let options = AnalyzeOptions { quality_profile: options.quality_profile.or(profile), ..options };
        let mut tx = store.begin().await?;
        let mut stored = serde_json::json!({ "dedupe": dedupe });
        if options.rotate == Rotate::Auto {
            stored["rotate"] = serde_json::json!(options.rotate);
        }
        let crawl = store.crawls().insert(tx.conn(), collection, CrawlKind::Scan, seeds, &stored).await?;
        store.crawls().renew_scan(tx.conn(), crawl.id, LEASE).await?;
        tx.commit().await?;
        let lease = Arc::new(hold_lease(store.clone(), crawl.id));
        let ingest = Ingest::new(faces.clone());
        Ok(Self { store, faces, ingest, crawl, dedupe, options, lease })
    }

    /// Returns the crawl record as it was when the scan began.
    pub fn crawl(&self) -> &Crawl {
        &self.crawl
    }

    /// Adds files to the ledger as `file:` URLs. Returns the rows of the files that are new to this
    /// scan, in the order of the input.
    ///
    /// # Errors
    /// Fails with [`CrawlError::Invalid`] if a path is not absolute; the error contains the path.
    /// The store fails with `StoreError::Conflict` if another process ended the scan.
    pub async fn add(&self, files: &[impl AsRef<Path>]) -> Result<Vec<AdmittedUrl>, CrawlError> {
        self.check_alive()?;
        let mut rows = Vec::with_capacity(files.len());
        for file in files {
            let file = file.as_ref();
            let url = Url::from_file_path(file).map_err(|()| {
                CrawlError::invalid("path", format!("{} is not an absolute path", file.display()))
            })?;
            rows.push(NewImageUrl { url: url.into(), page_url: None, requested_url: None, alt: None });
        }
        let mut tx = self.store.begin().await?;
        let admitted = self.store.ledger().admit_images(tx.conn(), self.crawl.id, i64::MAX, &rows).await?;
        tx.commit().await?;
        Ok(admitted)
    }

    /// Analyses and stores one file, and settles its row as `processed`, `duplicate` or
    /// `suppressed`. If the analysis fails, it is `skipped` or `failed` with the error's code.
    ///
    /// # Errors
    /// Fails with the reason why the file was not stored, and with `StoreError::Conflict` if
    /// another process ended the scan. After a failure of the database the row remains queued.
    pub async fn ingest(&self, row: Uuid, bytes: Bytes) -> Result<IngestOutcome, IngestError> {
        self.check_alive()?;
        let incoming = Incoming {
            incomplete: false,
            bytes,
            collection: self.crawl.collection_id,
            crawl: self.crawl.id,
            image_url: row,
            dedupe: self.dedupe,
            options: self.options.clone(),
            moved_to: None,
            fetched: None,
        };
        let error = match self.ingest.ingest(incoming, None).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if let IngestError::Analyze(cause) = &error {
            self.settle(row, cause.state(), cause.reason(), &cause.to_string()).await?;
        }
        Err(error)
    }

    /// Settles a row as `skipped`, for a file that must not be read.
    pub async fn skip(&self, row: Uuid, reason: Reason, detail: &str) -> Result<(), StoreError> {
        self.settle(row, Unprocessed::Skipped, reason, detail).await
    }

    /// Settles a row as `failed`, for a file that cannot be read.
    pub async fn fail(&self, row: Uuid, reason: Reason, detail: &str) -> Result<(), StoreError> {
        self.settle(row, Unprocessed::Failed, reason, detail).await
    }

    /// Ends the scan as `completed`, or as `cancelled` if it was `interrupted`. Rows that are still
    /// queued are skipped as `not_scanned`. A video that was being read ends as cancelled.
    ///
    /// # Errors
    /// Fails with `StoreError::Conflict` if another process ended the scan in the meantime.
    pub async fn finish(&self, interrupted: bool) -> Result<Crawl, ChangeError> {
        let queue = &self.faces.queue;
        let mut tx = self.store.begin().await?;
        let end = if interrupted { CrawlState::Cancelled } else { CrawlState::Completed };
        let live = [CrawlState::Running];
        self.store.suppressions().lock(tx.conn(), self.crawl.collection_id, false).await?;
        let crawl = self.store.crawls().set_state(tx.conn(), self.crawl.id, &live, end, None).await?;
        let skipped =
            self.store.crawls().skip_queued(tx.conn(), self.crawl.id, Reason::NotScanned, i64::MAX).await?;
        forget_jobs(queue, &mut tx, &skipped.jobs).await?;
        let jobs =
            self.store.crawled_videos().end_videos_of_ended_scans(tx.conn(), closing::SCAN_ENDED).await?;
        forget_jobs(queue, &mut tx, &jobs).await?;
        tx.commit().await?;
        Ok(crawl)
    }

    fn check_alive(&self) -> Result<(), StoreError> {
        if self.lease.is_finished() {
            return Err(StoreError::Conflict("the scan was ended by another process".into()));
        }
        Ok(())
    }

    async fn settle(
        &self,
        row: Uuid,
        state: Unprocessed,
        reason: Reason,
        detail: &str,
    ) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        let end = RowEnd { state, reason: &reason, detail, status: None };
        Row::new(Ledger::ImageUrls, row).settle(&self.store, &mut tx, end).await?;
        tx.commit().await?;
        count_outcome("image", state.as_str(), Some(&reason));
        Ok(())
    }
}

/// Time between two checks whether another scan still reads the same file.
const OTHER_SCAN_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub enum ScannedVideo {
    /// The video was read to its end, or as far as a damaged file can be read.
    Stored {
        video: Box<Video>,
        /// Numbers of its stored tracks and faces.
        counts: VideoCounts,
    },
    /// The collection has this video, or another process is reading the same file.
    Duplicate(Uuid),
    /// The video was erased and must not be stored again.
    Suppressed,
    /// The video was not read to its end. Its stored parts remain.
    Unprocessed {
        video: Uuid,
        /// The state for summaries.
        state: Unprocessed,
        reason: Reason,
        /// A human-readable explanation.
        detail: String,
    },
}

/// The row that a scan uses for a file.
enum ScanRow {
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
    pub async fn scan_video(
        &self,
        decoder: &Decoder,
        path: &Path,
        file: VideoFile,
        request: VideoRequest,
        progress: &mut dyn VideoProgress,
    ) -> Result<ScannedVideo, IngestError> {
        self.check_alive()?;
        let new_video = NewVideo {
            collection: self.crawl.collection_id,
            sha256: Some(file.sha256),
            bytes: Some(i64::try_from(file.bytes).unwrap_or(i64::MAX)),
            source_url: Url::from_file_path(path).ok().map(Into::into),
            source_key: None,
            scan: Some(self.crawl.id),
            options: serde_json::to_value(request).expect("options are plain data"),
        };
        let id = match self.begin_video(&new_video).await? {
            ScanRow::Running(id) => id,
            ScanRow::Existing(id) => return self.record_duplicate(&new_video, id).await,
            ScanRow::Suppressed => return Ok(ScannedVideo::Suppressed),
        };
        let video = retried("video", || self.store.videos().get(id)).await?;
        let reader = VideoReader::Scan(self.crawl.id);
        let error = tokio::select! {
            read = read_video(&self.faces, decoder, file, &video, reader, progress) => match read {
                Ok(_) => return self.stored_video(id).await,
                Err(error) => error,
            },
            _ = until_video_stops(&self.store, id) => {
                StoreError::Conflict("the video was ended by another process".into()).into()
            }
        };
        self.end_unprocessed(id, error).await
    }

    /// Inserts the row of a file or reuses an interrupted one. Waits for other scans of the file.
    async fn begin_video(&self, new: &NewVideo) -> Result<ScanRow, IngestError> {
        let mut first_lease = None;
        loop {
            let existing = match retried("begin_scanned_video", || self.try_begin_video(new)).await? {
                ScanRow::Existing(id) => id,
                row => return Ok(row),
            };
            // A scan that reads the file has a lease. If its command was killed, the lease expires;
            // if not, the lease is renewed.
            let Some(lease) = self.store.crawled_videos().scan_lease_end(existing).await? else {
                let state = self.store.videos().state(existing).await?;
                // It may have ended after the insertion failed.
                if matches!(state, Some(VideoState::Cancelled | VideoState::Failed) | None) {
                    continue;
                }
                return Ok(ScanRow::Existing(existing));
            };
            match first_lease.replace((existing, lease)) {
                Some(first) if first != (existing, lease) => return Ok(ScanRow::Existing(existing)),
                None => {
                    tracing::info!(video = %existing, "another scan may be reading the file; waiting for it")
                }
                Some(_) => {}
            }
            tokio::time::sleep(OTHER_SCAN_INTERVAL).await;
            closing::end_expired_scans(&self.store, &self.faces.queue).await?;
        }
    }

    async fn try_begin_video(&self, new: &NewVideo) -> Result<ScanRow, IngestError> {
        let mut tx = self.store.begin().await?;
        self.store.suppressions().lock(tx.conn(), new.collection, false).await?;
        if let Some(sha256) = &new.sha256
            && self.store.suppressions().suppresses_video(&mut *tx.conn(), new.collection, sha256).await?
        {
            return Ok(ScanRow::Suppressed);
        }
        let model = self.faces.model_id;
        let id = match self.store.crawled_videos().continue_scanned(tx.conn(), new, model).await? {
            Some(id) => id,
            None => match self.store.videos().insert(tx.conn(), new).await? {
                Err(existing) => return Ok(ScanRow::Existing(existing)),
                Ok(id) => {
                    let from = [VideoState::Queued];
                    self.store.videos().set_state(tx.conn(), id, &from, VideoState::Running).await?;
                    id
                }
            },
        };
        tx.commit().await?;
        Ok(ScanRow::Running(id))
    }

    /// Records that another video has the same file. The deletion of the other scan or crawl then
    /// keeps that video.
    async fn record_duplicate(&self, new: &NewVideo, original: Uuid) -> Result<ScannedVideo, IngestError> {
        // The response to the commit may be lost. The next attempt then finds the record by its id.
        let id = Uuid::now_v7();
        retried("record_duplicate_video", || async {
            let mut tx = self.store.begin().await?;
            self.store.suppressions().lock(tx.conn(), new.collection, false).await?;
            self.store.crawled_videos().record_duplicate(tx.conn(), id, new, original).await?;
            forget_emptied_video(&self.store, &self.faces.queue, &mut tx, id).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(())
        })
        .await?;
        Ok(ScannedVideo::Duplicate(original))
    }

    async fn stored_video(&self, id: Uuid) -> Result<ScannedVideo, IngestError> {
        let counts = self.store.crawled_videos().counts(id).await?;
        Ok(ScannedVideo::Stored { video: Box::new(self.store.videos().get(id).await?), counts })
    }

    /// Ends a video that could not be read. Fails with errors that affect all files.
    async fn end_unprocessed(&self, id: Uuid, error: ReadVideoError) -> Result<ScannedVideo, IngestError> {
        let detail = error.user_message();
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
        let end = video_end(VideoState::Failed, reason.clone(), Some(&detail));
        let ended = retried("fail_scanned_video", || async {
            let mut tx = self.store.begin().await?;
            // The lock orders this transaction and erasures, so that none of them misses a change.
            self.store.suppressions().lock(tx.conn(), self.crawl.collection_id, false).await?;
            self.store.crawled_videos().lock_scanned(tx.conn(), id, self.crawl.id).await?;
            self.store.videos().end(tx.conn(), id, end.clone()).await?;
            // A crawl may have found the same file.
            forget_emptied_video(&self.store, &self.faces.queue, &mut tx, id).await?;
            tx.commit().await?;
            Ok::<_, IngestError>(())
        })
        .await;
        match ended {
            Ok(()) => Ok(ScannedVideo::Unprocessed { video: id, state, reason, detail }),
            Err(error) => self.after_store_error(id, error).await,
        }
    }

    /// Checks whether the error is a failure of the store, or whether the video was ended or
    /// deleted.
    async fn after_store_error(&self, id: Uuid, error: IngestError) -> Result<ScannedVideo, IngestError> {
        match self.store.videos().state(id).await? {
            // The transaction that ended it was committed, but the response was lost.
            Some(VideoState::Completed) => self.stored_video(id).await,
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
