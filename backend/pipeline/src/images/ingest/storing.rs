//! Stores new images together: analysed images wait in a bounded queue, and one transaction stores
//! up to 64 of them. QUEUE.md describes the transaction and why it keeps every guarantee.
//!
//! This stage compares no faces. It returns an image to its caller if the image may be a duplicate
//! or suppressed, if its claim is lost, if its crawl has ended, or if the transaction fails. The
//! caller then stores it alone (`Ingest::record`).
use super::{FetchedFrom, stored_result};
use crate::domain::count_outcome;
use crate::images::face_store::{FaceStore, IngestError, StoredBlobs};
use domain::{ImageState, Reason};
use metrics::{Unit, describe_gauge, describe_histogram};
use queue::{Claim, outside_slot};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::StoreError;
use store::crawls::http_cache::ImageVisit;
use store::crawls::pages::ImageUrlResult;
use store::faces::{FaceRow, NewFace};
use store::images::NewImage;
use store::images::storing::ImageToStore;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;
use vision::PerceptualHashes;

/// Maximum number of images in one transaction.
const MAX_BATCH: usize = 64;
/// Time for which the first image of a batch waits for others. It waits only while other images are
/// being ingested.
const MAX_WAIT: Duration = Duration::from_millis(50);

/// Maximum time that a statement of a batch waits for a lock. An erasure in one collection, or a
/// process that stopped inside a transaction, must not delay the images of other collections. It is
/// shorter than Postgres waits before it looks for deadlocks, so that the batch is repeated and not
/// the other transaction.
const MAX_LOCK_WAIT: Duration = Duration::from_millis(300);
/// Maximum number of images that wait outside the slots of their jobs.
const MAX_OUTSIDE_SLOTS: usize = 4;
/// Number of stored images after which the database's statistics are updated for the first time.
/// Later updates follow each time the number has doubled.
const FIRST_REFRESH: usize = 128;

/// An analysed image with everything that its rows contain.
pub(super) struct PreparedImage {
    pub(super) claim: Option<Claim>,
    pub(super) collection: Uuid,
    pub(super) crawl: Uuid,
    pub(super) image_url: Uuid,
    pub(super) moved_to: Option<String>,
    pub(super) fetched: Option<FetchedFrom>,
    pub(super) reason: Option<Reason>,
    /// Whether near-duplicates matter; see [`crate::Dedupe`].
    pub(super) compares_near: bool,
    pub(super) hashes: PerceptualHashes,
    pub(super) image: NewImage,
    pub(super) faces: Vec<NewFace>,
    pub(super) blobs: Arc<StoredBlobs>,
}

struct Waiting {
    image: PreparedImage,
    /// Receives whether the image was stored.
    stored: oneshot::Sender<bool>,
}

/// The queue of the stage. Cloning it is cheap. The task of the stage ends with the last clone.
#[derive(Clone)]
pub(super) struct StoringQueue {
    sender: mpsc::Sender<Waiting>,
    analyses: Arc<Analyses>,
    /// Permits to wait outside the slot of a job.
    outside_slots: Arc<Semaphore>,
}

/// The images that are being ingested. Most of them arrive at the stage, or wait in it.
#[derive(Default)]
struct Analyses {
    count: AtomicUsize,
    ended: Notify,
}

/// An image that may still arrive at the stage. When it is dropped, the stage stops waiting for it.
pub(super) struct CountedAnalysis(Arc<Analyses>);

impl Drop for CountedAnalysis {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.ended.notify_one();
    }
}

/// Decrements a gauge when it is dropped.
struct Decrement(metrics::Gauge);

impl Drop for Decrement {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

impl StoringQueue {
    /// Starts the task of the stage.
    pub(super) fn start(faces: FaceStore) -> Self {
        describe_histogram!(
            "facecrawl_storing_batch_size",
            Unit::Count,
            "Number of images or pages that were taken together, to be stored in one transaction."
        );
        describe_gauge!(
            "facecrawl_storing_queue_depth",
            Unit::Count,
            "Number of analysed images that wait to be stored."
        );
        let (sender, receiver) = mpsc::channel(MAX_BATCH);
        let analyses = Arc::<Analyses>::default();
        tokio::spawn(run(faces, receiver, analyses.clone()));
        Self { sender, analyses, outside_slots: Arc::new(Semaphore::new(MAX_OUTSIDE_SLOTS)) }
    }

