//! The conditions common to `GET /faces` and `POST /faces/search`.
use crate::{ApiError, Code};
use serde_json::{Map, Value, json};
use store::face_scope::FaceFilter;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Returns the filter if its period is not empty.
///
/// # Errors
/// Fails with `code` if the period is empty.
pub(super) fn checked(filter: FaceFilter, code: Code) -> Result<FaceFilter, ApiError> {
    match (filter.since, filter.until) {
        (Some(since), Some(until)) if since >= until => Err(ApiError::new(
            code,
            format!("until is {}; it must be later than since, which is {}", text(until), text(since)),
        )
        .field("until")),
        _ => Ok(filter),
    }
}

/// Returns the filter as the audit log records it: without the site, because the audit log contains
/// no addresses.
pub(super) fn for_audit(filter: &FaceFilter) -> Map<String, Value> {
    let entries = [
        ("crawl_id", json!(filter.crawl_id)),
        ("since", json!(filter.since.map(text))),
        ("until", json!(filter.until.map(text))),
        ("min_quality", json!(filter.min_quality)),
    ];
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn text(time: OffsetDateTime) -> String {
    time.format(&Rfc3339).unwrap_or_else(|_| time.to_string())
}
