//! Blob storage for crops, chips, thumbnails and videos, with content-addressed keys.
pub mod deletions;
mod folder;
pub mod parts;
pub mod reserve;
use crate::StoreError;
use crate::blobs::folder::TempFile;
use crate::blobs::reserve::{BYTES_PER_CHECK, DiskReserve};
use bytes::Bytes;
use folder::Folder;
pub use folder::{Disk, LocalDisk};
use futures::stream;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::buffered::BufWriter;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, Error, ObjectStore, ObjectStoreExt, RetryConfig};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use url::Url;

const MAX_CONCURRENT_DELETIONS: usize = 16;

/// How long requests to a failing bucket are retried. Callers wait during this time, some with an
/// open transaction. The queue also retries jobs.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_RETRIES: usize = 3;

/// Number of bytes that are read from a file at a time.
const PIECE_BYTES: usize = 256 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBlob {
    pub key: String,
    pub modified: OffsetDateTime,
}

/// A blob store: a folder or an S3 bucket. A blob's key consists of its SHA-256, a kind and an
/// extension. Every key that a caller passes is checked against this pattern, so no key can refer
/// to a file outside the folder or prefix.
#[derive(Clone)]
pub struct Blobs {
    objects: Arc<dyn ObjectStore>,
    /// Prefix of the keys in a bucket; empty for a folder.
    prefix: Path,
    /// Writes the blobs of a folder; `None` for a bucket.
    folder: Option<Folder>,
    reserve: Option<DiskReserve>,
}

