//! Reads the options that all analyses of videos have.
use crate::extract::values::Bounded;
use crate::{ApiError, Code};
use axum::http::{HeaderMap, header};
use pipeline::VideoRequest;
use video::Sampling;

/// Longest time without an analysed frame, in milliseconds.
pub(super) type MaxGap = Bounded<200, 60_000>;

/// Returns the options that `sampling` and `max_gap_ms` select.
///
/// # Errors
/// Fails with 400 if `sampling` cannot be read.
pub(super) fn video_request(
    sampling: Option<&str>,
    max_gap_ms: Option<MaxGap>,
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
    Ok(VideoRequest { sampling, max_gap_ms: max_gap_ms.unwrap_or(defaults.max_gap_ms) })
}

/// Returns the error of a service that has no decoder.
pub(super) fn unavailable() -> ApiError {
    let sentence = "this service has no ffmpeg, which decodes videos; run ./scripts/video or set FFMPEG";
    ApiError::new(Code::VideoUnavailable, sentence)
}

/// Rejects a body that is declared to be something else than a video.
pub(super) fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let media = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = media.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media.starts_with("video/") || media == "application/octet-stream" {
        return Ok(());
    }
    Err(crate::extract::unsupported(headers, &["video/*", "application/octet-stream"]))
}
