//! Runs a scan of local files and records it as a crawl. Every file has a row in the image ledger,
//! like every URL of a crawl. This module does not read files or list directories.
//!
//! A scan has no jobs. The caller (the command line) lists and reads the files and decides on
//! concurrency and progress output. It calls `begin`, `add` for files, `ingest`, `skip` or `fail`
//! for each row, and `finish`.
//!
//! A running scan holds a lease on the crawl record. If the command of the scan is killed, the
//! lease expires. The next maintenance run of a service, or the next scan, then ends the scan as
//! failed. Videos of a scan are in the module `scan_video`.

pub(crate) mod videos;
use crate::domain::{ChangeError, Row, RowEnd, forget_jobs};
use crate::domain::{CrawlError, collection_id};
use crate::images::ingest::outcome::count_outcome;
use crate::images::ingest::{Incoming, Ingest, IngestError, Ingested};
use crate::{AnalyzeOptions, Dedupe, Rotate, profile_of};
use bytes::Bytes;
use domain::{CrawlKind, CrawlState, Reason, Unprocessed};
use queue::Queue;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::crawls::Crawl;
use store::crawls::ledger::Ledger;
use store::crawls::pages::{Admitted, NewImageUrl};
use store::{Store, StoreError};
use tokio::task::JoinHandle;
use url::Url;
use uuid::Uuid;

/// Duration of the lease. It is long, so that a scan can continue after its computer was suspended
/// for a short time.
const LEASE: Duration = Duration::from_secs(120);
/// Time between two renewals of the lease.
const RENEWAL: Duration = Duration::from_secs(20);
/// Error text in the record of a scan whose lease expired.
const LAPSED: &str = "the scan command ended before the scan was complete; run it again, and stored images are not analysed again";
/// Detail of a video whose scan ended first.
const VIDEO_ENDED: &str =
    "the scan ended before the end of the video; scan the file again with the same options to continue";

/// A running scan. Cloning it is cheap, so that many tasks can add files to it.
#[derive(Clone)]
pub struct Scan {
    pub(crate) store: Store,
    pub(crate) ingest: Ingest,
    pub(crate) crawl: Crawl,
    dedupe: Dedupe,
    options: AnalyzeOptions,
    lease: Arc<Lease>,
}

/// Renews the scan's lease until it is dropped or another process has ended the scan.
struct Lease {
    lost: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Lease {
    fn start(store: Store, scan: Uuid) -> Self {
        let lost = Arc::new(AtomicBool::new(false));
        let task_lost = lost.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEWAL).await;
                match renew(&store, scan).await {
                    Ok(true) => {}
                    Ok(false) => return task_lost.store(true, Ordering::Relaxed),
                    Err(error) => tracing::warn!(%scan, %error, "failed to renew the lease of a scan"),
                }
            }
        });
        Self { lost, task }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn renew(store: &Store, scan: Uuid) -> Result<bool, StoreError> {
    let mut tx = store.begin().await?;
    let is_held = store.renew_scan(tx.conn(), scan, LEASE).await?;
    tx.commit().await?;
    Ok(is_held)
}

/// Ends the scans whose lease expired and returns their number. The state becomes `failed`; rows
/// that are still queued are skipped as `not_scanned`.
pub(crate) async fn end_lapsed(store: &Store, queue: &Queue) -> Result<u64, ChangeError> {
    let mut ended = 0;
    for scan in store.lapsed_scans().await? {
        let mut tx = store.begin().await?;
        match store.lock_suppressions_of_crawl(tx.conn(), scan).await {
            // It was deleted meanwhile.
            Err(StoreError::NotFound { .. }) => continue,
            locked => locked?,
        };
        if store.end_lapsed_scan(tx.conn(), scan, LAPSED).await? {
            let skipped = store.skip_queued(tx.conn(), scan, Reason::NotScanned, i64::MAX).await?;
            forget_jobs(queue, &mut tx, &skipped.jobs).await?;
            tx.commit().await?;
            tracing::warn!(%scan, "scan lease expired; scan ended as failed");
            ended += 1;
        }
    }
    let mut tx = store.begin().await?;
    let jobs = store.end_scanned_videos(tx.conn(), VIDEO_ENDED).await?;
    forget_jobs(queue, &mut tx, &jobs).await?;
    tx.commit().await?;
    Ok(ended)
}

