//! The kinds of jobs and what each carries.

use crawler::frontier::level;
use queue::NewJob;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use store::crawls::Crawl;
use store::ledger::Ledger;
use store::pages::Admitted;
use time::OffsetDateTime;
use url::Url;
use uuid::Uuid;

/// Kind of the job that fetches a page.
pub const SCAN_PAGE: &str = "scan_page";
/// Kind of the job that fetches and stores an image.
pub const SCAN_IMAGE: &str = "scan_image";

/// Kind of the job that begins the next run of a crawl that starts again.
pub const START_CRAWL: &str = "start_crawl";
/// Kind of the job that tells a crawl's webhook that it has ended.
pub const DELIVER_WEBHOOK: &str = "deliver_webhook";
/// Kind of the job that erases what is in a deleted collection.
pub const ERASE_COLLECTION: &str = "erase_collection";
/// Kind of the job that finds out which of a collection's faces are one person.
pub const CLUSTER_COLLECTION: &str = "cluster_collection";

/// A page to fetch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PageJob {
    pub(crate) page_id: Uuid,
    pub(crate) crawl_id: Uuid,
    pub(crate) url: Url,
    pub(crate) depth: i32,
    /// Where the seed that this page descends from was redirected to; counts as one more seed for the scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) home: Option<Url>,
    /// A sitemap that was named or guessed, and in how many others it is nested; the crawl does well without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sitemap: Option<u8>,
}

/// An image to fetch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ImageJob {
    pub(crate) image_url_id: Uuid,
    pub(crate) crawl_id: Uuid,
    pub(crate) url: Url,
    pub(crate) depth: i32,
}

impl PageJob {
    /// For a row of the page ledger.
    pub(crate) fn new(crawl: Uuid, row: Admitted, home: Option<Url>) -> Self {
        let url = Url::parse(&row.url).expect("the ledger holds URLs that were parsed");
        Self { page_id: row.id, crawl_id: crawl, url, depth: row.depth, home, sitemap: None }
    }

    /// The same as a sitemap.
    pub(crate) fn sitemap(self, nested: u8) -> Self {
        Self { sitemap: Some(nested), ..self }
    }

    /// As the queue takes it, for a crawl of `collection`; priorities are those of [`crawler::frontier`].
    pub(crate) fn job(&self, collection: Uuid, priority: i16) -> NewJob {
        NewJob {
            group_id: Some(self.crawl_id),
            tenant: collection,
            ..job(SCAN_PAGE, self, &self.url, self.page_id, priority)
        }
    }
}

impl ImageJob {
    /// For a row of the image ledger, found at `depth`.
    pub(crate) fn new(crawl: Uuid, row: Admitted, depth: i32) -> Self {
        let url = Url::parse(&row.url).expect("the ledger holds URLs that were parsed");
        Self { image_url_id: row.id, crawl_id: crawl, url, depth }
    }

    /// As the queue takes it, for a crawl of `collection`.
    pub(crate) fn job(&self, collection: Uuid) -> NewJob {
        NewJob {
            group_id: Some(self.crawl_id),
            tenant: collection,
            ..job(SCAN_IMAGE, self, &self.url, self.image_url_id, level(self.depth))
        }
    }
}

/// The next run of a crawl's series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NextRun {
    /// The run that promised it.
    pub(crate) crawl_id: Uuid,
}

impl NextRun {
    /// Never given up: a schedule outlives any trouble of the database.
    pub(crate) fn job(&self, at: OffsetDateTime) -> NewJob {
        NewJob {
            max_attempts: i16::MAX,
            scheduled_at: Some(at),
            unique_key: Some(self.crawl_id.to_string()),
            ..NewJob::new(START_CRAWL, plain(self))
        }
    }
}

/// Word to a crawl's webhook.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Notice {
    pub(crate) crawl_id: Uuid,
    /// `crawl.completed`, `crawl.failed`, `crawl.cancelled`.
    pub(crate) event: String,
}

/// Deliveries tried before a webhook is given up: with the waits between them some five hours.
const DELIVERIES: i16 = 12;

impl Notice {
    /// Of a crawl that has ended.
    pub(crate) fn new(crawl: &Crawl) -> Self {
        Self { crawl_id: crawl.id, event: format!("crawl.{}", crawl.state) }
    }

    pub(crate) fn job(&self) -> NewJob {
        NewJob { max_attempts: DELIVERIES, ..NewJob::new(DELIVER_WEBHOOK, plain(self)) }
    }
}

/// A deleted collection to erase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CollectionDeletion {
    pub(crate) collection_id: Uuid,
}

impl CollectionDeletion {
    /// Never given up: what was to be erased is erased, whatever trouble there is.
    pub(crate) fn job(&self) -> NewJob {
        NewJob {
            max_attempts: i16::MAX,
            unique_key: Some(self.collection_id.to_string()),
            ..NewJob::new(ERASE_COLLECTION, plain(self))
        }
    }
}

/// The job that erases a collection which was buried in the same transaction.
pub fn erase_collection(collection: Uuid) -> NewJob {
    CollectionDeletion { collection_id: collection }.job()
}

/// A run of the clustering.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClusterJob {
    pub(crate) clustering_id: Uuid,
}

/// Behind crawls and calls: a run takes long, and nobody waits for it.
const CLUSTERING_PRIORITY: i16 = 100;

impl ClusterJob {
    pub(crate) fn job(&self) -> NewJob {
        NewJob {
            priority: CLUSTERING_PRIORITY,
            unique_key: Some(self.clustering_id.to_string()),
            ..NewJob::new(CLUSTER_COLLECTION, plain(self))
        }
    }
}

fn plain(payload: &impl Serialize) -> Value {
    serde_json::to_value(payload).expect("payloads are plain data")
}

/// The row's id is the unique key: a row has at most one live job, and `Crawls::reconcile` finds rows that have none. The host is the lane: the
/// many pages of a slow one do not stand in the way of others.
fn job(kind: &str, payload: &impl Serialize, url: &Url, row: Uuid, priority: i16) -> NewJob {
    NewJob {
        priority,
        unique_key: Some(row.to_string()),
        partition_key: Some(crawler::urls::host_key(url)),
        ..NewJob::new(kind, plain(payload))
    }
}

/// The ledger row that a job is about; `None` for jobs that are about none.
pub(crate) fn row_of(kind: &str, payload: &Value) -> Option<(Ledger, Uuid)> {
    match kind {
        SCAN_PAGE => read::<PageJob>(payload).ok().map(|job| (Ledger::Pages, job.page_id)),
        SCAN_IMAGE => read::<ImageJob>(payload).ok().map(|job| (Ledger::ImageUrls, job.image_url_id)),
        _ => None,
    }
}

/// Reads a payload; the error is for the job's record.
pub(crate) fn read<T: DeserializeOwned>(payload: &Value) -> Result<T, String> {
    T::deserialize(payload).map_err(|error| format!("the payload is not understood: {error}"))
}
