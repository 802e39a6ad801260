//! A scan of local files, kept as a crawl record: every file gets a row in the image ledger, as every URL of a crawl does.
//!
//! There are no jobs behind it. Whoever drives it (the command line) walks the files, reads them, and chooses concurrency and progress:
//! `begin`, `add` for files, `ingest`, `skip` or `fail` for each row, `finish`.
//!
//! While it lives it keeps a lease on the crawl record. A scan whose lease has run out, because its command was killed, is ended as failed by
//! the next look of a service or the next scan.

use super::outcome::{analysis_failure, count_outcome};
use super::{Incoming, Ingest, IngestError, Ingested};
use crate::domain::{CrawlError, collection_id};
use crate::{AnalyzeOptions, Dedupe, profile_of};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::crawls::Crawl;
use store::pages::{Admitted, NewImageUrl};
use store::{Store, StoreError};
use tokio::task::JoinHandle;
use url::Url;
use uuid::Uuid;

/// How long a scan counts as alive without a word from it. Long, because a laptop that was asleep for a moment scans on.
const LEASE: Duration = Duration::from_secs(120);
/// Time between two words.
const RENEWAL: Duration = Duration::from_secs(20);
/// What the record of a scan says whose command died.
const LAPSED: &str = "the command that scanned ended without finishing; scan again, what is stored already is not analysed anew";

/// A running scan; cheap to clone, so that many tasks can feed it.
#[derive(Clone)]
pub struct Scan {
    store: Store,
    ingest: Ingest,
    crawl: Crawl,
    dedupe: Dedupe,
    options: AnalyzeOptions,
    lease: Arc<Lease>,
}

/// Says again and again that the scan lives, until it is dropped or learns that somebody else ended the scan.
struct Lease {
    lost: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Lease {
    fn keep(store: Store, scan: Uuid) -> Self {
        let lost = Arc::new(AtomicBool::new(false));
        let told = lost.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEWAL).await;
                match renew(&store, scan).await {
                    Ok(true) => {}
                    Ok(false) => return told.store(true, Ordering::Relaxed),
                    Err(error) => tracing::warn!(%scan, %error, "the scan's lease could not be renewed"),
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
    let lives = store.renew_scan(tx.conn(), scan, LEASE).await?;
    tx.commit().await?;
    Ok(lives)
}

/// Ends the scans whose command has died: `failed`, rows still queued skipped as `not_scanned`. Answers how many.
pub(crate) async fn end_lapsed(store: &Store) -> Result<u64, StoreError> {
    let mut ended = 0;
    for scan in store.lapsed_scans().await? {
        let mut tx = store.begin().await?;
        if store.end_lapsed_scan(tx.conn(), scan, LAPSED).await? {
            store.skip_queued(tx.conn(), scan, "not_scanned", i64::MAX).await?;
            tx.commit().await?;
            tracing::warn!(%scan, "ended a scan whose command had died");
            ended += 1;
        }
    }
    Ok(ended)
}

impl Scan {
    /// Inserts the crawl record (kind `scan`); `seeds` are the paths as they were given. Faces are judged by the
    /// collection's quality profile, unless the options name one.
    ///
    /// # Errors
    /// [`CrawlError::Invalid`] when the collection does not exist.
    pub async fn begin(
        ingest: Ingest,
        collection: &str,
        seeds: &[String],
        dedupe: Dedupe,
        options: AnalyzeOptions,
    ) -> Result<Self, CrawlError> {
        let store = ingest.inner.store.clone();
        let collection = collection_id(&store, collection).await?;
        end_lapsed(&store).await?;
        let own = profile_of(&store.collection_by_id(collection).await?);
        let options = AnalyzeOptions { quality_profile: options.quality_profile.or(own), ..options };
        let mut tx = store.begin().await?;
        let stored = serde_json::json!({ "dedupe": dedupe });
        let crawl = store.insert_crawl(tx.conn(), collection, "scan", seeds, &stored).await?;
        store.renew_scan(tx.conn(), crawl.id, LEASE).await?;
        tx.commit().await?;
        let lease = Arc::new(Lease::keep(store.clone(), crawl.id));
        Ok(Self { store, ingest, crawl, dedupe, options, lease })
    }

    /// The crawl record as it began.
    pub fn crawl(&self) -> &Crawl {
        &self.crawl
    }

    /// Enters files into the ledger as `file:` URLs; answers a row for each that is new to this scan, in the order of the input.
    ///
    /// # Errors
    /// [`CrawlError::Invalid`] names a path that is not absolute; those of the store, `StoreError::Conflict` when somebody else ended the
    /// scan.
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

    /// Analyses and stores one file, and settles its row whatever comes of it: `processed`, `duplicate`, or `skipped` or `failed` with the
    /// error's code.
    ///
    /// # Errors
    /// Why it was not stored; `StoreError::Conflict` when somebody else ended the scan. After a failure of the database the row is still queued.
    pub async fn ingest(&self, row: Uuid, bytes: Bytes) -> Result<Ingested, IngestError> {
        self.check_alive()?;
        let incoming = Incoming {
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
            let (state, code) = analysis_failure(cause);
            self.settle(row, state, code, &cause.to_string()).await?;
        }
        Err(error)
    }

    /// Settles a row as `skipped`: a file that is not to be read.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn skip(&self, row: Uuid, reason: &'static str, detail: &str) -> Result<(), StoreError> {
        self.settle(row, "skipped", reason, detail).await
    }

    /// Settles a row as `failed`: a file that cannot be read.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn fail(&self, row: Uuid, reason: &'static str, detail: &str) -> Result<(), StoreError> {
        self.settle(row, "failed", reason, detail).await
    }

    /// Ends the scan: `completed`, or `cancelled` when it was `interrupted`. Rows still queued are skipped as `not_scanned`.
    ///
    /// # Errors
    /// `StoreError::Conflict` when somebody else ended it meanwhile.
    pub async fn finish(&self, interrupted: bool) -> Result<Crawl, StoreError> {
        let mut tx = self.store.begin().await?;
        let end = if interrupted { "cancelled" } else { "completed" };
        let crawl = self.store.set_crawl_state(tx.conn(), self.crawl.id, &["running"], end, None).await?;
        self.store.skip_queued(tx.conn(), self.crawl.id, "not_scanned", i64::MAX).await?;
        tx.commit().await?;
        Ok(crawl)
    }

    fn check_alive(&self) -> Result<(), StoreError> {
        if self.lease.lost.load(Ordering::Relaxed) {
            return Err(StoreError::Conflict("the scan was ended by another process".into()));
        }
        Ok(())
    }

    async fn settle(
        &self,
        row: Uuid,
        state: &'static str,
        reason: &'static str,
        detail: &str,
    ) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        self.store.settle_image_url(tx.conn(), row, state, Some(reason), Some(detail), None).await?;
        tx.commit().await?;
        count_outcome("image", state, Some(reason));
        Ok(())
    }
}
