//! Crawls and their bookkeeping.
use crate::{Store, StoreError};
use serde_json::Value;
use sqlx::PgConnection;
use std::collections::BTreeMap;
use time::OffsetDateTime;
use uuid::Uuid;

/// A crawl of the web, or a scan of local files.
#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Crawl {
    /// Its id; also the queue's group.
    pub id: Uuid,
    /// Whose it is.
    pub collection_id: Uuid,
    /// The collection's name.
    pub collection: String,
    /// `web` or `scan`.
    pub kind: String,
    /// `running`, `paused`, `completed`, `cancelled`, `failed`.
    pub state: String,
    /// Seed URLs or paths.
    pub seeds: Vec<String>,
    /// The options it was created with (`pipeline::crawl::CrawlOptions`).
    pub options: Value,
    /// Why it failed.
    pub error: Option<String>,
    /// When it was created.
    pub created_at: OffsetDateTime,
    /// When it reached a terminal state.
    pub finished_at: Option<OffsetDateTime>,
}

/// How a crawl stands. Counted from the ledgers, so it always adds up.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CrawlProgress {
    /// Pages by state: `queued`, `fetched`, `skipped`, `failed`.
    pub pages: BTreeMap<String, i64>,
    /// Image URLs by state: `queued`, `processed`, `duplicate`, `skipped`, `failed`, `suppressed`.
    pub images: BTreeMap<String, i64>,
    /// Faces found in this crawl's images.
    pub faces: i64,
    /// Pages and images that were not processed, by reason code.
    pub reasons: BTreeMap<String, i64>,
}

impl Store {
    /// Inserts a running crawl.
    pub async fn insert_crawl(
        &self,
        _conn: &mut PgConnection,
        _collection_id: Uuid,
        _kind: &str,
        _seeds: &[String],
        _options: &Value,
    ) -> Result<Crawl, StoreError> {
        todo!()
    }
    /// By id.
    pub async fn crawl(&self, _id: Uuid) -> Result<Crawl, StoreError> {
        todo!()
    }
    /// Newest first; `collection` and `state` filter.
    pub async fn crawls(
        &self,
        _collection: Option<&str>,
        _state: Option<&str>,
        _before: Option<Uuid>,
        _limit: i64,
    ) -> Result<Vec<Crawl>, StoreError> {
        todo!()
    }
    /// Moves a crawl from one of `from` to `to`; `Conflict` names the state it is in when that is none of `from`.
    /// Terminal states set `finished_at`.
    pub async fn set_crawl_state(
        &self,
        _conn: &mut PgConnection,
        _id: Uuid,
        _from: &[&str],
        _to: &str,
        _error: Option<&str>,
    ) -> Result<Crawl, StoreError> {
        todo!()
    }
    /// Counts.
    pub async fn crawl_progress(&self, _id: Uuid) -> Result<CrawlProgress, StoreError> {
        todo!()
    }
    /// Removes the crawl with its pages and ledger; its images stay (with their sources), unless `with_images`:
    /// then those that no other crawl found go too. Returns blob keys to delete after the commit.
    pub async fn delete_crawl(
        &self,
        _conn: &mut PgConnection,
        _id: Uuid,
        _with_images: bool,
    ) -> Result<Vec<String>, StoreError> {
        todo!()
    }
}
