//! Types that every other module of the pipeline may use: options, jobs and their payloads, ledger
//! rows, thresholds, and errors that several modules share. Errors of a single job are in
//! `crawls::job_error`.
pub mod jobs;
mod options;

use domain::{Reason, Unprocessed, VideoState};
use hmac::{Hmac, KeyInit, Mac};
pub use options::{
    CannotRefine, CrawlOptions, Dedupe, Interval, Rotate, Sitemaps, VideoLimits, VideoRequest,
};
pub(crate) use options::{SeedCounts, check_webhook};
use queue::{Claim, ClaimedJob, Queue, QueueError};
use sha2::Sha256;
use std::fmt;
use std::time::{Duration, Instant};
use store::collections::Collection;
pub use store::collections::DEFAULT_COLLECTION;
use store::crawls::ledger::Ledger;
use store::crawls::pages::{ImageUrlResult, PageResult};
use store::db::deletions::LedgerJobs;
use store::videos::VideoEnd;
use store::{Blobs, Store, StoreError, Tx};
use uuid::Uuid;
use vision::Profile;

#[derive(Debug, thiserror::Error)]
pub enum CrawlError {
    /// A seed or an option is invalid. The reason states what is allowed.
    #[error("{field}: {reason}")]
    Invalid { field: &'static str, reason: String },
    /// The store failed, the crawl does not exist, or its state does not allow the change.
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl CrawlError {
    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { field, reason: reason.into() }
    }
}

/// The error of a transaction that changes rows and their jobs together.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl From<ChangeError> for CrawlError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Store(error) => error.into(),
            ChangeError::Queue(error) => error.into(),
        }
    }
}

/// Implements [`store::db::transient::Transient`], so that [`store::retried`] repeats a transaction
/// after a transient error of the database.
///
/// A transaction that calls the queue for a claim can safely be repeated. If the first attempt was
/// committed, the claim is stale in the second attempt.
macro_rules! transient {
    ($($error:ident),*) => {
        $(impl store::db::transient::Transient for $error {
            fn cause(&self) -> Option<store::db::transient::Cause> {
                match self {
                    Self::Store(error) => error.cause(),
                    Self::Queue(error) => error.database().and_then(store::db::transient::Cause::from_error),
                    #[allow(unreachable_patterns, reason = "some enums have further variants, which are never transient")]
                    _ => None,
                }
            }
        })*
    };
}

pub(crate) use transient;

transient!(CrawlError, ChangeError);

/// Returns the id of an existing collection. Creates the default collection if it does not exist.
///
/// # Errors
/// Fails with [`CrawlError::Invalid`] if no collection has this name.
pub(crate) async fn collection_id(store: &Store, name: &str) -> Result<Uuid, CrawlError> {
    if name == DEFAULT_COLLECTION {
        return Ok(store.collections().ensure(name).await?.id);
    }
    match store.collections().get(name).await {
        Ok(collection) => Ok(collection.id),
        Err(StoreError::NotFound { .. }) => Err(CrawlError::invalid(
            "collection",
            format!("there is no collection {name:?}; create it first"),
        )),
        Err(error) => Err(error.into()),
    }
}

/// A cosine similarity from -1 to 1, and the setting that it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatchThreshold {
    /// Minimum similarity of two faces of one person.
    pub value: f32,
    pub source: ThresholdSource,
}

/// The settings that can define a threshold, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdSource {
    Request,
    Collection,
    /// `MATCH_THRESHOLD`.
    Service,
    /// The embedding model, with the value in `models.toml`.
    Model,
}

impl MatchThreshold {
    /// Returns the effective threshold, which is the first one that is set.
    pub fn resolve(request: Option<f32>, collection: Option<f32>, config: Option<f32>, model: f32) -> Self {
        let (value, source) = match (request, collection, config) {
            (Some(value), ..) => (value, ThresholdSource::Request),
            (None, Some(value), _) => (value, ThresholdSource::Collection),
            (None, None, Some(value)) => (value, ThresholdSource::Service),
            (None, None, None) => (model, ThresholdSource::Model),
        };
        Self { value, source }
    }
}

