//! Crops, chips and thumbnails, by content-addressed key.
use crate::StoreError;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, Error, ObjectStore, ObjectStoreExt, RetryConfig};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use url::Url;

/// Deletions under way at once.
const DELETIONS_AT_ONCE: usize = 16;

/// How long a bucket that fails is asked again. Callers wait meanwhile, some with a transaction open; jobs have retries of their own.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRIES: usize = 3;

/// A blob as it lies there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// When it was last written.
    pub modified: OffsetDateTime,
}

/// A folder or an S3 bucket.
///
/// A blob's key is made of its own SHA-256 and of words that are checked, and every key that comes in is checked against that pattern:
/// no key can point outside the folder or the prefix.
#[derive(Clone)]
pub struct Blobs {
    objects: Arc<dyn ObjectStore>,
    /// What comes before the key in a bucket; empty for a folder.
    prefix: Path,
}

impl Blobs {
    /// `file:///path`, a plain path, or `s3://bucket/prefix` (credentials, region and endpoint from the usual `AWS_` variables). A folder is
    /// made when it is not there; files appear in it whole or not at all.
    ///
    /// # Errors
    /// `Invalid` for a URL of another scheme or without a bucket, `Blob` when the folder cannot be made or the `AWS_` variables do not do.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, &[])
    }

    /// The same with values of `AWS_` variables that win over the environment's (a configuration file may hold them too).
    ///
    /// # Errors
    /// Those of [`Self::open`]; `Blob` names a variable that is none.
    pub fn open_with(url: &str, variables: &[(&str, String)]) -> Result<Self, StoreError> {
        match url.split_once("://") {
            Some(("s3", _)) => Self::open_bucket(url, variables),
            Some(("file", _)) => {
                let path = Url::parse(url).ok().and_then(|url| url.to_file_path().ok());
                Self::open_folder(&path.ok_or_else(|| invalid(url))?)
            }
            Some(_) => Err(invalid(url)),
            None if url.is_empty() => Err(invalid(url)),
            None => Self::open_folder(std::path::Path::new(url)),
        }
    }

    fn open_folder(path: &std::path::Path) -> Result<Self, StoreError> {
        let failed = |error: &dyn std::fmt::Display| StoreError::Blob(format!("{}: {error}", path.display()));
        std::fs::create_dir_all(path).map_err(|error| failed(&error))?;
        let objects = LocalFileSystem::new_with_prefix(path).map_err(|error| failed(&error))?;
        Ok(Self { objects: Arc::new(objects.with_automatic_cleanup(true)), prefix: Path::default() })
    }

    fn open_bucket(url: &str, variables: &[(&str, String)]) -> Result<Self, StoreError> {
        let parsed = Url::parse(url).map_err(|_| invalid(url))?;
        let bucket = parsed.host_str().ok_or_else(|| invalid(url))?;
        let prefix = Path::from_url_path(parsed.path()).map_err(|_| invalid(url))?;
        // The HTTP client brings no cryptography of its own; another part of the process may have installed this one before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = AmazonS3Builder::from_env();
        for (name, value) in variables {
            builder = builder.with_config(name.to_ascii_lowercase().parse().map_err(failed)?, value);
        }
        let backoff = BackoffConfig { max_backoff: PATIENCE / 4, ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: PATIENCE };
        let objects = builder.with_bucket_name(bucket).with_retry(retry).build().map_err(failed)?;
        Ok(Self { objects: Arc::new(objects), prefix })
    }

    /// Writes a small blob and removes it: whether the store is there, and takes what it is given.
    ///
    /// # Errors
    /// `Blob` says what the store said.
    pub async fn check(&self) -> Result<(), StoreError> {
        let key = self.put("probe", "txt", Bytes::from_static(b"facecrawl")).await?;
        self.delete(&[key]).await
    }

    /// Stores `bytes` under `kind/ab/cd/<sha256>.<extension>` and answers the key; storing the same bytes twice is one blob.
    ///
    /// # Errors
    /// `Invalid` unless `kind` and `extension` are 1 to 16 of `a-z` and `0-9`.
    pub async fn put(&self, kind: &str, extension: &str, bytes: Bytes) -> Result<String, StoreError> {
        if !is_word(kind) || !is_word(extension) {
            return Err(StoreError::Invalid(format!(
                "{kind:?} and {extension:?} cannot be a blob's kind and extension: 1 to 16 of a-z and 0-9 are allowed"
            )));
        }
        let sha256 = hex::encode(Sha256::digest(&bytes));
        let key = format!("{kind}/{}/{}/{sha256}.{extension}", &sha256[..2], &sha256[2..4]);
        self.put_as(&key, bytes).await?;
        Ok(key)
    }

    /// Stores `bytes` under the key that [`Self::put`] would give them.
    pub(crate) async fn put_as(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        self.objects.put(&self.location(key)?, bytes.into()).await.map_err(failed)?;
        Ok(())
    }

    /// Whether the key is that of this content.
    pub(crate) fn is_of(key: &str, bytes: &[u8]) -> bool {
        key.contains(&hex::encode(Sha256::digest(bytes)))
    }

    /// Reads a blob; `None` when it is gone.
    ///
    /// # Errors
    /// `Invalid` for a key that `put` could not have answered.
    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        match self.objects.get(&self.location(key)?).await {
            Ok(found) => Ok(Some(found.bytes().await.map_err(failed)?)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Deletes blobs; those already gone are fine.
    ///
    /// # Errors
    /// `Invalid`, before anything is deleted, for a key that `put` could not have answered.
    pub async fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        let locations = keys.iter().map(|key| self.location(key)).collect::<Result<Vec<_>, _>>()?;
        stream::iter(locations)
            .map(|location| async move {
                match self.objects.delete(&location).await {
                    Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                    Err(error) => Err(failed(error)),
                }
            })
            .buffer_unordered(DELETIONS_AT_ONCE)
            .try_collect()
            .await
    }

    /// Whether a blob is there.
    ///
    /// # Errors
    /// `Invalid` for a key that `put` could not have answered.
    pub async fn exists(&self, key: &str) -> Result<bool, StoreError> {
        match self.objects.head(&self.location(key)?).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Every blob; other files in the same place are left out.
    pub fn list(&self) -> BoxStream<'_, Result<Listed, StoreError>> {
        let prefix = (!self.prefix.as_ref().is_empty()).then_some(&self.prefix);
        let listed = self.objects.list(prefix).map_err(failed).try_filter_map(move |object| async move {
            let parts = object.location.prefix_match(&self.prefix);
            let key =
                parts.map(|parts| parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/"));
            let modified = object.last_modified.timestamp_micros();
            let modified = OffsetDateTime::from_unix_timestamp_nanos(i128::from(modified) * 1000);
            Ok(key
                .filter(|key| is_key(key))
                .zip(modified.ok())
                .map(|(key, modified)| Listed { key, modified }))
        });
        listed.boxed()
    }

    fn location(&self, key: &str) -> Result<Path, StoreError> {
        if !is_key(key) {
            return Err(StoreError::Invalid(format!("{key:?} is not a blob's key")));
        }
        Ok(key.split('/').fold(self.prefix.clone(), |path, part| path.join(part)))
    }
}

fn is_word(text: &str) -> bool {
    (1..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

fn is_key(key: &str) -> bool {
    let parts: Vec<&str> = key.split('/').collect();
    let &[kind, first, second, file] = parts.as_slice() else { return false };
    let Some((sha256, extension)) = file.split_once('.') else { return false };
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    is_word(kind)
        && is_word(extension)
        && sha256.len() == 64
        && sha256.bytes().all(is_hex)
        && first == &sha256[..2]
        && second == &sha256[2..4]
}

fn invalid(url: &str) -> StoreError {
    StoreError::Invalid(format!(
        "{url:?} is not a blob store: a folder, file:///folder or s3://bucket/prefix is allowed"
    ))
}

fn failed(error: Error) -> StoreError {
    StoreError::Blob(error.to_string())
}
