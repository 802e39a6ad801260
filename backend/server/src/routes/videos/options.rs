//! Reads the options that all analyses of videos have.
use crate::extract::values::Bounded;
use crate::extract::{media_type, unsupported};
use crate::{ApiError, AppState, Code};
use axum::http::HeaderMap;
use crawler::FetchError;
use pipeline::{Rotate, VideoRequest};
use url::Url;
use video::Sampling;

/// Longest time without an analysed frame, in milliseconds.
pub(super) type MaxGap = Bounded<200, 60_000>;

/// Returns the options that the parameters of a request select.
///
/// # Errors
/// Fails with 400 if `sampling` cannot be read, or if `refine` contradicts it.
pub(super) fn video_request(
    sampling: Option<&str>,
    max_gap_ms: Option<MaxGap>,
    refine: Option<bool>,
    rotate: Option<Rotate>,
) -> Result<VideoRequest, ApiError> {
    let defaults = VideoRequest::default();
    let sampling = match sampling {
        None => defaults.sampling,
        Some(text) => text.parse::<Sampling>().map_err(|error| {
            ApiError::new(Code::BadQuery, format!("sampling: {error}"))
                .field("sampling")
                .value(text)
                .allowed(["auto", "keyframes", "fps=N with N from 0.1 to 30"])
        })?,
    };
    let max_gap_ms = max_gap_ms.and_then(|gap| u32::try_from(gap.get()).ok());
    let max_gap_ms = max_gap_ms.unwrap_or(defaults.max_gap_ms);
    let refine = refine.unwrap_or(defaults.refine);
    let request = VideoRequest { sampling, max_gap_ms, refine, rotate: rotate.unwrap_or_default() };
    request.checked().map_err(|error| {
        ApiError::new(Code::BadQuery, format!("refine: {error}"))
            .field("refine")
            .value("true")
            .allowed(["false", "true with sampling=auto"])
    })
}

/// Rejects a body that is declared to be something else than a video. `others` are the other types
/// that the operation takes.
pub(super) fn check_type(headers: &HeaderMap, others: &[&'static str]) -> Result<(), ApiError> {
    let media = media_type(headers);
    if media.starts_with("video/") || media == "application/octet-stream" {
        return Ok(());
    }
    let taken = [&["video/*", "application/octet-stream"], others].concat();
    Err(unsupported(headers, &taken))
}

/// Returns the normal form of the address of a file that a worker fetches.
///
/// # Errors
/// Fails with 422 if it is not an http or https URL, or if the guard rejects it.
pub(super) fn file_address(state: &AppState, text: &str) -> Result<Url, ApiError> {
    let bad = |reason: &str| {
        ApiError::new(Code::BadUrl, format!("url: {reason}"))
            .field("url")
            .value(text)
            .allowed(["an absolute http or https URL"])
    };
    let address = crawler::urls::parse_address(text).map_err(|reason| bad(&reason.to_string()))?;
    if !matches!(address.scheme(), "http" | "https") {
        return Err(bad(&format!("the scheme `{}` is not allowed", address.scheme())));
    }
    let refused = state.services.fetcher.guard().check_url(&address);
    refused.map_err(|error| ApiError::from(FetchError::from(error)).field("url").value(text))?;
    Ok(address)
}
