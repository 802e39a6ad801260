//! Copies an upload to a file without holding it in memory.
use crate::extract::{discard_body, limit_upload, too_many_bytes, upload_error};
use crate::{ApiError, Code, Result};
use axum::extract::multipart::{Multipart, MultipartError};
use axum::extract::{DefaultBodyLimit, FromRequest, Request};
use bytes::Bytes;
use futures::StreamExt;
use sha2::{Digest, Sha256};
use std::time::{Duration, Instant};
use store::SpoolFolder;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

/// Minimum rate of an upload in bytes per second, after [`SLOW_START`]. A slower one would hold its
/// permit for too long.
const MIN_RATE: u64 = 64 << 10;
/// Minimum time for each upload, regardless of its rate.
const SLOW_START: Duration = Duration::from_secs(30);
/// Maximum time for which the rest of a rejected multipart body is read.
const DISCARD_TIME: Duration = Duration::from_secs(5);
/// Maximum number of bytes around the part of a multipart body.
const FRAMING: usize = 64 << 10;

/// An uploaded file. It has no name, so it is deleted when this value is dropped.
pub(crate) struct Spooled {
    /// The file, at its start.
    pub(crate) file: File,
    pub(crate) sha256: [u8; 32],
    pub(crate) bytes: u64,
}

/// The rules for an uploaded file.
#[derive(Clone, Copy)]
pub(crate) struct SpoolRules {
    /// The file in errors, such as `the video`.
    pub(crate) name: &'static str,
    /// Maximum size in bytes.
    pub(crate) limit: u64,
    /// Number of bytes that suffice for `check_head`.
    pub(crate) head: usize,
    /// Rejects content by its first bytes.
    pub(crate) check_head: fn(&[u8]) -> Result<()>,
}

impl SpoolRules {
    fn max_bytes(self) -> usize {
        usize::try_from(self.limit).unwrap_or(usize::MAX)
    }

    fn too_slow(self) -> ApiError {
        let (name, rate) = (self.name, MIN_RATE >> 10);
        let message = format!("{name} arrives too slowly; at least {rate} KiB per second are needed");
        ApiError::new(Code::Timeout, message)
    }
}

/// Reads the body to a file in the folder.
///
/// # Errors
/// Fails with 413 for too many bytes, with the error of `check_head`, 400 if the body cannot be
/// read, 503 if it arrives too slowly, and 507 if the disk is full.
pub(crate) async fn spool(request: Request, folder: &SpoolFolder, rules: SpoolRules) -> Result<Spooled> {
    if let Err(error) = folder.check_space(0) {
        return refuse(request, error.into()).await;
    }
    let mut stream = limit_upload(request, rules.max_bytes(), rules.name)?.into_data_stream();
    let mut copy = Copy::start(folder, rules).await?;
    while let Some(chunk) = copy.wait(stream.next()).await? {
        copy.write(chunk.map_err(|error| upload_error(&error, rules.max_bytes(), rules.name))?).await?;
    }
    copy.finish().await
}

/// Reads the only part of a multipart body to a file in the folder. The part is called `part`.
///
/// # Errors
/// Fails with the errors of [`spool`], and with 400 for other parts, or if the part is missing.
pub(crate) async fn spool_part(
    request: Request,
    folder: &SpoolFolder,
    rules: SpoolRules,
    part: &'static str,
) -> Result<Spooled> {
    if let Err(error) = folder.check_space(0) {
        return refuse(request, error.into()).await;
    }
    let (head, body) = request.into_parts();
    let limit = rules.max_bytes().saturating_add(FRAMING);
    let body = limit_upload(Request::from_parts(head.clone(), body), limit, rules.name)?;
    let mut request = Request::from_parts(head, body);
    // `limit_upload` limits the body. The default limit of axum (2 MB) would be too small.
    DefaultBodyLimit::disable().apply(&mut request);
    let multipart = Multipart::from_request(request, &()).await;
    let mut multipart = multipart.map_err(|error| ApiError::new(Code::BadMultipart, error.body_text()))?;
    let mut copy = Copy::start(folder, rules).await?;
    if let Err(error) = copy_only_part(&mut multipart, &mut copy, part, limit).await {
        // The caller receives the response only after it has sent everything.
        let rest = async { while let Ok(Some(_)) = multipart.next_field().await {} };
        let _ = tokio::time::timeout(DISCARD_TIME, rest).await;
        return Err(error);
    }
    copy.finish().await
}

