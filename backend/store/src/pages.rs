//! The page ledger and the image ledger of a crawl: every URL once, with what became of it.
use crate::{Store, StoreError};
use sqlx::PgConnection;
use uuid::Uuid;

/// A page URL to remember.
#[derive(Clone, Debug)]
pub struct NewPage {
    /// Normalised URL.
    pub url: String,
    /// Links from a seed.
    pub depth: i32,
}

/// An image URL found on a page (or given as a seed, with no page).
#[derive(Clone, Debug)]
pub struct NewImageUrl {
    /// Normalised URL or path.
    pub url: String,
    /// The page that shows it.
    pub page_url: Option<String>,
    /// Its alternative text.
    pub alt: Option<String>,
}

/// A ledger row that is new, and so has to be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Row id.
    pub id: Uuid,
    /// Its URL.
    pub url: String,
    /// Links from a seed (pages only).
    pub depth: i32,
}

/// What became of a page.
#[derive(Clone, Debug, Default)]
pub struct PageResult {
    /// `fetched`, `skipped`, `failed`.
    pub state: String,
    /// Reason code when not fetched.
    pub reason: Option<String>,
    /// A sentence for people.
    pub detail: Option<String>,
    /// HTTP status.
    pub status: Option<i32>,
    /// After redirects.
    pub final_url: Option<String>,
    /// `<title>`.
    pub title: Option<String>,
    /// Validators for the next visit.
    pub etag: Option<String>,
    /// The same.
    pub last_modified: Option<String>,
}

impl Store {
    /// Adds pages that the crawl has not seen, up to `max_pages` in all; returns the new ones. The rest are known or over the limit.
    pub async fn admit_pages(
        &self,
        _conn: &mut PgConnection,
        _crawl: Uuid,
        _max_pages: i64,
        _pages: &[NewPage],
    ) -> Result<Vec<Admitted>, StoreError> {
        todo!()
    }
    /// Adds image URLs that the crawl has not seen, up to `max_images` in all; returns the new ones. Sightings of known URLs are recorded as
    /// sources (with the image, when it is already known).
    pub async fn admit_images(
        &self,
        _conn: &mut PgConnection,
        _crawl: Uuid,
        _max_images: i64,
        _images: &[NewImageUrl],
    ) -> Result<Vec<Admitted>, StoreError> {
        todo!()
    }
    /// Closes a page's row (only while `queued`).
    pub async fn settle_page(
        &self,
        _conn: &mut PgConnection,
        _page: Uuid,
        _result: &PageResult,
    ) -> Result<(), StoreError> {
        todo!()
    }
    /// Closes an image URL's row (only while `queued`), links its sources to `image`, if there is one.
    pub async fn settle_image_url(
        &self,
        _conn: &mut PgConnection,
        _image_url: Uuid,
        _state: &str,
        _reason: Option<&str>,
        _detail: Option<&str>,
        _image: Option<Uuid>,
    ) -> Result<(), StoreError> {
        todo!()
    }
    /// Rows of either ledger that are still `queued` (progress, completion).
    pub async fn queued_in_crawl(&self, _conn: &mut PgConnection, _crawl: Uuid) -> Result<i64, StoreError> {
        todo!()
    }
    /// Closes all rows still `queued` with `reason` (cancel); returns how many.
    pub async fn skip_queued(
        &self,
        _conn: &mut PgConnection,
        _crawl: Uuid,
        _reason: &str,
    ) -> Result<i64, StoreError> {
        todo!()
    }
}
