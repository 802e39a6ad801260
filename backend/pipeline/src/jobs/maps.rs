//! How many sitemaps and feeds this process holds in memory. Reading them is in `page`.

use super::setback::Setback;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

/// Time after which a job comes back if another one fetches a large sitemap.
const PAUSE: Duration = Duration::from_millis(500);
/// Large sitemaps remembered at once.
const REMEMBERED: usize = 10_000;

/// Places for sitemaps.
///
/// A sitemap can be ten times as large as a page, and more when it is unpacked. One is read at a time, and one large
/// one is fetched at a time. The place for reading is never held during a fetch, so a slow host holds up nobody but
/// other large sitemaps.
pub(super) struct Maps {
    reading: Semaphore,
    fetching: Semaphore,
    /// Rows of the page ledger whose sitemap is longer than a page may be.
    large: Mutex<HashSet<Uuid>>,
}

impl Default for Maps {
    fn default() -> Self {
        Self { reading: Semaphore::new(1), fetching: Semaphore::new(1), large: Mutex::default() }
    }
}

impl Maps {
    /// Waits for the place for reading a sitemap that has been fetched.
    ///
    /// # Errors
    /// Fails only if the semaphore was closed, which nobody does.
    pub(super) async fn read(&self) -> Result<SemaphorePermit<'_>, Setback> {
        self.reading.acquire().await.map_err(|error| Setback::failed("no_place", error))
    }

    /// Takes the place for fetching a large sitemap; `None` if the page's sitemap is not known to be large.
    ///
    /// # Errors
    /// Returns [`Setback::Later`] if another job has the place.
    pub(super) fn fetch_large(&self, page: Uuid) -> Result<Option<SemaphorePermit<'_>>, Setback> {
        let is_large = self.large.lock().unwrap_or_else(PoisonError::into_inner).contains(&page);
        if !is_large {
            return Ok(None);
        }
        let place = self.fetching.try_acquire();
        place.map(Some).map_err(|_| Setback::Later(OffsetDateTime::now_utc() + PAUSE))
    }

    /// Remembers that the page's sitemap is large.
    pub(super) fn remember_large(&self, page: Uuid) {
        let mut large = self.large.lock().unwrap_or_else(PoisonError::into_inner);
        if large.len() >= REMEMBERED {
            // Their sitemaps are fetched once more.
            large.clear();
        }
        large.insert(page);
    }
}