/// Returns the default for the minimum mean similarity at which clusters of faces are merged.
/// `margin` is the margin of the embedder. The default is higher than the match threshold, because
/// a face is compared with the whole collection. An error that is rare in one comparison would
/// occur for many faces.
pub fn default_merge_threshold(match_threshold: f32, margin: f32) -> f32 {
    (match_threshold + margin).min(1.0)
}

/// Returns the quality profile of a collection. `None` means the profile of the service.
pub fn profile_of(collection: &Collection) -> Option<Profile> {
    let name = collection.quality_profile.as_deref()?;
    serde_json::from_value(name.into()).ok()
}

/// Returns the name of a profile in requests and in the database.
pub fn profile_name(profile: Profile) -> &'static str {
    match profile {
        Profile::Off => "off",
        Profile::Standard => "standard",
        Profile::Strict => "strict",
    }
}

/// A string that `Debug` formats as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret string. Call it only in the code that uses the secret.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the HMAC-SHA256 (RFC 2104) of the joined parts under the secret.
    pub(crate) fn hmac(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).expect("HMAC accepts a key of any length");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }
}

/// Returns the bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Deletes blobs that were written for rows that are not stored after all, unless another row
/// refers to them. If this fails, a sweep deletes them later.
pub(crate) async fn discard_blobs(store: &Store, blobs: &Blobs, keys: Vec<String>) {
    let recorded: Result<(), StoreError> = async {
        let mut tx = store.begin().await?;
        store.blobs().record_deletions(tx.conn(), keys.clone()).await?;
        tx.commit().await
    }
    .await;
    match recorded {
        Ok(()) => delete_blobs(store, blobs, &keys).await,
        Err(error) => tracing::warn!(%error, blobs = keys.len(), "failed to record unused blobs"),
    }
}

/// Deletes blobs that a committed transaction recorded for deletion, unless a row refers to them
/// again. If this fails, a sweep deletes them later.
pub(crate) async fn delete_blobs(store: &Store, blobs: &Blobs, keys: &[String]) {
    if let Err(error) = store.blobs().delete(blobs, keys).await {
        tracing::warn!(%error, blobs = keys.len(), "failed to delete unused blobs; a sweep deletes them");
    }
}

/// Increments `facecrawl_crawl_outcomes_total{ledger,state,reason}`. `state` is a state's code.
pub(crate) fn count_outcome(ledger: &'static str, state: &'static str, reason: Option<&Reason>) {
    let reason = reason.map_or("none".into(), Reason::code);
    metrics::counter!("facecrawl_crawl_outcomes_total", "ledger" => ledger, "state" => state, "reason" => reason)
        .increment(1);
}

/// Clears the records of the jobs that processed these ledger rows and videos. Call it in the
/// transaction that erases their addresses.
///
/// # Errors
/// Fails if the queue fails.
pub async fn forget_jobs(queue: &Queue, tx: &mut Tx, jobs: &LedgerJobs) -> Result<(), QueueError> {
    if !jobs.rows.is_empty() {
        let crawls: Vec<Uuid> = jobs.crawls.iter().copied().collect();
        // The unique key of such a job is the id of its row.
        let keys: Vec<String> = jobs.rows.iter().map(Uuid::to_string).collect();
        queue.groups().redact_keyed(tx.conn(), &crawls, &keys).await?;
    }
    if !jobs.videos.is_empty() {
        // The jobs of a video are its group.
        let videos: Vec<Uuid> = jobs.videos.iter().copied().collect();
        queue.groups().redact(tx.conn(), &videos).await?;
    }
    Ok(())
}

/// Returns the final state of a video. No further part of it is stored, and its file is deleted.
pub(crate) fn video_end(state: VideoState, reason: Reason, detail: Option<&str>) -> VideoEnd<'_> {
    VideoEnd { state, people: None, reason: Some(reason), detail, original: None, keep_file: false }
}