async fn copy_only_part(
    multipart: &mut Multipart,
    copy: &mut Copy<'_>,
    part: &'static str,
    limit: usize,
) -> Result<()> {
    let rules = copy.rules;
    let part_error = |error: MultipartError| upload_error(&error, limit, rules.name);
    let mut is_found = false;
    while let Some(mut field) = copy.wait(multipart.next_field()).await?.map_err(part_error)? {
        if is_found || field.name() != Some(part) {
            let name = field.name().unwrap_or_default();
            let message = format!("the part `{name}` is not allowed; the body has one part, `{part}`");
            return Err(ApiError::new(Code::UnknownPart, message).field(name).allowed([part]));
        }
        is_found = true;
        while let Some(chunk) = copy.wait(field.chunk()).await?.map_err(part_error)? {
            if copy.bytes + chunk.len() as u64 > rules.limit {
                return Err(too_many_bytes(rules.name, rules.max_bytes()));
            }
            copy.write(chunk).await?;
        }
    }
    if is_found {
        return Ok(());
    }
    let message = format!("the part `{part}` is missing");
    Err(ApiError::new(Code::MissingImage, message).field(part).allowed([part]))
}

/// Reads and discards the rest of the request, then returns `error`.
pub(crate) async fn refuse<T>(request: Request, error: ApiError) -> Result<T> {
    discard_body(request).await;
    Err(error)
}

/// A copy in progress.
struct Copy<'a> {
    folder: &'a SpoolFolder,
    rules: SpoolRules,
    file: File,
    hasher: Sha256,
    bytes: u64,
    head: Vec<u8>,
    started: Instant,
}

impl<'a> Copy<'a> {
    async fn start(folder: &'a SpoolFolder, rules: SpoolRules) -> Result<Self> {
        let path = folder.path().to_owned();
        let created = tokio::task::spawn_blocking(move || tempfile::tempfile_in(path)).await;
        let file = File::from_std(created.map_err(ApiError::internal)?.map_err(ApiError::internal)?);
        let head = Vec::with_capacity(rules.head);
        Ok(Self { folder, rules, file, hasher: Sha256::new(), bytes: 0, head, started: Instant::now() })
    }

    /// Waits for the next bytes, as long as the minimum rate allows.
    async fn wait<T>(&self, next: impl Future<Output = T>) -> Result<T> {
        let time_limit = SLOW_START + Duration::from_secs(self.bytes / MIN_RATE);
        let next = tokio::time::timeout(time_limit.saturating_sub(self.started.elapsed()), next);
        next.await.map_err(|_| self.rules.too_slow())
    }

    async fn write(&mut self, chunk: Bytes) -> Result<()> {
        let missing = self.rules.head.saturating_sub(self.head.len());
        self.head.extend(chunk.iter().take(missing));
        if missing > 0 && self.head.len() == self.rules.head {
            (self.rules.check_head)(&self.head)?;
        }
        self.hasher.update(&chunk);
        self.file.write_all(&chunk).await.map_err(ApiError::internal)?;
        self.folder.check_after_write(self.bytes, chunk.len() as u64)?;
        self.bytes += chunk.len() as u64;
        Ok(())
    }

    async fn finish(self) -> Result<Spooled> {
        let Self { rules, mut file, hasher, bytes, head, .. } = self;
        (rules.check_head)(&head)?;
        file.flush().await.map_err(ApiError::internal)?;
        file.rewind().await.map_err(ApiError::internal)?;
        Ok(Spooled { file, sha256: hasher.finalize().into(), bytes })
    }
}
