//! What a job carries.

use super::{SCAN_IMAGE, SCAN_PAGE};
use queue::NewJob;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use store::pages::Admitted;
use url::Url;
use uuid::Uuid;

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

    /// As the queue takes it: shallow pages first.
    pub(crate) fn job(&self) -> NewJob {
        job(SCAN_PAGE, self, self.page_id, self.crawl_id, self.depth)
    }
}

impl ImageJob {
    /// For a row of the image ledger, found at `depth`.
    pub(crate) fn new(crawl: Uuid, row: Admitted, depth: i32) -> Self {
        let url = Url::parse(&row.url).expect("the ledger holds URLs that were parsed");
        Self { image_url_id: row.id, crawl_id: crawl, url, depth }
    }

    /// As the queue takes it.
    pub(crate) fn job(&self) -> NewJob {
        job(SCAN_IMAGE, self, self.image_url_id, self.crawl_id, self.depth)
    }
}

/// The row's id is the unique key: a row has at most one live job, and `Crawls::reconcile` finds rows that have none.
fn job(kind: &str, payload: &impl Serialize, row: Uuid, crawl: Uuid, depth: i32) -> NewJob {
    NewJob {
        priority: i16::try_from(depth).unwrap_or(i16::MAX),
        unique_key: Some(row.to_string()),
        group_id: Some(crawl),
        ..NewJob::new(kind, serde_json::to_value(payload).expect("payloads are plain data"))
    }
}

/// Reads a payload; the error is for the job's record.
pub(crate) fn read<T: DeserializeOwned>(payload: &Value) -> Result<T, String> {
    T::deserialize(payload).map_err(|error| format!("the payload is not understood: {error}"))
}
