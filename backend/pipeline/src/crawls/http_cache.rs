//! Converts stored visits to the validators of conditional requests, and responses to visits. The
//! store contains the visits.

use crawler::{Fetched, Validators};
use store::crawls::http_cache::CachedResponse;
use url::Url;

pub(crate) const NOT_MODIFIED: u16 = 304;

/// Returns the validators of a visit, or `None` if its URL cannot be parsed.
pub(crate) fn validators(visit: &CachedResponse) -> Option<Validators> {
    let url = Url::parse(&visit.final_url).ok()?;
    Some(Validators { url, etag: visit.etag.clone(), last_modified: visit.last_modified.clone() })
}

/// Returns the visit to store for a response, or `None` if the response has no validators.
pub(crate) fn visit(fetched: &Fetched) -> Option<CachedResponse> {
    let validators = fetched.validators()?;
    Some(CachedResponse {
        final_url: validators.url.into(),
        etag: validators.etag,
        last_modified: validators.last_modified,
        bytes: i64::try_from(fetched.body.len()).unwrap_or(i64::MAX),
    })
}

/// Increments `facecrawl_crawl_not_modified_total{ledger}` and
/// `facecrawl_crawl_bytes_saved_total{ledger}`.
pub(crate) fn saved(ledger: &'static str, bytes: i64) {
    metrics::counter!("facecrawl_crawl_not_modified_total", "ledger" => ledger).increment(1);
    metrics::counter!("facecrawl_crawl_bytes_saved_total", "ledger" => ledger)
        .increment(bytes.max(0).unsigned_abs());
}
