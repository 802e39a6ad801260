//! The conditions common to `GET /faces` and `POST /faces/search`.
use crate::{ApiError, Code};
use store::faces::scope::FaceFilter;
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
            format!("until is {}; it must be later than since, which is {}", rfc3339(until), rfc3339(since)),
        )
        .field("until")),
        _ => Ok(filter),
    }
}

pub(super) fn rfc3339(time: OffsetDateTime) -> String {
    time.format(&Rfc3339).unwrap_or_else(|_| time.to_string())
}
