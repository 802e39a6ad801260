//! Copies the file of a video to a file without a name, from the blob store or from its address.

use crate::crawls::context::Context;
use crate::crawls::job_error::JobError;
use crate::images::ingest::VideoFile;
use crate::videos::address;
use crawler::FetchError;
use crawler::fetch::Download;
use crawler::hls::PlaylistError;
use domain::Reason;
use sha2::{Digest, Sha256};
use store::videos::Video;
use store::{SpoolFolder, StoreError};
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use url::Url;
use uuid::Uuid;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("the uploaded file is gone")]
    Gone,
    #[error("the address, or that of a page with the video, was erased and is suppressed")]
    Suppressed,
    #[error("the content at the address is not a video in an accepted container")]
    NotAVideo,
    #[error("its X-Robots-Tag does not allow the video to be used")]
    Denied(Reason),
    #[error(transparent)]
    Playlist(#[from] PlaylistError),
    #[error("the file at the address is that of the video {0}")]
    NotModified(Uuid),
    #[error("the content at the address changed after a part of it was stored")]
    Changed,
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The crawl that found the video does not allow its job to run now, or cannot be read.
    #[error("the crawl does not run or cannot be read")]
    Crawl(JobError),
    /// The text of the database is not shown to users.
    #[error("a statement of the database failed")]
    Store(#[from] StoreError),
    #[error("the copy of the file could not be written")]
    Spool(#[from] std::io::Error),
}

impl CopyError {
    /// Returns the reason that users see, and whether another attempt can succeed.
    pub(crate) fn reason(&self) -> (Reason, bool) {
        match self {
            Self::Gone | Self::Changed => (Reason::Unreadable, false),
            Self::Suppressed => (Reason::SuppressedUrl, false),
            Self::NotAVideo | Self::Playlist(PlaylistError::Invalid) => (Reason::NotAVideo, false),
            Self::NotModified(_) => (Reason::NotModified, false),
            Self::Denied(reason) => (reason.clone(), false),
            Self::Playlist(PlaylistError::Encrypted) => (Reason::EncryptedVideo, false),
            Self::Playlist(PlaylistError::Live) => (Reason::LiveStream, false),
            Self::Playlist(PlaylistError::TooLong) => (Reason::VideoTooLarge, false),
            Self::Fetch(error) => (error.reason(), error.is_transient()),
            Self::Crawl(_) => (Reason::Later, true),
            Self::Store(_) => (Reason::StoreFailure, true),
            Self::Spool(_) => (Reason::VideoUnavailable, true),
        }
    }
}

/// Copies the stored file of `video` to `folder`.
///
/// # Errors
/// Fails with [`CopyError`]. Nothing remains of the copy.
pub(crate) async fn copy(
    context: &Context,
    folder: &SpoolFolder,
    video: &Video,
) -> Result<VideoFile, CopyError> {
    let (Some(key), Some(sha256)) = (&video.source_key, sha256_of(video)) else {
        return Err(CopyError::Gone);
    };
    let stored = video.bytes.map_or(0, |bytes| u64::try_from(bytes).unwrap_or(0));
    folder.check_space(stored)?;
    let mut spool = create(context, folder).await?;
    let bytes = context.ingest.blobs().read_into(key, &mut spool.file).await?.ok_or(CopyError::Gone)?;
    Ok(VideoFile { file: spool.file.into_std().await, sha256, bytes })
}

/// Fetches the file of `video` from its address to `folder`.
///
/// # Errors
/// Fails with [`CopyError`]. Nothing remains of the copy.
pub(crate) async fn fetch(
    context: &Context,
    folder: &SpoolFolder,
    video: &Video,
    address: &Url,
) -> Result<VideoFile, CopyError> {
    let mut spool = create(context, folder).await?;
    address::fetch(context, video, address, &mut spool).await?;
    let file = spool.finish().await?;
    // The stored parts are those of another file.
    if video.checkpoint_us.is_some() && sha256_of(video) != Some(file.sha256) {
        return Err(CopyError::Changed);
    }
    Ok(file)
}

fn sha256_of(video: &Video) -> Option<[u8; 32]> {
    video.sha256.as_deref().and_then(|sha256| sha256.try_into().ok())
}

async fn create(context: &Context, folder: &SpoolFolder) -> Result<Spool, CopyError> {
    let (limit, _) = context.fetcher.video_limits();
    Spool::create(folder, limit as u64).await
}

/// A copy that is being written, without holding it in memory.
pub(crate) struct Spool {
    file: File,
    hasher: Sha256,
    bytes: u64,
    /// Maximum number of bytes.
    limit: u64,
    folder: SpoolFolder,
}

impl Spool {
    async fn create(folder: &SpoolFolder, limit: u64) -> Result<Self, CopyError> {
        folder.check_space(0)?;
        let path = folder.path().to_owned();
        let created = tokio::task::spawn_blocking(move || tempfile::tempfile_in(path)).await;
        let file = File::from_std(created.map_err(std::io::Error::other)??);
        Ok(Self { file, hasher: Sha256::new(), bytes: 0, limit, folder: folder.clone() })
    }

    /// Fails if the copy would be longer than the limit.
    pub(crate) async fn write(&mut self, piece: &[u8]) -> Result<(), CopyError> {
        self.folder.wrote(self.bytes, piece.len() as u64)?;
        self.bytes += piece.len() as u64;
        if self.bytes > self.limit {
            let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
            return Err(FetchError::TooLarge { limit }.into());
        }
        self.hasher.update(piece);
        Ok(self.file.write_all(piece).await?)
    }

    pub(crate) async fn write_rest(&mut self, mut download: Download) -> Result<(), CopyError> {
        while let Some(piece) = download.chunk().await? {
            self.write(&piece).await?;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<VideoFile, CopyError> {
        self.file.flush().await?;
        self.file.rewind().await?;
        let Self { file, hasher, bytes, .. } = self;
        Ok(VideoFile { file: file.into_std().await, sha256: hasher.finalize().into(), bytes })
    }
}
