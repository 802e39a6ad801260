//! Reads the options of an analysis, and copies an uploaded video to a file without holding it in
//! memory.
use crate::extract::image::bad_url;
use crate::extract::{Bounded, discard_body, limit_upload, media_type, unsupported};
use crate::{ApiError, AppState, Code, Result};
use axum::extract::Request;
use axum::http::HeaderMap;
use crawler::FetchError;
use futures::StreamExt;
use pipeline::{Rotate, VideoRequest};
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};
use store::SpoolFolder;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use url::Url;
use video::Sampling;

/// Number of bytes that suffice to recognise a video.
const HEAD: usize = 200;
/// Minimum rate of an upload in bytes per second, after [`SLOW_START`]. A slower one would hold its
/// permit for too long.
const MIN_RATE: u64 = 64 << 10;
/// Minimum time for each upload, regardless of its rate.
const SLOW_START: Duration = Duration::from_secs(30);

/// An uploaded file. It has no name, so it is deleted when this value is dropped.
pub(super) struct Spooled {
    /// The file, at its start.
    pub(super) file: File,
    pub(super) sha256: [u8; 32],
    pub(super) bytes: u64,
}

/// Reads the body to a file in the folder of `spool`.
///
/// # Errors
/// Fails with 413 for too many bytes, 415 if the content is not a video, 400 if the body cannot be
/// read, 503 if it arrives too slowly, and 507 if the disk is full.
pub(super) async fn spool(request: Request, spool: &SpoolFolder, limit: u64) -> Result<Spooled> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if let Err(error) = spool.check_space(0) {
        return refuse(request, error.into()).await;
    }
    let mut stream = limit_upload(request, limit, "the video")?.into_data_stream();
    let folder = spool.path().to_owned();
    let created = tokio::task::spawn_blocking(move || tempfile::tempfile_in(folder)).await;
    let mut file = File::from_std(created.map_err(ApiError::internal)?.map_err(ApiError::internal)?);
    let (mut hasher, mut bytes, mut head) = (Sha256::new(), 0_u64, Vec::with_capacity(HEAD));
    let started = Instant::now();
    loop {
        let time_limit = SLOW_START + Duration::from_secs(bytes / MIN_RATE);
        let next = tokio::time::timeout(time_limit.saturating_sub(started.elapsed()), stream.next());
        let Some(chunk) = next.await.map_err(|_| too_slow())? else { break };
        let chunk = chunk.map_err(|error| crate::extract::upload_error(&error, limit, "the video"))?;
        let was_incomplete = head.len() < HEAD;
        head.extend(chunk.iter().take(HEAD.saturating_sub(head.len())));
        if was_incomplete && head.len() == HEAD {
            check_head(&head)?;
        }
        hasher.update(&chunk);
        file.write_all(&chunk).await.map_err(ApiError::internal)?;
        spool.check_after_write(bytes, chunk.len() as u64)?;
        bytes += chunk.len() as u64;
    }
    check_head(&head)?;
    file.flush().await.map_err(ApiError::internal)?;
    file.rewind().await.map_err(ApiError::internal)?;
    Ok(Spooled { file, sha256: hasher.finalize().into(), bytes })
}

/// Reads and discards the rest of the request, then returns `error`.
pub(super) async fn refuse<T>(request: Request, error: ApiError) -> Result<T> {
    discard_body(request).await;
    Err(error)
}

fn check_head(head: &[u8]) -> Result<()> {
    if vision::Format::sniff(head).is_none() && video::is_video(head) {
        return Ok(());
    }
    let message = "the content is not a video in an accepted container";
    Err(ApiError::new(Code::NotAVideo, message)
        .allowed(["MP4, MOV, Matroska, WebM, MPEG-TS, MPEG, AVI, FLV"]))
}

fn too_slow() -> ApiError {
    let message =
        format!("the video arrives too slowly; at least {} KiB per second are needed", MIN_RATE >> 10);
    ApiError::new(Code::Timeout, message)
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
