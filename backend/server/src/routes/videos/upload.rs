//! Reads the options of an analysis, and defines the rules for an uploaded video.
use crate::extract::image::bad_url;
use crate::extract::{Bounded, media_type, unsupported};
use crate::routes::shared::spool::SpoolRules;
use crate::{ApiError, AppState, Code, Result};
use axum::http::HeaderMap;
use crawler::FetchError;
use pipeline::{Rotate, VideoRequest};
use url::Url;
use video::Sampling;

/// Returns the rules for the file of a video of at most `limit` bytes.
pub(super) fn rules(limit: u64) -> SpoolRules {
    // This number of bytes suffices to recognise a video.
    SpoolRules { name: "the video", limit, head: 200, check_head }
}

fn check_head(head: &[u8]) -> Result<()> {
    if vision::Format::sniff(head).is_none() && video::is_video(head) {
        return Ok(());
    }
    let message = "the content is not a video in an accepted container";
    Err(ApiError::new(Code::NotAVideo, message)
        .allowed(["MP4, MOV, Matroska, WebM, MPEG-TS, MPEG, AVI, FLV"]))
}

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
) -> Result<VideoRequest> {
    let defaults = VideoRequest::default();
    let sampling = match sampling {
        None => defaults.sampling,
        Some(text) => text.parse::<Sampling>().map_err(|error| {
            ApiError::for_field(Code::BadQuery, "sampling", error).value(text).allowed([
                "auto",
                "keyframes",
                "fps=N with N from 0.1 to 30",
            ])
        })?,
    };
    let max_gap_ms = max_gap_ms.and_then(|gap| u32::try_from(gap.get()).ok());
    let max_gap_ms = max_gap_ms.unwrap_or(defaults.max_gap_ms);
    let refine = refine.unwrap_or(defaults.refine);
    let request = VideoRequest { sampling, max_gap_ms, refine, rotate: rotate.unwrap_or_default() };
    request.checked().map_err(|error| {
        ApiError::for_field(Code::BadQuery, "refine", error)
            .value("true")
            .allowed(["false", "true with sampling=auto"])
    })
}

/// Rejects a body that is declared to be anything other than a video. `other_types` are the types
/// that the operation also accepts.
pub(super) fn check_type(headers: &HeaderMap, other_types: &[&'static str]) -> Result<()> {
    let media = media_type(headers);
    if media.starts_with("video/") || media == "application/octet-stream" {
        return Ok(());
    }
    let accepted = [&["video/*", "application/octet-stream"], other_types].concat();
    Err(unsupported(headers, &accepted))
}

/// Returns the normal form of the address of a file that a worker fetches.
///
/// # Errors
/// Fails with 422 if it is not an http or https URL, or if the guard rejects it.
pub(super) fn file_address(state: &AppState, text: &str) -> Result<Url> {
    let address = crawler::urls::parse_address(text).map_err(|reason| bad_url(text, reason))?;
    if !matches!(address.scheme(), "http" | "https") {
        return Err(bad_url(text, format!("the scheme `{}` is not allowed", address.scheme())));
    }
    let check_result = state.services.fetcher.guard().check_url(&address);
    check_result.map_err(|error| ApiError::from(FetchError::from(error)).field("url").value(text))?;
    Ok(address)
}
