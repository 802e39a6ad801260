//! Copies the file of a video to a file without a name, from the blob store or from its address:
//! one file, or the files of a playlist.
//!
//! If a crawl found the video, the crawl's rules apply to each request, as they do to images. For
//! an address from a caller, and the files of its playlist, only the guard and the host's delay
//! apply.
use crate::crawls::context::{Area, Context, CrawlView, FetchPolicy, NOT_MODIFIED};
use crate::crawls::job_error::JobError;
use crate::crawls::politeness::host_throttle::ThrottledPolicy;
use crate::videos::store::VideoFile;
use bytes::{Bytes, BytesMut};
use crawler::fetch::{Download, Kind, Validators};
use crawler::hls::{Playlist, PlaylistError};
use crawler::{Directives, FetchError, Fetched, Request, hls};
use domain::Reason;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use store::videos::Video;
use store::videos::crawled::KnownVideo;
use store::{SpoolFolder, StoreError, retried};
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use url::Url;
use uuid::Uuid;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("the uploaded file is gone")]
    FileMissing,
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
            Self::FileMissing | Self::Changed => (Reason::Unreadable, false),
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
        return Err(CopyError::FileMissing);
    };
    let stored = video.bytes.map_or(0, |bytes| u64::try_from(bytes).unwrap_or(0));
    folder.check_space(stored)?;
    let mut spool = create_spool(context, folder).await?;
    let bytes = context.faces.blobs.read_into(key, &mut spool.file).await?.ok_or(CopyError::FileMissing)?;
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
    let mut spool = create_spool(context, folder).await?;
    fetch_address(context, video, address, &mut spool).await?;
    let file = spool.finish().await?;
    // The stored parts belong to another file.
    if video.checkpoint_us.is_some() && sha256_of(video) != Some(file.sha256) {
        return Err(CopyError::Changed);
    }
    Ok(file)
}

fn sha256_of(video: &Video) -> Option<[u8; 32]> {
    video.sha256.as_deref().and_then(|sha256| sha256.try_into().ok())
}