    /// Counts an image that is being analysed, until the result is dropped.
    pub(super) fn count_analysis(&self) -> CountedAnalysis {
        self.analyses.count.fetch_add(1, Ordering::SeqCst);
        CountedAnalysis(self.analyses.clone())
    }

    /// Stores an image together with others. Returns `false` if it was not stored and must be
    /// stored alone, and `None` if this is unknown because the connection broke during the commit.
    /// If the caller is dropped during the transaction, the image may be stored nevertheless.
    pub(super) async fn store(&self, image: PreparedImage) -> Option<bool> {
        let (stored, answer) = oneshot::channel();
        let depth = metrics::gauge!("facecrawl_storing_queue_depth");
        depth.increment(1);
        let _waits = Decrement(depth);
        if self.sender.send(Waiting { image, stored }).await.is_err() {
            return Some(false);
        }
        // Other jobs can use the slots meanwhile. The number is small, because the files and blobs
        // of waiting images stay in memory.
        match self.outside_slots.try_acquire() {
            Ok(_permit) => outside_slot(answer).await.ok(),
            Err(_) => answer.await.ok(),
        }
    }
}

async fn run(faces: FaceStore, mut receiver: mpsc::Receiver<Waiting>, analyses: Arc<Analyses>) {
    let (mut stored_count, mut next_refresh) = (0, FIRST_REFRESH);
    while let Some(first) = receiver.recv().await {
        let mut batch = collect(first, &mut receiver, &analyses).await;
        // Callers that were dropped must not store anything any more.
        batch.retain(|waiting| !waiting.stored.is_closed());
        if batch.is_empty() {
            continue;
        }
        metrics::histogram!("facecrawl_storing_batch_size", "ledger" => "image").record(batch.len() as f64);
        let (images, answers): (Vec<PreparedImage>, Vec<_>) =
            batch.into_iter().map(|waiting| (waiting.image, waiting.stored)).unzip();
        let stored = match store_batch(&faces, &images).await {
            Ok(stored) => stored,
            Err(error) => {
                tracing::debug!(%error, images = images.len(), "failed to store an image batch; its images are stored alone");
                if matches!(error, IngestError::Store(StoreError::CommitUnknown(_))) {
                    // The callers are told that the outcome is unknown.
                    continue;
                }
                HashSet::new()
            }
        };
        stored_count += stored.len();
        if stored_count >= next_refresh {
            next_refresh = 2 * stored_count;
            tokio::spawn(refresh_statistics(faces.clone()));
        }
        for (image, answer) in images.iter().zip(answers) {
            // A caller that was dropped needs no answer.
            let _ = answer.send(stored.contains(&image.image.id));
        }
    }
}

/// Updates the planner's statistics of a database that grows quickly.
async fn refresh_statistics(faces: FaceStore) {
    if let Err(error) = faces.store.schema().refresh_statistics().await {
        tracing::debug!(%error, "failed to refresh the planner's statistics; autovacuum refreshes them later");
    }
}

/// Collects the images that wait, until all images that are analysed have arrived, the batch is
/// full, or `MAX_WAIT` is over.
async fn collect(
    first: Waiting,
    receiver: &mut mpsc::Receiver<Waiting>,
    analyses: &Analyses,
) -> Vec<Waiting> {
    let (mut batch, deadline) = (vec![first], Instant::now() + MAX_WAIT);
    loop {
        let ended = analyses.ended.notified();
        while batch.len() < MAX_BATCH
            && let Ok(waiting) = receiver.try_recv()
        {
            batch.push(waiting);
        }
        if batch.len() >= MAX_BATCH.min(analyses.count.load(Ordering::SeqCst)) {
            return batch;
        }
        tokio::select! {
            waiting = receiver.recv() => match waiting {
                Some(waiting) => batch.push(waiting),
                None => return batch,
            },
            () = ended => {}
            () = sleep_until(deadline) => return batch,
        }
    }
}

/// Stores those of the images that need no further checks, in one transaction. Returns the ids of
/// the stored images.
async fn store_batch(faces: &FaceStore, images: &[PreparedImage]) -> Result<HashSet<Uuid>, IngestError> {
    let FaceStore { store, queue, .. } = faces;
    let mut tx = store.begin_batch(MAX_LOCK_WAIT).await?;
    let claims: Vec<Claim> = images.iter().filter_map(|image| image.claim).collect();
    let held = match claims.is_empty() {
        true => HashSet::new(),
        false => queue.lock_claims(tx.conn(), &claims).await?,
    };
    let mut images: Vec<&PreparedImage> = images.iter().collect();
    images.retain(|image| image.claim.is_none_or(|claim| held.contains(&claim)));
    images = without_repeats(images);
    let collections: Vec<Uuid> = images.iter().map(|image| image.collection).collect();
    store.suppressions().lock_shared(tx.conn(), &collections).await?;
    let near = images.iter().filter(|image| image.compares_near);
    let keys: Vec<i64> =
        near.flat_map(|image| super::dedupe::near_lock_keys(image.collection, &image.hashes)).collect();
    store.images().lock_near_keys(tx.conn(), &keys).await?;
    let rows: Vec<ImageToStore<'_>> = images.iter().map(|image| image.to_store()).collect();
    let need_no_checks = store.images().need_no_checks(tx.conn(), &rows).await?;
    let (mut images, rows): (Vec<&PreparedImage>, Vec<ImageToStore<'_>>) = images
        .into_iter()
        .zip(rows)
        .zip(need_no_checks)
        .filter(|(_, needs_none)| *needs_none)
        .map(|(pair, _)| pair)
        .unzip();
    if images.is_empty() {
        return Ok(HashSet::new());
    }
    let inserted = store.images().insert_many(tx.conn(), &rows).await?;
    images.retain(|image| inserted.contains(&image.image.id));
    let face_rows: Vec<FaceRow<'_>> = images.iter().flat_map(|image| image.face_rows()).collect();
    store.faces().insert_for_new_images(tx.conn(), &face_rows).await?;
    let blobs: Vec<&StoredBlobs> = images.iter().map(|image| &*image.blobs).collect();
    faces.keep_blobs(&mut tx, &blobs).await?;
    let settled: Vec<(Uuid, ImageUrlResult<'_>)> =
        images.iter().map(|image| (image.image_url, image.result())).collect();
    if store.ledger().settle_image_urls(tx.conn(), &settled).await? < images.len() {
        return Err(StoreError::Conflict("the row of an image is no longer queued".into()).into());
    }
    let visits: Vec<ImageVisit<'_>> = images.iter().filter_map(|image| image.visit()).collect();
    store.hosts().cache_images(tx.conn(), &visits).await?;
    let claims: Vec<Claim> = images.iter().filter_map(|image| image.claim).collect();
    if !claims.is_empty() {
        queue.complete_locked(tx.conn(), &claims).await?;
    }
    tx.commit().await?;
    for image in &images {
        count_outcome("image", ImageState::Processed.as_str(), image.reason.as_ref());
    }
    metrics::counter!("facecrawl_faces_stored_total").increment(face_rows.len() as u64);
    Ok(inserted)
}

/// Keeps the images that do not resemble an earlier image of the batch. Images resemble each other
/// if they have the same collection and the same bytes, the same address, or near hashes.
fn without_repeats(images: Vec<&PreparedImage>) -> Vec<&PreparedImage> {
    let mut first: Vec<&PreparedImage> = Vec::with_capacity(images.len());
    for image in images {
        let follows = |earlier: &&PreparedImage| {
            let url = |image: &PreparedImage| image.fetched.as_ref().map(|fetched| fetched.url.clone());
            earlier.collection == image.collection
                && (earlier.image.sha256 == image.image.sha256
                    || (image.fetched.is_some() && url(earlier) == url(image))
                    || (image.compares_near && earlier.hashes.is_near(&image.hashes)))
        };
        if !first.iter().any(follows) {
            first.push(image);
        }
    }
    first
}

impl PreparedImage {
    fn to_store(&self) -> ImageToStore<'_> {
        ImageToStore {
            collection: self.collection,
            image: &self.image,
            face_count: self.faces.len(),
            crawl: self.crawl,
            image_url: self.image_url,
            compares_near: self.compares_near,
        }
    }

    fn face_rows(&self) -> impl Iterator<Item = FaceRow<'_>> {
        self.faces.iter().map(|face| (self.collection, self.image.id, face))
    }

    fn result(&self) -> ImageUrlResult<'_> {
        ImageUrlResult {
            final_url: self.moved_to.as_deref(),
            ..stored_result(ImageState::Processed, self.reason.clone(), self.image.id)
        }
    }

