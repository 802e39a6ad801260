//! Copies the file of a video to a file without a name, from the blob store or from its address.

use super::context::Context;
use super::fetch_policy::{Area, FetchPolicy};
use super::job_error::JobError;
use crate::ingest::VideoFile;
use crawler::fetch::{AnyHop, Download};
use crawler::{Directives, FetchError};
use domain::Reason;
use sha2::{Digest, Sha256};
use std::path::Path;
use store::videos::Video;
use store::{Store, StoreError, retried};
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use url::Url;

/// Number of bytes that suffice to recognise a video.
const HEAD: usize = 200;

/// Why the file of a video could not be copied.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error("the uploaded file is gone")]
    Gone,
    #[error("the address was erased and is suppressed")]
    Suppressed,
    #[error("the content at the address is not a video in an accepted container")]
    NotAVideo,
    #[error("its X-Robots-Tag does not allow the video to be used")]
    Denied(Reason),
    #[error("the content at the address changed after a part of it was stored")]
    Changed,
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The crawl that found the video does not allow its job to run now.
    #[error("the crawl is not running")]
    Crawl(JobError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the file could not be copied: {0}")]
    Spool(#[from] std::io::Error),
}

impl CopyError {
    /// Returns the reason that users see, and whether another attempt can succeed.
    pub(super) fn reason(&self) -> (Reason, bool) {
        match self {
            Self::Gone | Self::Changed => (Reason::Unreadable, false),
            Self::Suppressed => (Reason::SuppressedUrl, false),
            Self::NotAVideo => (Reason::NotAVideo, false),
            Self::Denied(reason) => (reason.clone(), false),
            Self::Fetch(error) => (error.reason(), error.is_transient()),
            Self::Crawl(_) => (Reason::Later, true),
            Self::Store(_) => (Reason::StoreFailure, true),
            Self::Spool(_) => (Reason::VideoUnavailable, true),
        }
    }
}

/// Copies the file of `video` to the folder `spool`. If a crawl found the video, the crawl's rules
/// apply to its address, as they do to that of an image.
///
/// # Errors
/// Fails with [`CopyError`]. Nothing remains of the copy.
pub(super) async fn copy(context: &Context, spool: &Path, video: &Video) -> Result<VideoFile, CopyError> {
    let (store, blobs) = (&context.store, context.ingest.blobs());
    let folder = spool.to_owned();
    let created = tokio::task::spawn_blocking(move || tempfile::tempfile_in(folder)).await;
    let mut file = File::from_std(created.map_err(std::io::Error::other)??);
    let known: Option<[u8; 32]> = video.sha256.as_deref().and_then(|sha256| sha256.try_into().ok());
    let (sha256, bytes) = match (&video.source_key, known, &video.source_url) {
        (Some(key), Some(sha256), _) => {
            let bytes = blobs.read_into(key, &mut file).await?.ok_or(CopyError::Gone)?;
            (sha256, bytes)
        }
        (None, _, Some(address)) => {
            let address = Url::parse(address).map_err(|_| CopyError::Gone)?;
            check_allowed(store, video, &address).await?;
            let download = download(context, video, &address).await?;
            let answered = &download.head.url;
            if *answered != address {
                check_allowed(store, video, answered).await?;
                retried("record_moved_video", || async {
                    let mut tx = store.begin().await?;
                    store.record_moved_video(tx.conn(), video.id, answered.as_str()).await?;
                    tx.commit().await
                })
                .await?;
            }
            let (sha256, bytes) = write(download, &mut file).await?;
            // The stored parts are those of another file.
            if video.checkpoint_us.is_some() && known != Some(sha256) {
                return Err(CopyError::Changed);
            }
            (sha256, bytes)
        }
        _ => return Err(CopyError::Gone),
    };
    Ok(VideoFile { file: file.into_std().await, sha256, bytes })
}

async fn download(context: &Context, video: &Video, address: &Url) -> Result<Download, CopyError> {
    let Some(crawl) = video.crawl_id else {
        // A caller named this address, as for an image of a request. The guard applies.
        return Ok(context.fetcher.download(address.clone(), &AnyHop).await?);
    };
    let view = context.running(crawl).await.map_err(CopyError::Crawl)?;
    let download = FetchPolicy::new(context, &view, Area::Anywhere).download(address.clone()).await?;
    let tags = download.head.robots_tags.iter().map(String::as_str);
    match Directives::parse(tags, context.fetcher.agent()).images_denied() {
        Some(reason) if view.options.respect_robots => Err(CopyError::Denied(reason)),
        _ => Ok(download),
    }
}

/// Writes the content to `file`, without holding it in memory. Returns its SHA-256 and its length
/// in bytes.
async fn write(mut download: Download, file: &mut File) -> Result<([u8; 32], u64), CopyError> {
    let (mut hasher, mut bytes, mut head) = (Sha256::new(), 0_u64, Vec::with_capacity(HEAD));
    while let Some(piece) = download.chunk().await? {
        if head.len() < HEAD {
            head.extend(piece.iter().take(HEAD - head.len()));
            // A page or an image is not read to its end.
            if head.len() == HEAD && !begins_like_video(&head) {
                return Err(CopyError::NotAVideo);
            }
        }
        hasher.update(&piece);
        file.write_all(&piece).await?;
        bytes += piece.len() as u64;
    }
    if !begins_like_video(&head) {
        return Err(CopyError::NotAVideo);
    }
    file.flush().await?;
    file.rewind().await?;
    Ok((hasher.finalize().into(), bytes))
}

fn begins_like_video(head: &[u8]) -> bool {
    vision::Format::sniff(head).is_none() && video::is_video(head)
}

/// # Errors
/// Fails if the address is suppressed in the collection of the video.
async fn check_allowed(store: &Store, video: &Video, address: &Url) -> Result<(), CopyError> {
    let suppressed = retried("suppresses_address", || async {
        let mut tx = store.begin().await?;
        store.suppresses_address(tx.conn(), video.collection_id, address.as_str()).await
    });
    if suppressed.await? { Err(CopyError::Suppressed) } else { Ok(()) }
}
