//! Types that every other module of the pipeline may use: options, jobs and their payloads, ledger
//! rows and errors. This module does not fetch, analyse or store images.
mod error;
pub mod jobs;
mod options;

use domain::{Reason, Unprocessed};
pub(crate) use error::transient;
pub use error::{ChangeError, CrawlError};
pub(crate) use options::SeedCounts;
pub use options::{
    CannotRefine, CrawlOptions, Dedupe, Interval, Rotate, Sitemaps, VideoLimits, VideoRequest,
};
use queue::Claim;
use queue::{ClaimedJob, Queue, QueueError};
use std::fmt;
use std::time::{Duration, Instant};
pub use store::collections::DEFAULT_COLLECTION;
use store::crawls::ledger::Ledger;
use store::crawls::pages::{ImageUrlResult, PageResult};
use store::db::deletions::LedgerJobs;
use store::{Store, StoreError, Tx};
use uuid::Uuid;

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
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Clears the records of the jobs that processed these ledger rows and videos. Call it in the
/// transaction that erases their addresses.
///
/// # Errors
/// Fails if the queue fails.
pub async fn forget_jobs(queue: &Queue, tx: &mut Tx, jobs: &LedgerJobs) -> Result<(), QueueError> {
    let crawls: Vec<Uuid> = jobs.crawls.iter().copied().collect();
    // The unique key of such a job is the id of its row.
    let keys: Vec<String> = jobs.rows.iter().map(Uuid::to_string).collect();
    queue.groups().redact_keyed(tx.conn(), &crawls, &keys).await?;
    // The jobs of a video are its group.
    let videos: Vec<Uuid> = jobs.videos.iter().copied().collect();
    queue.groups().redact(tx.conn(), &videos).await?;
    Ok(())
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

/// Time that a run has before it yields its slot.
pub const TURN: Duration = Duration::from_secs(20);

pub(crate) struct Turn {
    queue: Queue,
    kind: String,
    tenant: Uuid,
    ends: Instant,
}

impl Turn {
    /// Begins the turn of a job.
    pub(crate) fn of(queue: &Queue, job: &ClaimedJob, length: Duration) -> Self {
        let (kind, tenant, ends) = (job.kind.clone(), job.tenant, Instant::now() + length);
        Self { queue: queue.clone(), kind, tenant, ends }
    }

    /// Returns whether the turn is over and a job of another tenant waits. If the database fails,
    /// the turn continues.
    pub(crate) async fn is_over(&self) -> bool {
        Instant::now() >= self.ends && self.queue.others_wait(&self.kind, self.tenant).await.unwrap_or(false)
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
        let of = |request, collection, config| {
            let threshold = MatchThreshold::resolve(request, collection, config, 0.4);
            (threshold.value, threshold.source)
        };
        assert_eq!(of(Some(0.1), Some(0.2), Some(0.3)), (0.1, ThresholdSource::Request));
        assert_eq!(of(None, Some(0.2), Some(0.3)), (0.2, ThresholdSource::Collection));
        assert_eq!(of(None, None, Some(0.3)), (0.3, ThresholdSource::Service));
        assert_eq!(of(None, None, None), (0.4, ThresholdSource::Model));
    }
}