    fn visit(&self) -> Option<ImageVisit<'_>> {
        let FetchedFrom { url, visit } = self.fetched.as_ref()?;
        Some(ImageVisit { collection: self.collection, url, image: self.image.id, response: visit.as_ref() })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn prepared(number: u8, url: &str) -> PreparedImage {
        // Even numbers have equal hashes. Those of odd numbers are not near them.
        let hash = if number.is_multiple_of(2) { 0 } else { u64::MAX << number };
        let hashes = PerceptualHashes { p: hash, d: hash, a: hash };
        let image = NewImage {
            id: Uuid::now_v7(),
            sha256: [number; 32],
            phash: hashes.p.cast_signed(),
            dhash: hashes.d.cast_signed(),
            ahash: hashes.a.cast_signed(),
            width: 1,
            height: 1,
            format: "jpeg".into(),
            bytes: 1,
            rotation: 0,
            parts: None,
        };
        PreparedImage {
            claim: None,
            collection: Uuid::nil(),
            crawl: Uuid::nil(),
            image_url: Uuid::now_v7(),
            moved_to: None,
            fetched: Some(FetchedFrom { url: url.into(), visit: None }),
            reason: None,
            compares_near: true,
            hashes,
            image,
            faces: Vec::new(),
            blobs: Arc::default(),
        }
    }

