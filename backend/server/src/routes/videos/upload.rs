//! Copies an uploaded video to a file, without holding it in memory.
use crate::auth::CallerId;
use crate::extract::{drop_unread, limited_upload};
use crate::limit::KeyedPermit;
use crate::{ApiError, AppState, Code};
use axum::extract::Request;
use futures::StreamExt;
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};
use store::SpoolFolder;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;

/// Number of bytes that suffice to recognise a video.
const HEAD: usize = 200;
/// Minimum rate of an upload in bytes per second, after [`SLOW_START`]. A slower one would hold its
/// place for too long.
const MIN_RATE: u64 = 64 << 10;
/// Time that each upload has, however slow it is.
const SLOW_START: Duration = Duration::from_secs(30);
/// Time after which a caller with too many uploads may try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Permits one upload. Dropping it releases the place.
pub(super) struct Place {
    _caller: KeyedPermit<CallerId>,
    _all: OwnedSemaphorePermit,
}

/// An uploaded file. It has no name, so nothing remains of it when it is dropped.
pub(super) struct Spooled {
    /// The file, at its start.
    pub(super) file: File,
    pub(super) sha256: [u8; 32],
    pub(super) bytes: u64,
}

/// Reserves a place for an upload of the current caller.
///
/// # Errors
/// Fails with 429 if the caller or the service has too many.
pub(super) fn place(state: &AppState) -> Result<Place, ApiError> {
    let refused = |what: &str| ApiError::overloaded(what, RETRY_AFTER);
    let caller = state.caller_uploads.try_acquire(CallerId::current());
    let caller = caller.ok_or_else(|| refused("the caller has too many uploads in progress"))?;
    let all = state.uploads.clone().try_acquire_owned();
    let all = all.map_err(|_| refused("too many uploads are in progress"))?;
    Ok(Place { _caller: caller, _all: all })
}

/// Reads the body to a file in the folder of `spool`.
///
/// # Errors
/// Fails with 413 for too many bytes, 415 if the content is not a video, 400 if the body cannot be
/// read, 503 if it arrives too slowly, and 507 if the disk is full.
pub(super) async fn spool(request: Request, spool: &SpoolFolder, limit: u64) -> Result<Spooled, ApiError> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if let Err(full) = spool.check_space(0) {
        return refuse(request, full.into()).await;
    }
    let mut stream = limited_upload(request, limit, "the video")?.into_data_stream();
    let folder = spool.path().to_owned();
    let created = tokio::task::spawn_blocking(move || tempfile::tempfile_in(folder)).await;
    let mut file = File::from_std(created.map_err(ApiError::internal)?.map_err(ApiError::internal)?);
    let (mut hasher, mut bytes, mut head) = (Sha256::new(), 0_u64, Vec::with_capacity(HEAD));
    let started = Instant::now();
    loop {
        let allowed = SLOW_START + Duration::from_secs(bytes / MIN_RATE);
        let next = tokio::time::timeout(allowed.saturating_sub(started.elapsed()), stream.next());
        let Some(chunk) = next.await.map_err(|_| too_slow())? else { break };
        let chunk = chunk.map_err(|error| crate::extract::upload_error(&error, limit, "the video"))?;
        let is_new = head.len() < HEAD;
        head.extend(chunk.iter().take(HEAD.saturating_sub(head.len())));
        if is_new && head.len() == HEAD {
            check_head(&head)?;
        }
        hasher.update(&chunk);
        file.write_all(&chunk).await.map_err(ApiError::internal)?;
        spool.wrote(bytes, chunk.len() as u64)?;
        bytes += chunk.len() as u64;
    }
    check_head(&head)?;
    file.flush().await.map_err(ApiError::internal)?;
    file.rewind().await.map_err(ApiError::internal)?;
    Ok(Spooled { file, sha256: hasher.finalize().into(), bytes })
}

/// Fails with `error` after it has read what the caller still sends.
pub(super) async fn refuse<T>(request: Request, error: ApiError) -> Result<T, ApiError> {
    drop_unread(request).await;
    Err(error)
}

fn check_head(head: &[u8]) -> Result<(), ApiError> {
    if vision::Format::sniff(head).is_none() && video::is_video(head) {
        return Ok(());
    }
    let sentence = "the content is not a video in an accepted container";
    Err(ApiError::new(Code::NotAVideo, sentence)
        .allowed(["MP4, MOV, Matroska, WebM, MPEG-TS, MPEG, AVI, FLV"]))
}

fn too_slow() -> ApiError {
    let sentence =
        format!("the video arrives too slowly; at least {} KiB per second are needed", MIN_RATE >> 10);
    ApiError::new(Code::Timeout, sentence)
}