impl Scan {
    /// Inserts the crawl record (kind `scan`). `seeds` are the paths that the user specified. The
    /// collection's quality profile applies, unless the options contain one.
    ///
    /// # Errors
    /// Fails with [`CrawlError::Invalid`] if the collection does not exist.
    pub async fn begin(
        ingest: Ingest,
        collection: &str,
        seeds: &[String],
        dedupe: Dedupe,
        options: AnalyzeOptions,
    ) -> Result<Self, CrawlError> {
        let store = ingest.inner.store.clone();
        let collection = collection_id(&store, collection).await?;
        end_lapsed(&store, &ingest.inner.queue).await?;
        let own = profile_of(&store.collection_by_id(collection).await?);
        let options = AnalyzeOptions { quality_profile: options.quality_profile.or(own), ..options };
        let mut tx = store.begin().await?;
        let mut stored = serde_json::json!({ "dedupe": dedupe });
        if options.rotate == Rotate::Auto {
            stored["rotate"] = serde_json::json!(options.rotate);
        }
        let crawl = store.insert_crawl(tx.conn(), collection, CrawlKind::Scan, seeds, &stored).await?;
        store.renew_scan(tx.conn(), crawl.id, LEASE).await?;
        tx.commit().await?;
        let lease = Arc::new(Lease::start(store.clone(), crawl.id));
        Ok(Self { store, ingest, crawl, dedupe, options, lease })
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
    pub async fn add(&self, files: &[impl AsRef<Path>]) -> Result<Vec<Admitted>, CrawlError> {
        self.check_alive()?;
        let mut rows = Vec::with_capacity(files.len());
        for file in files {
            let file = file.as_ref();
            let url = Url::from_file_path(file).map_err(|()| {
                CrawlError::invalid("path", format!("{} is not an absolute path", file.display()))
            })?;
            rows.push(NewImageUrl { url: url.into(), page_url: None, asked_url: None, alt: None });
        }
        let mut tx = self.store.begin().await?;
        let admitted = self.store.admit_images(tx.conn(), self.crawl.id, i64::MAX, &rows).await?;
        tx.commit().await?;
        Ok(admitted)
    }

    /// Analyses and stores one file, and settles its row as `processed`, `duplicate` or
    /// `suppressed`. If the analysis fails, it is `skipped` or `failed` with the error's code.
    ///
    /// # Errors
    /// Fails with the reason why the file was not stored, and with `StoreError::Conflict` if
    /// another process ended the scan. After a failure of the database the row remains queued.
    pub async fn ingest(&self, row: Uuid, bytes: Bytes) -> Result<Ingested, IngestError> {
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
        let queue = &self.ingest.inner.queue;
        let mut tx = self.store.begin().await?;
        let end = if interrupted { CrawlState::Cancelled } else { CrawlState::Completed };
        let live = [CrawlState::Running];
        self.store.lock_suppressions(tx.conn(), self.crawl.collection_id, false).await?;
        let crawl = self.store.set_crawl_state(tx.conn(), self.crawl.id, &live, end, None).await?;
        let skipped = self.store.skip_queued(tx.conn(), self.crawl.id, Reason::NotScanned, i64::MAX).await?;
        forget_jobs(queue, &mut tx, &skipped.jobs).await?;
        let jobs = self.store.end_scanned_videos(tx.conn(), VIDEO_ENDED).await?;
        forget_jobs(queue, &mut tx, &jobs).await?;
        tx.commit().await?;
        Ok(crawl)
    }

    pub(crate) fn check_alive(&self) -> Result<(), StoreError> {
        if self.lease.lost.load(Ordering::Relaxed) {
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
