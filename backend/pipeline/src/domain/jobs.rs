//! Defines the payloads of jobs. The handlers are listed in `worker`.

use crawler::ReferrerPolicy;
use crawler::frontier::depth_priority;
use domain::{JobKind, JobSpec};
use queue::NewJob;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use store::crawls::Crawl;
use store::crawls::ledger::Ledger;
use store::crawls::pages::AdmittedUrl;
use time::OffsetDateTime;
use url::Url;
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PageJob {
    pub(crate) page_id: Uuid,
    pub(crate) crawl_id: Uuid,
    pub(crate) url: Url,
    pub(crate) depth: i32,
    /// The URL to which the seed of this page was redirected. It extends the scope like a seed.
    #[serde(default, rename = "home", skip_serializing_if = "Option::is_none")]
    pub(crate) redirected_seed: Option<Url>,
    /// The nesting depth, if this is a sitemap that was guessed or found in robots.txt or another
    /// sitemap. The crawl can succeed without this sitemap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sitemap: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ImageJob {
    pub(crate) image_url_id: Uuid,
    pub(crate) crawl_id: Uuid,
    pub(crate) url: Url,
    pub(crate) depth: i32,
    /// The page that shows the image. `None` for seeds and for entries of sitemaps and feeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shown_on: Option<ShownOn>,
}

/// A page that shows an image. The job does not contain the page's URL, which can be erased.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShownOn {
    pub(crate) page_id: Uuid,
    /// The part of the page's URL that the request for the image reveals.
    pub(crate) policy: ReferrerPolicy,
}

impl PageJob {
    pub(crate) fn new(crawl: Uuid, row: AdmittedUrl, redirected_seed: Option<Url>) -> Self {
        let url = Url::parse(&row.url).expect("the ledger contains valid URLs");
        Self { page_id: row.id, crawl_id: crawl, url, depth: row.depth, redirected_seed, sitemap: None }
    }

    /// Creates the job for a crawl of `collection`. See [`crawler::frontier`] for priorities.
    pub(crate) fn queue_job(&self, collection: Uuid, priority: i16) -> NewJob {
        NewJob {
            group_id: Some(self.crawl_id),
            tenant: collection,
            ..ledger_job(JobKind::ScanPage, self, &self.url, self.page_id, priority)
        }
    }
}

impl ImageJob {
    pub(crate) fn new(crawl: Uuid, row: AdmittedUrl, depth: i32) -> Self {
        let url = Url::parse(&row.url).expect("the ledger contains valid URLs");
        Self { image_url_id: row.id, crawl_id: crawl, url, depth, shown_on: None }
    }

    pub(crate) fn queue_job(&self, collection: Uuid) -> NewJob {
        NewJob {
            group_id: Some(self.crawl_id),
            tenant: collection,
            ..ledger_job(JobKind::ScanImage, self, &self.url, self.image_url_id, depth_priority(self.depth))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NextRun {
    /// The run that scheduled it.
    pub(crate) crawl_id: Uuid,
}

impl NextRun {
    /// Creates the job for a crawl of `collection`.
    pub(crate) fn queue_job(&self, collection: Uuid, at: OffsetDateTime) -> NewJob {
        NewJob {
            tenant: collection,
            scheduled_at: Some(at),
            unique_key: Some(self.crawl_id.to_string()),
            ..new_job(JobKind::StartCrawl, self)
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WebhookMessage {
    pub(crate) crawl_id: Uuid,
    /// `crawl.completed`, `crawl.failed` or `crawl.cancelled`.
    pub(crate) event: String,
}

impl WebhookMessage {
    pub(crate) fn new(crawl: &Crawl) -> Self {
        Self { crawl_id: crawl.id, event: format!("crawl.{}", crawl.state) }
    }

    /// Creates the job for a crawl of `collection`.
    pub(crate) fn queue_job(&self, collection: Uuid) -> NewJob {
        NewJob { tenant: collection, ..new_job(JobKind::DeliverWebhook, self) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CollectionDeletion {
    pub(crate) collection_id: Uuid,
}

/// Creates the job that erases a collection. Enqueue it in the transaction that marks the
/// collection as deleted.
pub fn erase_collection_job(collection: Uuid) -> NewJob {
    NewJob {
        tenant: collection,
        unique_key: Some(collection.to_string()),
        ..new_job(JobKind::EraseCollection, &CollectionDeletion { collection_id: collection })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClusterJob {
    pub(crate) clustering_id: Uuid,
}

impl ClusterJob {
    pub(crate) fn queue_job(&self, collection: Uuid) -> NewJob {
        NewJob {
            tenant: collection,
            unique_key: Some(self.clustering_id.to_string()),
            ..new_job(JobKind::ClusterCollection, self)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct VideoJob {
    pub(crate) video_id: Uuid,
}

impl VideoJob {
    /// Creates the job that reads a video whose file is stored.
    pub(crate) fn scan_job(&self, collection: Uuid) -> NewJob {
        self.queue_job(JobKind::ScanVideo, collection)
    }

    /// Creates the job that fetches the file of a video from its address.
    pub(crate) fn fetch_job(&self, collection: Uuid) -> NewJob {
        self.queue_job(JobKind::FetchVideo, collection)
    }

    fn queue_job(&self, kind: JobKind, collection: Uuid) -> NewJob {
        NewJob {
            unique_key: Some(self.video_id.to_string()),
            group_id: Some(self.video_id),
            tenant: collection,
            ..new_job(kind, self)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StreamJob {
    pub(crate) stream_id: Uuid,
}

impl StreamJob {
    /// Creates the job that watches the stream. A stream has at most one live job, so only one
    /// worker watches it.
    pub(crate) fn queue_job(&self, collection: Uuid) -> NewJob {
        NewJob {
            unique_key: Some(self.stream_id.to_string()),
            tenant: collection,
            ..new_job(JobKind::WatchStream, self)
        }
    }
}

/// Creates a job with the limits of its kind.
fn new_job(kind: JobKind, payload: &impl Serialize) -> NewJob {
    let payload = serde_json::to_value(payload).expect("payloads are plain data");
    let JobSpec { max_attempts, priority } = kind.spec();
    NewJob { max_attempts, priority, ..NewJob::new(kind, payload) }
}

/// Creates the job of a ledger row. The id of the row is the unique key, so a row has at most one
/// live job. `Crawls::reconcile` finds queued rows without a job. The host is the partition key, so
/// that the many pages of a slow host do not block other hosts.
fn ledger_job(kind: JobKind, payload: &impl Serialize, url: &Url, row: Uuid, priority: i16) -> NewJob {
    NewJob {
        priority,
        unique_key: Some(row.to_string()),
        partition_key: Some(crawler::urls::host_key(url)),
        ..new_job(kind, payload)
    }
}

/// Returns the ledger row of a job, or `None` if the job has none.
pub(crate) fn ledger_row(kind: &str, payload: &Value) -> Option<(Ledger, Uuid)> {
    match kind.parse().ok()? {
        JobKind::ScanPage => parse::<PageJob>(payload).ok().map(|job| (Ledger::Pages, job.page_id)),
        JobKind::ScanImage => {
            parse::<ImageJob>(payload).ok().map(|job| (Ledger::ImageUrls, job.image_url_id))
        }
        _ => None,
    }
}

/// Parses a payload. The error text is stored in the job's record.
pub(crate) fn parse<T: DeserializeOwned>(payload: &Value) -> Result<T, String> {
    T::deserialize(payload).map_err(|error| format!("the payload cannot be parsed: {error}"))
}