impl Blobs {
    /// Opens a blob store: `file:///path`, a plain path, or `s3://bucket/prefix`. Credentials,
    /// region and endpoint of a bucket come from the usual `AWS_` variables. A missing folder is
    /// created. Files are written atomically, and they are durable when the call that writes them
    /// returns. Only their owner can read them and enter the created folders.
    ///
    /// # Errors
    /// Fails with `Invalid` if the URL has a different scheme or no bucket. Fails with `Blob` if
    /// the folder cannot be created or the `AWS_` variables are not sufficient.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, &[])
    }

    /// Works like [`Self::open`], with values of `AWS_` variables that override the environment
    /// (for example from a configuration file).
    ///
    /// # Errors
    /// Fails with the errors of [`Self::open`]. Fails with `Blob` if a variable is unknown; the
    /// error contains its name.
    pub fn open_with(url: &str, variables: &[(&str, String)]) -> Result<Self, StoreError> {
        match url.split_once("://") {
            Some(("s3", _)) => Self::open_bucket(url, variables),
            Some(("file", _)) => {
                let path = Url::parse(url).ok().and_then(|url| url.to_file_path().ok());
                Self::open_folder(&path.ok_or_else(|| invalid_url(url))?, Arc::new(LocalDisk))
            }
            Some(_) => Err(invalid_url(url)),
            None if url.is_empty() => Err(invalid_url(url)),
            None => Self::open_folder(std::path::Path::new(url), Arc::new(LocalDisk)),
        }
    }

    /// Opens a folder. `disk` contains the calls that make files durable.
    ///
    /// # Errors
    /// Fails with the errors of [`Self::open`].
    pub fn open_folder(path: &std::path::Path, disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let blob_error = |error: &dyn fmt::Display| StoreError::Blob(format!("{}: {error}", path.display()));
        // Only the folder itself is private: Postgres may run as another user in a folder beside
        // it.
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| blob_error(&error))?;
        }
        folder::create_folder(path).map_err(|error| blob_error(&error))?;
        let objects = LocalFileSystem::new_with_prefix(path).map_err(|error| blob_error(&error))?;
        Ok(Self {
            objects: Arc::new(objects.with_automatic_cleanup(true)),
            prefix: Path::default(),
            folder: Some(Folder::new(path, disk)),
            reserve: None,
        })
    }

    fn open_bucket(url: &str, variables: &[(&str, String)]) -> Result<Self, StoreError> {
        let parsed_url = Url::parse(url).map_err(|_| invalid_url(url))?;
        let bucket = parsed_url.host_str().ok_or_else(|| invalid_url(url))?;
        let prefix = Path::from_url_path(parsed_url.path()).map_err(|_| invalid_url(url))?;
        // The HTTP client has no default cryptography provider. Another part of the process may
        // already have installed one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = AmazonS3Builder::from_env();
        for (name, value) in variables {
            builder = builder.with_config(name.to_ascii_lowercase().parse().map_err(blob_error)?, value);
        }
        let backoff = BackoffConfig { max_backoff: RETRY_TIMEOUT / 4, ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT };
        let objects = builder.with_bucket_name(bucket).with_retry(retry).build().map_err(blob_error)?;
        Ok(Self { objects: Arc::new(objects), prefix, folder: None, reserve: None })
    }

    /// Sets the free disk space, in bytes, below which nothing is stored, but at most a tenth of
    /// the disk. A bucket has no reserve.
    #[must_use]
    pub fn with_reserve(self, bytes: u64) -> Self {
        let reserve =
            self.folder.as_ref().map(|folder| DiskReserve::new(folder.root(), bytes).limited_to_tenth());
        Self { reserve, ..self }
    }

    /// Works like [`Self::with_reserve`], without the limit of a tenth.
    #[must_use]
    pub fn with_exact_reserve(self, bytes: u64) -> Self {
        let reserve = self.folder.as_ref().map(|folder| DiskReserve::new(folder.root(), bytes));
        Self { reserve, ..self }
    }

    pub(super) fn without_reserve(&self) -> Self {
        Self { reserve: None, ..self.clone() }
    }

    /// Checks that something can be stored. Jobs call it before they fetch a file.
    ///
    /// # Errors
    /// Fails with [`StoreError::DiskFull`].
    pub fn check_space(&self) -> Result<(), StoreError> {
        self.reserve.as_ref().map_or(Ok(()), |reserve| reserve.check(0))
    }

    /// Writes and deletes a small blob, to check that the store is available and writable.
    ///
    /// # Errors
    /// Fails with `Blob` and the store's error.
    pub async fn check(&self) -> Result<(), StoreError> {
        // A full disk does not prevent searches and deletions.
        let key = self.without_reserve().put("probe", "txt", Bytes::from_static(b"facecrawl")).await?;
        self.delete(&[key]).await
    }

    /// Stores `bytes` as `kind/ab/<sha256>.<extension>` and returns the key; `ab` are the first two
    /// digits of the hash. Equal bytes are stored once.
    ///
    /// Each kind has at most 256 folders. With a second level, most blobs of a small store would be
    /// alone in a folder. That folder would take more time and space than the blob.
    ///
    /// # Errors
    /// Fails with `Invalid` unless `kind` and `extension` are 1 to 16 characters `a-z` or `0-9`,
    /// and with `DiskFull` if the reserve of disk space is used.
    pub async fn put(&self, kind: &str, extension: &str, bytes: Bytes) -> Result<String, StoreError> {
        if !is_word(kind) || !is_word(extension) {
            return Err(StoreError::Invalid(format!(
                "the kind {kind:?} or the extension {extension:?} of a blob is invalid: 1 to 16 characters of a-z and 0-9 are allowed"
            )));
        }
        let key = Self::key_of(kind, extension, &Sha256::digest(&bytes).into());
        self.put_as(&key, bytes).await?;
        Ok(key)
    }

    /// Returns the key under which [`Self::put`] stores content with this SHA-256.
    pub(super) fn key_of(kind: &str, extension: &str, sha256: &[u8; 32]) -> String {
        let sha256 = hex::encode(sha256);
        format!("{kind}/{}/{sha256}.{extension}", &sha256[..2])
    }

    /// Stores `bytes` under `key`, which must be a key that this or an earlier release of
    /// [`Self::put`] returns for them.
    async fn put_as(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        self.check_space()?;
        let location = self.location(key)?;
        let Some(folder) = self.folder.clone() else {
            self.objects.put(&location, bytes.into()).await.map_err(blob_error)?;
            return Ok(());
        };
        let key = key.to_owned();
        let task = tokio::task::spawn_blocking(move || {
            let mut temp = folder.create_temp(&key)?;
            temp.file.write_all(&bytes)?;
            Ok::<_, std::io::Error>((folder, temp))
        });
        let (folder, temp) = task.await.map_err(blob_error)?.map_err(blob_error)?;
        folder.persist(temp).await
    }

    /// Starts writing a blob in pieces, under a key that this or an earlier release of
    /// [`Self::put`] returns for the content.
    pub(crate) async fn writer(&self, key: &str) -> Result<BlobWriter, StoreError> {
        self.check_space()?;
        BlobWriter::begin(self, key, self.location(key)?).await
    }

    /// Returns `true` if the key is that of a blob with this SHA-256.
    pub(crate) fn is_key_of(key: &str, sha256: impl AsRef<[u8]>) -> bool {
        key.contains(&hex::encode(sha256))
    }

    /// Returns the size of a blob in bytes, and its content in pieces; `None` if it does not exist.
    pub(crate) async fn stream(
        &self,
        key: &str,
    ) -> Result<Option<(u64, BoxStream<'static, Result<Bytes, StoreError>>)>, StoreError> {
        match self.objects.get(&self.location(key)?).await {
            Ok(object) => Ok(Some((object.meta.size, object.into_stream().map_err(blob_error).boxed()))),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(blob_error(error)),
        }
    }

    /// Returns a blob, or `None` if it does not exist.
    ///
    /// # Errors
    /// Fails with `Invalid` if [`Self::put`] cannot have returned the key.
    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        match self.objects.get(&self.location(key)?).await {
            Ok(object) => Ok(Some(object.bytes().await.map_err(blob_error)?)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(blob_error(error)),
        }
    }

    /// Returns some bytes of a blob, or `None` if it does not exist.
    pub(super) async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, StoreError> {
        match self.objects.get_range(&self.location(key)?, range).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(blob_error(error)),
        }
    }

    /// Stores a file of any size under the key that [`Self::put`] would return, and returns the
    /// key. `sha256` is that of the content. The file is read from its current position.
    ///
    /// # Errors
    /// Fails with `Blob` if the file cannot be read or the store fails, and with `DiskFull` if the
    /// reserve of disk space is used. Nothing is stored then.
    pub async fn put_file(
        &self,
        kind: &str,
        extension: &str,
        sha256: &[u8; 32],
        file: &mut (impl AsyncRead + Unpin),
    ) -> Result<String, StoreError> {
        let key = Self::key_of(kind, extension, sha256);
        let mut writer = self.writer(&key).await?;
        let (mut piece, mut unchecked_bytes) = (vec![0; PIECE_BYTES], 0);
        let result = async {
            loop {
                if unchecked_bytes >= BYTES_PER_CHECK {
                    self.check_space()?;
                    unchecked_bytes = 0;
                }
                match file.read(&mut piece).await.map_err(blob_error)? {
                    0 => return Ok(()),
                    bytes => {
                        writer.write(&piece[..bytes]).await?;
                        unchecked_bytes += bytes as u64;
                    }
                }
            }
        };
        match result.await {
            Ok(()) => writer.finish().await?,
            Err(error) => {
                let _ = writer.discard().await;
                return Err(error);
            }
        }
        Ok(key)
    }

    /// Writes a blob to a file. Returns its size in bytes, or `None` if it does not exist.
    ///
    /// # Errors
    /// Fails with `Blob` if the store fails or the file cannot be written.
    pub async fn read_into(
        &self,
        key: &str,
        file: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Option<u64>, StoreError> {
        let Some((_, mut chunks)) = self.stream(key).await? else { return Ok(None) };
        let mut bytes = 0;
        while let Some(chunk) = chunks.try_next().await? {
            file.write_all(&chunk).await.map_err(blob_error)?;
            bytes += chunk.len() as u64;
        }
        file.flush().await.map_err(blob_error)?;
        Ok(Some(bytes))
    }

    /// Deletes blobs. Missing blobs are ignored.
    ///
    /// # Errors
    /// Fails with `Invalid`, and deletes nothing, if a key cannot come from [`Self::put`].
    pub async fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        let locations = keys.iter().map(|key| self.location(key)).collect::<Result<Vec<_>, _>>()?;
        stream::iter(locations)
            .map(|location| async move {
                match self.objects.delete(&location).await {
                    Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                    Err(error) => Err(blob_error(error)),
                }
            })
            .buffer_unordered(MAX_CONCURRENT_DELETIONS)
            .try_collect()
            .await
    }

    /// Returns `true` if the blob exists.
    ///
    /// # Errors
    /// Fails with `Invalid` if [`Self::put`] cannot have returned the key.
    pub async fn exists(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.size(key).await?.is_some())
    }

    /// Returns the size of a blob in bytes, or `None` if it does not exist.
    pub(super) async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        match self.objects.head(&self.location(key)?).await {
            Ok(object) => Ok(Some(object.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(blob_error(error)),
        }
    }

    /// Deletes the incomplete files that killed processes left, and returns their number.
    /// Files that are being written, here or in another process, are kept. In a file system
    /// without locks, only files that were last changed before `before` are deleted. With
    /// `dry_run`, deletes nothing. A bucket has no such files.
    ///
    /// # Errors
    /// Fails with `Blob` and the error of the file system.
    pub async fn remove_abandoned(&self, before: OffsetDateTime, dry_run: bool) -> Result<u64, StoreError> {
        let Some(folder) = self.folder.clone() else { return Ok(0) };
        let task = tokio::task::spawn_blocking(move || folder.remove_abandoned(before.into(), dry_run));
        task.await.map_err(blob_error)?.map_err(blob_error)
    }

    /// Lists all blobs. Other files in the same location are omitted.
    pub fn list(&self) -> BoxStream<'_, Result<ListedBlob, StoreError>> {
        let prefix = (!self.prefix.as_ref().is_empty()).then_some(&self.prefix);
        let blobs = self.objects.list(prefix).map_err(blob_error).try_filter_map(move |object| async move {
            let parts = object.location.prefix_match(&self.prefix);
            let key =
                parts.map(|parts| parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/"));
            let modified = object.last_modified.timestamp_micros();
            let modified = OffsetDateTime::from_unix_timestamp_nanos(i128::from(modified) * 1000);
            Ok(key
                .filter(|key| is_key(key))
                .zip(modified.ok())
                .map(|(key, modified)| ListedBlob { key, modified }))
        });
        blobs.boxed()
    }

    fn location(&self, key: &str) -> Result<Path, StoreError> {
        if !is_key(key) {
            return Err(StoreError::Invalid(format!("{key:?} is not the key of a blob")));
        }
        Ok(key.split('/').fold(self.prefix.clone(), |path, part| path.join(part)))
    }
}