/// Erases the address of a video without parts. Call it in the transaction that ends the video.
pub(crate) async fn forget_emptied_video(
    store: &Store,
    queue: &Queue,
    tx: &mut Tx,
    id: Uuid,
) -> Result<(), ChangeError> {
    let jobs = store.erasures().erase_video_if_empty(tx.conn(), id).await?;
    Ok(forget_jobs(queue, tx, &jobs).await?)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    ledger: Ledger,
    id: Uuid,
}

/// The final state of a row without a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowEnd<'a> {
    pub(crate) state: Unprocessed,
    pub(crate) reason: &'a Reason,
    /// The human-readable reason.
    pub(crate) detail: &'a str,
    /// The HTTP status, if the server responded.
    pub(crate) status: Option<u16>,
}

impl Row {
    pub(crate) fn new(ledger: Ledger, id: Uuid) -> Self {
        Self { ledger, id }
    }

    /// Settles the row without a result. Has no effect if the row is not queued.
    pub(crate) async fn settle(self, store: &Store, tx: &mut Tx, end: RowEnd<'_>) -> Result<(), StoreError> {
        let RowEnd { state, reason, detail, status } = end;
        match self.ledger {
            Ledger::Pages => {
                let result = PageResult {
                    reason: Some(reason.clone()),
                    detail: Some(detail.into()),
                    status: status.map(i32::from),
                    ..PageResult::new(state.into())
                };
                store.ledger().settle_page(tx.conn(), self.id, &result).await
            }
            Ledger::ImageUrls => {
                let result = ImageUrlResult {
                    state: state.into(),
                    reason: Some(reason.clone()),
                    detail: Some(detail),
                    image: None,
                    final_url: None,
                };
                store.ledger().settle_image_url(tx.conn(), self.id, result).await
            }
        }
    }

    /// Returns `page` or `image`, for metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self.ledger {
            Ledger::Pages => "page",
            Ledger::ImageUrls => "image",
        }
    }
}

/// Time after which a run yields its slot if another tenant waits.
pub const TIME_SLICE: Duration = Duration::from_secs(20);

pub(crate) struct TimeSlice {
    queue: Queue,
    kind: String,
    tenant: Uuid,
    ends_at: Instant,
}

impl TimeSlice {
    /// Begins the time slice of a job.
    pub(crate) fn new(queue: &Queue, job: &ClaimedJob, length: Duration) -> Self {
        let (kind, tenant, ends_at) = (job.kind.clone(), job.tenant, Instant::now() + length);
        Self { queue: queue.clone(), kind, tenant, ends_at }
    }

    /// Returns `true` if the time slice is over and another tenant waits. Returns `false` if the
    /// query fails.
    pub(crate) async fn is_over(&self) -> bool {
        Instant::now() >= self.ends_at
            && self.queue.has_other_waiting_tenants(&self.kind, self.tenant).await.unwrap_or(false)
    }
}

/// Checks that the crawl is live. Call it in a transaction that settles a row, right after the call
/// to the queue and before any other statement.
///
/// # Errors
/// Fails with [`QueueError::Stale`] if the crawl has ended or was deleted. A cancellation runs
/// before the call to the queue or waits for it, so nothing is stored after a cancellation.
pub(crate) async fn check_live(
    store: &Store,
    tx: &mut Tx,
    crawl: Uuid,
    claim: Claim,
) -> Result<(), ChangeError> {
    match store.crawls().state(tx.conn(), crawl).await? {
        Some(state) if state.is_live() => Ok(()),
        _ => Err(QueueError::Stale(claim.id).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn match_threshold_uses_most_specific_setting() {
        let resolve = |request, collection, config| {
            let threshold = MatchThreshold::resolve(request, collection, config, 0.4);
            (threshold.value, threshold.source)
        };
        assert_eq!(resolve(Some(0.1), Some(0.2), Some(0.3)), (0.1, ThresholdSource::Request));
        assert_eq!(resolve(None, Some(0.2), Some(0.3)), (0.2, ThresholdSource::Collection));
        assert_eq!(resolve(None, None, Some(0.3)), (0.3, ThresholdSource::Service));
        assert_eq!(resolve(None, None, None), (0.4, ThresholdSource::Model));
    }
}
