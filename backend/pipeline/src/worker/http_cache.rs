//! Visits as they are stored, and as the fetcher asks about them.

use crawler::{Fetched, Validators};
use store::http_cache::Visit;
use url::Url;

/// The status of an answer that says: it is still what you have.
pub(super) const NOT_MODIFIED: u16 = 304;

/// What to ask with; `None` for an address that cannot be read any more.
pub(super) fn validators(visit: &Visit) -> Option<Validators> {
    let url = Url::parse(&visit.final_url).ok()?;
    Some(Validators { url, etag: visit.etag.clone(), last_modified: visit.last_modified.clone() })
}

/// What to remember of an answer; `None` when it says nothing of itself.
pub(super) fn visit(fetched: &Fetched) -> Option<Visit> {
    let validators = fetched.validators()?;
    Some(Visit {
        final_url: validators.url.into(),
        etag: validators.etag,
        last_modified: validators.last_modified,
        bytes: i64::try_from(fetched.body.len()).unwrap_or(i64::MAX),
    })
}

/// Feeds `facecrawl_crawl_not_modified_total{ledger}` and `facecrawl_crawl_bytes_saved_total{ledger}`.
pub(super) fn saved(ledger: &'static str, bytes: i64) {
    metrics::counter!("facecrawl_crawl_not_modified_total", "ledger" => ledger).increment(1);
    metrics::counter!("facecrawl_crawl_bytes_saved_total", "ledger" => ledger)
        .increment(bytes.max(0).unsigned_abs());
}
