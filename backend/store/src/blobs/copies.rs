//! Copies the blobs that rows refer to into a backup, and back from it.
use crate::blobs::Blobs;
use crate::{Store, StoreError};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

/// Number of blobs that one query looks up.
const CHUNK: i64 = 500;
const MAX_CONCURRENT_COPIES: usize = 16;
/// Size in bytes above which a blob counts as large, and the maximum number of concurrent copies of
/// large blobs. A copy into a bucket holds a part of the blob in memory.
const LARGE: u64 = 1 << 20;
const MAX_CONCURRENT_LARGE_COPIES: usize = 2;
/// Maximum number of reported keys of missing blobs.
pub const MAX_REPORTED_KEYS: usize = 20;

/// Numbers of blobs by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Copied {
    pub copied: u64,
    /// Number of blobs that existed at the destination.
    pub there: u64,
    /// Number of blobs removed from the copy, because no row refers to them.
    pub removed: u64,
    /// Number of referenced blobs that are missing or damaged.
    pub missing: u64,
    /// Keys of some missing blobs.
    pub missing_keys: Vec<String>,
}

enum Outcome {
    Copied,
    There,
    Missing(String),
}

impl Store {
    /// Copies every blob that a row refers to, unless it exists at the destination. Equal keys mean
    /// equal content.
    ///
    /// # Errors
    /// Fails with the errors of the database and of both blob stores. Blobs that were already
    /// copied are kept and not copied again.
    pub async fn copy_blobs(&self, from: &Blobs, to: &Blobs) -> Result<Copied, StoreError> {
        let (mut done, mut after) = (Copied::default(), String::new());
        let large = Semaphore::new(MAX_CONCURRENT_LARGE_COPIES);
        loop {
            let keys = self.blob_keys(&after, CHUNK).await?;
            let Some(last) = keys.last() else { return Ok(done) };
            after.clone_from(last);
            let copied =
                stream::iter(keys).map(|key| copy(from, to, key, &large)).buffered(MAX_CONCURRENT_COPIES);
            for outcome in copied.try_collect::<Vec<_>>().await? {
                match outcome {
                    Outcome::Copied => done.copied += 1,
                    Outcome::There => done.there += 1,
                    Outcome::Missing(key) => {
                        done.missing += 1;
                        if done.missing_keys.len() < MAX_REPORTED_KEYS {
                            done.missing_keys.push(key);
                        }
                    }
                }
            }
        }
    }

    /// Deletes from a copy of the blob store all blobs that no row refers to, so that the copy
    /// contains no erased content. Returns the number deleted.
    pub async fn prune_copies(&self, copies: &Blobs) -> Result<u64, StoreError> {
        let mut removed = 0;
        let mut chunks = copies.list().map_ok(|blob| blob.key).try_chunks(CHUNK as usize);
        while let Some(chunk) = chunks.next().await {
            let mut conn = self.pool.acquire().await?;
            let orphans = self.orphans(&mut conn, chunk.map_err(|error| error.1)?).await?;
            copies.delete(&orphans).await?;
            removed += orphans.len() as u64;
        }
        Ok(removed)
    }
}

async fn copy(from: &Blobs, to: &Blobs, key: String, large: &Semaphore) -> Result<Outcome, StoreError> {
    if to.exists(&key).await? {
        return Ok(Outcome::There);
    }
    let Some((size, mut pieces)) = from.stream(&key).await? else { return Ok(Outcome::Missing(key)) };
    let _permit = if size > LARGE { large.acquire().await.ok() } else { None };
    let (mut writer, mut hasher) = (to.writer(&key).await?, Sha256::new());
    let read = async {
        while let Some(piece) = pieces.try_next().await? {
            hasher.update(&piece);
            writer.write(&piece).await?;
        }
        Ok(())
    };
    let read: Result<(), StoreError> = read.await;
    // Damaged content would have a different key.
    if read.is_ok() && Blobs::is_key_of(&key, hasher.finalize()) {
        writer.finish().await?;
        return Ok(Outcome::Copied);
    }
    let discarded = writer.discard().await;
    read.and(discarded).map(|()| Outcome::Missing(key))
}