fn is_word(text: &str) -> bool {
    (1..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// Returns `true` for a key of [`Blobs::put`], and for a key that an earlier release created with
/// two levels of folders (`kind/ab/cd/<sha256>.<extension>`).
fn is_key(key: &str) -> bool {
    let parts: Vec<&str> = key.split('/').collect();
    let (kind, first, second, file) = match parts[..] {
        [kind, first, file] => (kind, first, None, file),
        [kind, first, second, file] => (kind, first, Some(second), file),
        _ => return false,
    };
    let Some((sha256, extension)) = file.split_once('.') else { return false };
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    is_word(kind)
        && is_word(extension)
        && sha256.len() == 64
        && sha256.bytes().all(is_hex)
        && first == &sha256[..2]
        && second.is_none_or(|second| second == &sha256[2..4])
}

fn invalid_url(url: &str) -> StoreError {
    StoreError::Invalid(format!(
        "{url:?} is not a valid blob store; allowed: a folder, file:///folder or s3://bucket/prefix"
    ))
}

fn blob_error(error: impl fmt::Display) -> StoreError {
    StoreError::Blob(error.to_string())
}

/// Size of a part of an upload to a bucket, which is held in memory. S3 rejects smaller parts.
const PART_BYTES: usize = 5 << 20;

/// A blob that is being written. It exists only after [`BlobWriter::finish`]. Dropping it discards
/// a blob of a folder; call [`BlobWriter::discard`] for a bucket.
pub(crate) struct BlobWriter(Target);

enum Target {
    Folder { folder: Folder, temp: TempFile, file: File },
    Bucket(Box<BufWriter>),
}

impl BlobWriter {
    async fn begin(blobs: &Blobs, key: &str, location: Path) -> Result<Self, StoreError> {
        let Some(folder) = blobs.folder.clone() else {
            let writer = BufWriter::with_capacity(blobs.objects.clone(), location, PART_BYTES);
            return Ok(Self(Target::Bucket(Box::new(writer.with_max_concurrency(1)))));
        };
        let key = key.to_owned();
        let task = tokio::task::spawn_blocking(move || {
            let temp = folder.create_temp(&key)?;
            let file = File::from_std(temp.file.try_clone()?);
            Ok::<_, std::io::Error>(Self(Target::Folder { folder, temp, file }))
        });
        task.await.map_err(blob_error)?.map_err(blob_error)
    }

    pub(crate) async fn write(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        let result = match &mut self.0 {
            Target::Folder { file, .. } => file.write_all(piece).await,
            Target::Bucket(writer) => writer.write_all(piece).await,
        };
        result.map_err(blob_error)
    }

    /// Completes the blob and makes it durable.
    pub(crate) async fn finish(self) -> Result<(), StoreError> {
        match self.0 {
            Target::Folder { folder, temp, mut file } => {
                file.flush().await.map_err(blob_error)?;
                folder.persist(temp).await
            }
            Target::Bucket(mut writer) => match writer.shutdown().await {
                Ok(()) => Ok(()),
                Err(error) => {
                    let _ = writer.abort().await;
                    Err(blob_error(error))
                }
            },
        }
    }

    pub(crate) async fn discard(self) -> Result<(), StoreError> {
        match self.0 {
            Target::Folder { .. } => Ok(()),
            // Without this call, an incomplete upload would remain in the bucket.
            Target::Bucket(mut writer) => writer.abort().await.map_err(blob_error),
        }
    }
}