async fn create_spool(context: &Context, folder: &SpoolFolder) -> Result<Spool, CopyError> {
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

    /// Appends a piece. Fails if the copy would be longer than the limit.
    pub(crate) async fn write(&mut self, piece: &[u8]) -> Result<(), CopyError> {
        self.folder.check_after_write(self.bytes, piece.len() as u64)?;
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

/// Number of bytes that suffice to recognise a video or a playlist.
const HEAD_BYTES: usize = 200;

pub(crate) async fn fetch_address(
    context: &Context,
    video: &Video,
    address: &Url,
    spool: &mut Spool,
) -> Result<(), CopyError> {
    let view = match video.crawl_id {
        Some(crawl) => Some(context.running_crawl(crawl).await.map_err(CopyError::Crawl)?),
        None => None,
    };
    let (_, limit) = context.fetcher.video_limits();
    let source = Source { context, video, view, deadline: Instant::now() + limit };
    source.check_pages().await?;
    source.check_allowed(address.as_str()).await?;
    let stored = source.stored_video(address).await?;
    let validators = stored.as_ref().map(|stored| Validators {
        url: address.clone(),
        etag: stored.etag.clone(),
        last_modified: stored.last_modified.clone(),
    });
    let request = Request { validators, ..Request::new(address.clone(), Kind::Video) };
    let mut download = source.open(request).await?;
    if let (NOT_MODIFIED, Some(stored)) = (download.head.status, stored) {
        return Err(CopyError::NotModified(stored.id));
    }
    let final_url = download.head.url.clone();
    source.record_response(address, &download.head).await?;
    let head = read_head(&mut download).await?;
    if hls::is_playlist(&head) {
        let text = read_rest_of_playlist(head, download).await?;
        let copy = source.copy_playlist(text, final_url, spool);
        return timeout_at(source.deadline, copy).await.map_err(|_| playlist_timeout())?;
    }
    // A page or an image is not read to its end.
    if !begins_like_video(&head) {
        return Err(CopyError::NotAVideo);
    }
    spool.write(&head).await?;
    spool.write_rest(download).await
}

/// Fails if the address of a stored video, or a page that contains it, is suppressed.
pub(crate) async fn check_allowed(context: &Context, video: &Video) -> Result<(), CopyError> {
    let source = Source { context, video, view: None, deadline: Instant::now() };
    source.check_pages().await?;
    match &video.source_url {
        Some(address) => source.check_allowed(address).await,
        None => Ok(()),
    }
}

/// Returns the first pieces of a file: at least [`HEAD_BYTES`] bytes, or the whole file.
async fn read_head(download: &mut Download) -> Result<BytesMut, CopyError> {
    let mut head = BytesMut::new();
    while head.len() < HEAD_BYTES
        && let Some(piece) = download.chunk().await?
    {
        head.extend_from_slice(&piece);
    }
    Ok(head)
}

fn begins_like_video(head: &[u8]) -> bool {
    vision::Format::sniff(head).is_none() && video::is_video(head)
}

async fn read_rest_of_playlist(head: BytesMut, mut download: Download) -> Result<Bytes, CopyError> {
    let mut text = head;
    while let Some(piece) = download.chunk().await? {
        if text.len() + piece.len() > hls::MAX_BYTES {
            return Err(FetchError::TooLarge { limit: hls::MAX_BYTES }.into());
        }
        text.extend_from_slice(&piece);
    }
    Ok(text.freeze())
}

struct Source<'a> {
    context: &'a Context,
    video: &'a Video,
    /// The crawl that found the video.
    view: Option<Arc<CrawlView>>,
    /// Time at which all files must have arrived.
    deadline: Instant,
}

impl Source<'_> {
    /// Writes the files of a playlist, one after the other. `text` is the playlist at `address`,
    /// which lists variants or files.
    async fn copy_playlist(&self, text: Bytes, address: Url, spool: &mut Spool) -> Result<(), CopyError> {
        let files = match parse_playlist(text, address).await? {
            Playlist::Files(files) => files,
            Playlist::Variant(url) => {
                let request = Request::new(url, Kind::Playlist);
                let (text, address) = self.fetch_playlist(request).await?;
                match parse_playlist(text, address).await? {
                    Playlist::Files(files) => files,
                    Playlist::Variant(_) => return Err(hls::PlaylistError::Invalid.into()),
                }
            }
        };
        for (at, file) in files.urls().enumerate() {
            let mut download = self.open_file(&file).await?;
            let head = read_head(&mut download).await?;
            if at == 0 && !begins_like_video(&head) {
                return Err(CopyError::NotAVideo);
            }
            spool.write(&head).await?;
            spool.write_rest(download).await?;
        }
        Ok(())
    }

    /// Opens a file, under the crawl's rules if a crawl found it.
    async fn open(&self, request: Request) -> Result<Download, CopyError> {
        let Some(view) = &self.view else {
            return Ok(self
                .context
                .fetcher
                .download(request, &ThrottledPolicy::new(&self.context.throttle, None))
                .await?);
        };
        let download = FetchPolicy::new(self.context, view, Area::Anywhere).download(request).await?;
        self.check_directives(&download.head.robots_tags)?;
        Ok(download)
    }

    /// Fetches a playlist, under the crawl's rules. Returns it with its address after redirects.
    async fn fetch(&self, request: Request) -> Result<(Bytes, Url), CopyError> {
        let fetched = match &self.view {
            Some(view) => FetchPolicy::new(self.context, view, Area::Anywhere).fetch(request).await?,
            None => {
                self.context
                    .fetcher
                    .fetch(request, &ThrottledPolicy::new(&self.context.throttle, None))
                    .await?
            }
        };
        self.check_directives(&fetched.robots_tags)?;
        Ok((fetched.body, fetched.url))
    }

    fn check_directives(&self, tags: &[String]) -> Result<(), CopyError> {
        let tags = tags.iter().map(String::as_str);
        match Directives::parse(tags, self.context.fetcher.agent()).image_denial() {
            Some(reason) if self.view.as_ref().is_some_and(|view| view.options.respect_robots) => {
                Err(CopyError::Denied(reason))
            }
            _ => Ok(()),
        }
    }

    /// Opens a file of a playlist. Waits for its host, and fails if the file or the address after
    /// redirects is suppressed.
    async fn open_file(&self, url: &Url) -> Result<Download, CopyError> {
        self.check_allowed(url.as_str()).await?;
        let download = loop {
            match self.open(Request::new(url.clone(), Kind::Video)).await {
                Err(error) => self.wait_for_host(error).await?,
                download => break download?,
            }
        };
        if download.head.url != *url {
            self.check_allowed(download.head.url.as_str()).await?;
        }
        Ok(download)
    }

    /// Works like [`Self::open_file`] for a playlist. Returns it with its address after redirects.
    async fn fetch_playlist(&self, request: Request) -> Result<(Bytes, Url), CopyError> {
        self.check_allowed(request.url.as_str()).await?;
        let (text, final_url) = loop {
            match self.fetch(request.clone()).await {
                Err(error) => self.wait_for_host(error).await?,
                fetched => break fetched?,
            }
        };
        if final_url != request.url {
            self.check_allowed(final_url.as_str()).await?;
        }
        Ok((text, final_url))
    }

    /// Waits if the rate limit of the host postponed a request. The request can then be repeated.
    /// If each wait between two files postponed the job, every run would begin with the first file,
    /// and no playlist of such a host could be read.
    async fn wait_for_host(&self, error: CopyError) -> Result<(), CopyError> {
        match error {
            CopyError::Fetch(FetchError::Postponed(wait)) if Instant::now() + wait < self.deadline => {
                queue::outside_slot(tokio::time::sleep(wait)).await;
                Ok(())
            }
            // The time limit is too short for this host, so the run counts as an attempt.
            CopyError::Fetch(FetchError::Postponed(_)) => Err(playlist_timeout().into()),
            error => Err(error),
        }
    }

    async fn check_pages(&self) -> Result<(), CopyError> {
        let (store, Video { id, collection_id, .. }) = (&self.context.store, self.video);
        let is_suppressed = retried("suppresses_pages_of_video", || {
            store.suppressions().suppresses_pages_of_video(store.pool(), *collection_id, *id)
        });
        if is_suppressed.await? { Err(CopyError::Suppressed) } else { Ok(()) }
    }

    async fn check_allowed(&self, address: &str) -> Result<(), CopyError> {
        let store = &self.context.store;
        let is_suppressed = retried("suppresses_address", || async {
            let mut tx = store.begin().await?;
            store.suppressions().suppresses_address(tx.conn(), self.video.collection_id, address).await
        });
        if is_suppressed.await? { Err(CopyError::Suppressed) } else { Ok(()) }
    }

    /// Returns the stored video of this address, if the crawl sends conditional requests. A part of
    /// the video itself may be stored already, so a repeated attempt fetches the file.
    async fn stored_video(&self, address: &Url) -> Result<Option<KnownVideo>, CopyError> {
        let is_conditional = self.view.as_ref().is_some_and(|view| view.options.revalidate);
        if !is_conditional || self.video.checkpoint_us.is_some() {
            return Ok(None);
        }
        let (store, Video { id, collection_id, .. }) = (&self.context.store, self.video);
        Ok(retried("known_video", || {
            store.crawled_videos().find_known(*collection_id, address.as_str(), *id)
        })
        .await?)
    }

    /// Records the address after redirects, or the validators if there was no redirect. The check
    /// and the record are one transaction, so an erasure of the address finds either the
    /// suppression or the record.
    ///
    /// # Errors
    /// Fails with [`CopyError::Suppressed`] if the address after redirects is suppressed.
    async fn record_response(&self, address: &Url, head: &Fetched) -> Result<(), CopyError> {
        let (store, Video { id, collection_id, .. }) = (&self.context.store, self.video);
        let (id, collection) = (*id, *collection_id);
        let validators = head.validators();
        if head.url == *address && validators.is_none() {
            return Ok(());
        }
        let is_allowed = retried("record_video_response", || async {
            let mut tx = store.begin().await?;
            match &validators {
                _ if head.url != *address => {
                    store.suppressions().lock(tx.conn(), collection, false).await?;
                    if store
                        .suppressions()
                        .suppresses_address(tx.conn(), collection, head.url.as_str())
                        .await?
                    {
                        return Ok(false);
                    }
                    store.crawled_videos().record_redirect(tx.conn(), id, head.url.as_str()).await?;
                }
                Some(Validators { etag, last_modified, .. }) => {
                    let (etag, last_modified) = (etag.as_deref(), last_modified.as_deref());
                    store.crawled_videos().record_validators(tx.conn(), id, etag, last_modified).await?;
                }
                None => {}
            }
            tx.commit().await?;
            Ok::<_, StoreError>(true)
        });
        if is_allowed.await? { Ok(()) } else { Err(CopyError::Suppressed) }
    }
}

fn playlist_timeout() -> FetchError {
    FetchError::Timeout("the files of the playlist were not complete within the time limit")
}

/// Parses a playlist on a blocking thread, one at a time: a megabyte of text can become a hundred
/// megabytes of values.
async fn parse_playlist(text: Bytes, address: Url) -> Result<Playlist, CopyError> {
    static PERMIT: Semaphore = Semaphore::const_new(1);
    let permit = PERMIT.acquire().await;
    let parsed = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        hls::parse(&text, &address)
    });
    // The parser panicked.
    Ok(parsed.await.unwrap_or(Err(hls::PlaylistError::Invalid))?)
}
