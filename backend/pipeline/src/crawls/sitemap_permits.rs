//! Limits the number of sitemaps and feeds in memory. The module `page` reads them.

use super::job_error::JobError;
use domain::Reason;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

/// Time after which a job is retried if another job is fetching a large sitemap.
const RETRY_WAIT: Duration = Duration::from_millis(500);
/// Maximum number of large sitemaps that a process remembers.
const MAX_LARGE: usize = 10_000;

/// Permits for fetching and reading sitemaps.
///
/// A sitemap can be ten times as large as a page, and even larger after decompression. A process
/// reads one sitemap at a time and fetches one large sitemap at a time. No job holds the permit for
/// reading during a fetch. A slow host therefore delays only other large sitemaps.
pub(crate) struct SitemapPermits {
    reading: Semaphore,
    fetching: Semaphore,
    /// Ids of rows in the page ledger whose sitemap exceeds the size limit of a page.
    large: Mutex<HashSet<Uuid>>,
}

impl Default for SitemapPermits {
    fn default() -> Self {
        Self { reading: Semaphore::new(1), fetching: Semaphore::new(1), large: Mutex::default() }
    }
}

impl SitemapPermits {
    /// Waits for the permit to read a fetched sitemap. Does not fail: no code closes the semaphore.
    pub(crate) async fn read(&self) -> Result<SemaphorePermit<'_>, JobError> {
        self.reading.acquire().await.map_err(|error| JobError::failed(Reason::NoPlace, error))
    }

    /// Acquires the permit to fetch a large sitemap. Returns `None` if the page's sitemap is not
    /// known to be large.
    ///
    /// # Errors
    /// Fails with [`JobError::Later`] if another job holds the permit.
    pub(crate) fn fetch_large(&self, page: Uuid) -> Result<Option<SemaphorePermit<'_>>, JobError> {
        let is_large = self.large.lock().unwrap_or_else(PoisonError::into_inner).contains(&page);
        if !is_large {
            return Ok(None);
        }
        let permit = self.fetching.try_acquire();
        permit.map(Some).map_err(|_| JobError::Later(RETRY_WAIT))
    }

    pub(crate) fn remember_large(&self, page: Uuid) {
        let mut large = self.large.lock().unwrap_or_else(PoisonError::into_inner);
        if large.len() >= MAX_LARGE {
            // Jobs fetch the removed sitemaps as small ones, and detect their size again.
            large.clear();
        }
        large.insert(page);
    }
}
