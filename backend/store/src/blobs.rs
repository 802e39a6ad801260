//! Crops, chips and thumbnails, by content-addressed key.
use crate::StoreError;
use bytes::Bytes;

/// A folder or an S3 bucket.
#[derive(Clone)]
pub struct Blobs {
    _todo: (),
}

impl Blobs {
    /// `file:///path`, a plain path, or `s3://bucket/prefix` (credentials from the usual `AWS_` variables).
    pub fn open(_url: &str) -> Result<Self, StoreError> {
        todo!()
    }
    /// Stores `bytes` under `kind/ab/cd/<sha256>.<extension>` and answers the key; storing the same bytes twice is one blob.
    pub async fn put(&self, _kind: &str, _extension: &str, _bytes: Bytes) -> Result<String, StoreError> {
        todo!()
    }
    /// Reads a blob; `None` when it is gone.
    pub async fn get(&self, _key: &str) -> Result<Option<Bytes>, StoreError> {
        todo!()
    }
    /// Deletes blobs; those already gone are fine.
    pub async fn delete(&self, _keys: &[String]) -> Result<(), StoreError> {
        todo!()
    }
}