    #[test]
    fn batch_omits_repeated_bytes_addresses_and_near_hashes() {
        let first = prepared(0, "a");
        let elsewhere = PreparedImage { collection: Uuid::max(), ..prepared(0, "a") };
        let exact_only = PreparedImage { compares_near: false, ..prepared(2, "d") };
        let images = [
            (&first, true),
            (&prepared(0, "b"), false),
            (&prepared(1, "a"), false),
            (&prepared(2, "c"), false),
            (&exact_only, true),
            (&prepared(1, "e"), true),
            (&elsewhere, true),
        ];
        let kept: Vec<Uuid> = without_repeats(images.iter().map(|(image, _)| *image).collect())
            .iter()
            .map(|image| image.image.id)
            .collect();
        let expected = images.iter().filter(|(_, is_kept)| *is_kept).map(|(image, _)| image.image.id);
        assert_eq!(kept, expected.collect::<Vec<_>>());
    }

    fn waiting() -> Waiting {
        Waiting { image: prepared(0, "a"), stored: oneshot::channel().0 }
    }

    #[tokio::test(start_paused = true)]
    async fn batch_waits_for_images_under_analysis() {
        let (sender, mut receiver) = mpsc::channel(MAX_BATCH);
        let analyses = Arc::<Analyses>::default();
        let queue =
            StoringQueue { sender, analyses: analyses.clone(), outside_slots: Arc::new(Semaphore::new(0)) };
        let [_first, second, third] = [(); 3].map(|()| queue.count_analysis());
        let began = Instant::now();
        let later = async {
            sleep_until(began + MAX_WAIT / 4).await;
            queue.sender.send(waiting()).await.unwrap();
            // The third image turns out to be a duplicate.
            sleep_until(began + MAX_WAIT / 2).await;
            drop(third);
        };
        let (batch, ()) = tokio::join!(collect(waiting(), &mut receiver, &analyses), later);
        assert_eq!((batch.len(), began.elapsed()), (2, MAX_WAIT / 2));

        // The second image takes too long.
        let batch = collect(waiting(), &mut receiver, &analyses).await;
        assert_eq!((batch.len(), began.elapsed()), (1, MAX_WAIT / 2 + MAX_WAIT));

        // No other image is analysed.
        drop(second);
        let batch = collect(waiting(), &mut receiver, &analyses).await;
        assert_eq!((batch.len(), began.elapsed()), (1, MAX_WAIT / 2 + MAX_WAIT));
    }

    #[tokio::test(start_paused = true)]
    async fn batch_size_is_limited() {
        let (sender, mut receiver) = mpsc::channel(2 * MAX_BATCH);
        let analyses = Arc::<Analyses>::default();
        let queue =
            StoringQueue { sender, analyses: analyses.clone(), outside_slots: Arc::new(Semaphore::new(0)) };
        let _counted: Vec<CountedAnalysis> = (0..2 * MAX_BATCH).map(|_| queue.count_analysis()).collect();
        for _ in 0..MAX_BATCH + 1 {
            queue.sender.send(waiting()).await.unwrap();
        }
        assert_eq!(collect(waiting(), &mut receiver, &analyses).await.len(), MAX_BATCH);
        assert_eq!(receiver.len(), 2);
    }
}
