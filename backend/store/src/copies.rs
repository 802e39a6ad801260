//! Copies of the blobs that rows name: into a backup, and out of one.
use crate::blobs::Blobs;
use crate::{Store, StoreError};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

/// Blobs that are looked up in one go.
const CHUNK: i64 = 500;
/// Copies under way at once.
const AT_ONCE: usize = 16;
/// Keys of missing blobs that are told.
const TOLD: usize = 20;

/// What became of the blobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Copied {
    /// Blobs that were copied.
    pub copied: u64,
    /// Blobs that were there already.
    pub there: u64,
    /// Blobs that were removed from the copy, because no row names them.
    pub removed: u64,
    /// Blobs that a row names and that cannot be had: gone, or not what their name says.
    pub missing: u64,
    /// Keys of some of them.
    pub missing_keys: Vec<String>,
}

enum Outcome {
    Copied,
    There,
    Missing(String),
}

impl Store {
    /// Copies every blob that a row names from one place to another, unless it is there: the same key is the same content.
    ///
    /// # Errors
    /// Those of the database and of both places; what was copied until then stays, and is not copied again.
    pub async fn copy_blobs(&self, from: &Blobs, to: &Blobs) -> Result<Copied, StoreError> {
        let (mut done, mut after) = (Copied::default(), String::new());
        loop {
            let keys = self.blob_keys(&after, CHUNK).await?;
            let Some(last) = keys.last() else { return Ok(done) };
            after.clone_from(last);
            let copied = stream::iter(keys).map(|key| copy(from, to, key)).buffered(AT_ONCE);
            for outcome in copied.try_collect::<Vec<_>>().await? {
                match outcome {
                    Outcome::Copied => done.copied += 1,
                    Outcome::There => done.there += 1,
                    Outcome::Missing(key) => {
                        done.missing += 1;
                        if done.missing_keys.len() < TOLD {
                            done.missing_keys.push(key);
                        }
                    }
                }
            }
        }
    }

    /// Removes from a copy what no row names any more, so that what was erased does not live on in it; answers how many.
    ///
    /// # Errors
    /// Those of the database and of the copy.
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

async fn copy(from: &Blobs, to: &Blobs, key: String) -> Result<Outcome, StoreError> {
    if to.exists(&key).await? {
        return Ok(Outcome::There);
    }
    // Damaged content would get another key.
    match from.get(&key).await? {
        Some(bytes) if Blobs::is_of(&key, &bytes) => {
            to.put_as(&key, bytes).await?;
            Ok(Outcome::Copied)
        }
        _ => Ok(Outcome::Missing(key)),
    }
}
