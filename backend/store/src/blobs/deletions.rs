//! Deletes blobs safely: a blob exists as long as a row refers to it, and is deleted afterwards.
//!
//! A transaction that deletes a row also records the row's blobs in `blob_deletions`. After the
//! commit the blobs are deleted, by the caller or by the periodic sweep. Each blob is deleted under
//! the lock of its key's bucket, and only if no row refers to it at that time. The blobs of an
//! incoming image are written before its rows. The image's transaction acquires the same locks in
//! shared mode, and rewrites those blobs that were recorded for deletion in the meantime. So a blob
//! with a committed row always exists, and a blob without rows is deleted.
//!
//! A blob with several files ([`super::parts`]) is recorded too if a row that used one of them is
//! deleted. The files that other rows still use are first written to a new blob. These rows then
//! refer to the new blob, and the recorded one is deleted like any other.
//!
//! Lock order: images and faces first, then the buckets in ascending order, then the rows of
//! `blob_deletions` by key.
use crate::blobs::parts;
use crate::store::BlobKeys;
use crate::{Blobs, StoreError};
use futures::stream;
use futures::stream::{StreamExt, TryStreamExt};
use serde::Serialize;
use sha2::{Digest, Sha256};
use sqlx::PgConnection;
use std::collections::{BTreeMap, BTreeSet};
use time::OffsetDateTime;
use tokio::sync::Semaphore;

/// First half of the advisory lock keys. The second half is the bucket.
const LOCK_CLASS: i32 = 0x626c_6f62;
/// Number of buckets. It is small enough that an image with thousands of faces needs few locks, and
/// large enough that a deletion rarely blocks an incoming image.
const BUCKETS: u8 = 64;
/// Maximum number of recorded blobs per batch.
const RECORDS_PER_BATCH: i64 = 500;
/// Number of failed batches after which [`BlobKeys::delete_pending`] ends.
const MAX_FAILED_BATCHES: usize = 3;
/// Number of blobs whose remaining parts are rewritten before they are deleted.
const REWRITES_PER_BATCH: usize = 100;

impl BlobKeys<'_> {
    /// Locks the blobs against deletion until the transaction ends. Returns those that may already
    /// have been deleted. The caller must write them again before the commit.
    ///
    /// Every transaction that inserts rows for newly written blobs must call this, after it writes
    /// the rows and before it records blobs for deletion.
    pub async fn prevent_deletion(
        self,
        conn: &mut PgConnection,
        keys: &[String],
    ) -> Result<Vec<String>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let buckets: BTreeSet<i32> = keys.iter().map(|key| bucket(key)).collect();
        sqlx::query(
            "select pg_advisory_xact_lock_shared($1, bucket) from unnest($2::int[]) as buckets (bucket)",
        )
        .bind(LOCK_CLASS)
        .bind(buckets.into_iter().collect::<Vec<i32>>())
        .execute(&mut *conn)
        .await?;
        // The rows are locked in order, which prevents deadlocks.
        Ok(sqlx::query_scalar(
            "with locked as materialized (
                 select key from blob_deletions where key = any($1) order by key for update)
             delete from blob_deletions where key in (select key from locked) returning key",
        )
        .bind(keys)
        .fetch_all(conn)
        .await?)
    }

    /// Deletes those of the recorded blobs that no row refers to. If rows still use some files of a
    /// blob, first writes those files to a new blob. Returns the number of deleted blobs. Call it
    /// after the commit that recorded them. Blobs that cannot be deleted remain recorded.
    ///
    /// # Errors
    /// Fails with the errors of the database and of the blob store. If single blobs cannot be
    /// rewritten, deletes the others first.
    pub async fn delete(self, blobs: &Blobs, keys: &[String]) -> Result<u64, StoreError> {
        let requested = self.requested_at(keys).await?;
        let (mut deleted_count, shared) = self.delete_unreferenced(blobs, &requested, false).await?;
        let mut first_error = None;
        for keys in shared.chunks(REWRITES_PER_BATCH) {
            let (incomplete, error) = self.rewrite_remaining_parts(blobs, keys).await?;
            first_error = first_error.or(error);
            let rewritten =
                requested.iter().filter(|(key, _)| keys.contains(key) && !incomplete.contains(*key));
            let rewritten = rewritten.map(|(key, at)| (key.clone(), *at)).collect();
            deleted_count += self.delete_unreferenced(blobs, &rewritten, true).await?.0;
        }
        first_error.map_or(Ok(deleted_count), Err)
    }

    /// Deletes those of the blobs that no row refers to. Each comes with the time at which it was
    /// recorded. Returns their number, and the blobs that must be rewritten because rows may use
    /// only some parts. With `is_rewritten`, assumes that rows use all parts of the others, and
    /// returns none.
    async fn delete_unreferenced(
        self,
        blobs: &Blobs,
        requested: &BTreeMap<String, OffsetDateTime>,
        is_rewritten: bool,
    ) -> Result<(u64, Vec<String>), StoreError> {
        let mut buckets: BTreeMap<i32, Vec<&str>> = BTreeMap::new();
        for key in requested.keys() {
            buckets.entry(bucket(key)).or_default().push(key);
        }
        let (mut deleted_count, mut shared) = (0, Vec::new());
        for (bucket, keys) in buckets {
            let mut tx = self.0.begin().await?;
            sqlx::query("select pg_advisory_xact_lock($1, $2)")
                .bind(LOCK_CLASS)
                .bind(bucket)
                .execute(tx.conn())
                .await?;
            // Locks the rows first. If another transaction is recording one of the blobs at this
            // moment, the next statement then sees that transaction's deletions.
            let recorded: Vec<(String, OffsetDateTime)> = sqlx::query_as(
                "select key, requested_at from blob_deletions where key = any($1) and deleted_at is null order by key for update",
            )
            .bind(keys)
            .fetch_all(tx.conn())
            .await?;
            let recorded_keys = recorded.iter().map(|(key, _)| key.clone()).collect();
            let unreferenced_keys = unreferenced(tx.conn(), recorded_keys).await?;
            let referenced = recorded.into_iter().filter(|(key, _)| !unreferenced_keys.contains(key));
            let (partly_used, used): (Vec<_>, Vec<_>) =
                referenced.partition(|(key, _)| !is_rewritten && parts::has_parts(key));
            shared.extend(partly_used.into_iter().map(|(key, _)| key));
            // If a blob was recorded again, one of its parts may have been deleted after the parts
            // were rewritten. Its record remains for the sweep.
            let used = used.iter().filter(|(key, at)| requested.get(key) == Some(at));
            sqlx::query("delete from blob_deletions where key = any($1)")
                .bind(used.map(|(key, _)| key.as_str()).collect::<Vec<&str>>())
                .execute(tx.conn())
                .await?;
            blobs.delete(&unreferenced_keys).await?;
            sqlx::query("update blob_deletions set deleted_at = now() where key = any($1)")
                .bind(&unreferenced_keys)
                .execute(tx.conn())
                .await?;
            tx.commit().await?;
            deleted_count += unreferenced_keys.len() as u64;
        }
        Ok((deleted_count, shared))
    }

    /// Returns when each of the blobs was recorded for deletion. Omits those that are not recorded.
    async fn requested_at(self, keys: &[String]) -> Result<BTreeMap<String, OffsetDateTime>, StoreError> {
        let recorded: Vec<(String, OffsetDateTime)> = sqlx::query_as(
            "select key, requested_at from blob_deletions where key = any($1) and deleted_at is null",
        )
        .bind(keys)
        .fetch_all(&self.0.pool)
        .await?;
        Ok(recorded.into_iter().collect())
    }

    /// Deletes all blobs recorded before the call, and removes records of blobs that were deleted a
    /// day ago. Returns the number deleted.
    ///
    /// # Errors
    /// Fails with the errors of [`Self::delete`], after it tried the other blobs. Ends early if
    /// several batches fail.
    pub async fn delete_pending(self, blobs: &Blobs) -> Result<u64, StoreError> {
        let (mut deleted_count, mut errors) = (0, Vec::new());
        let mut after = String::new();
        loop {
            let keys: Vec<String> = sqlx::query_scalar(
                "select key from blob_deletions where deleted_at is null and key > $1 order by key limit $2",
            )
            .bind(&after)
            .bind(RECORDS_PER_BATCH)
            .fetch_all(&self.0.pool)
            .await?;
            let Some(last) = keys.last() else { break };
            after.clone_from(last);
            match self.delete(blobs, &keys).await {
                Ok(deleted) => deleted_count += deleted,
                Err(error) => errors.push(error),
            }
            if errors.len() >= MAX_FAILED_BATCHES {
                break;
            }
        }
        if let Some(first) = errors.into_iter().next() {
            return Err(first);
        }
        sqlx::query("delete from blob_deletions where deleted_at < now() - interval '1 day'")
            .execute(&self.0.pool)
            .await?;
        Ok(deleted_count)
    }

    /// Records for deletion: blobs that no row refers to, and blobs of which rows use only some
    /// files.
    pub async fn record_deletions(
        self,
        conn: &mut PgConnection,
        keys: Vec<String>,
    ) -> Result<(), StoreError> {
        enqueue_blob_deletions(conn, keys).await.map(drop)
    }

    /// Returns those of the blobs that no row refers to.
    pub async fn orphans(
        self,
        conn: &mut PgConnection,
        keys: Vec<String>,
    ) -> Result<Vec<String>, StoreError> {
        unreferenced(conn, keys).await
    }

    /// Returns the distinct keys that rows refer to, in order, after the key `after`.
    pub async fn keys(self, after: &str, limit: i64) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar(
            "select key from (
                 (select distinct parts_key as key from images where parts_key > $1 order by 1 limit $2)
                 union (select distinct parts_key from faces where parts_key > $1 order by 1 limit $2)
                 union (select distinct chip_key from faces where chip_key > $1 order by 1 limit $2)
                 union (select distinct crop_key from faces where crop_key > $1 order by 1 limit $2)
                 union (select distinct thumbnail_key from images where thumbnail_key > $1 order by 1 limit $2)
                 union (select distinct source_key from videos where source_key > $1 order by 1 limit $2)) keys
             order by key limit $2",
        )
        .bind(after)
        .bind(limit)
        .fetch_all(&self.0.pool)
        .await?)
    }
}

/// Records the blobs of rows that this transaction deletes. Returns the distinct keys that no other
/// row visible to this transaction refers to, and those of all blobs with several files, from which
/// parts may have to be removed.
pub(crate) async fn enqueue_blob_deletions(
    conn: &mut PgConnection,
    mut keys: Vec<String>,
) -> Result<Vec<String>, StoreError> {
    if keys.is_empty() {
        return Ok(keys);
    }
    keys.sort_unstable();
    keys.dedup();
    sqlx::query(
        "insert into blob_deletions (key) select key from unnest($1::text[]) as keys (key)
         on conflict (key) do update set requested_at = now(), deleted_at = null",
    )
    .bind(&keys)
    .execute(&mut *conn)
    .await?;
    let (mut with_parts, single): (Vec<String>, Vec<String>) =
        keys.into_iter().partition(|key| parts::has_parts(key));
    with_parts.extend(unreferenced(conn, single).await?);
    Ok(with_parts)
}

/// Returns the distinct keys of `keys` that no row refers to.
pub(crate) async fn unreferenced(
    conn: &mut PgConnection,
    keys: Vec<String>,
) -> Result<Vec<String>, StoreError> {
    if keys.is_empty() {
        return Ok(keys);
    }
    Ok(sqlx::query_scalar(
        "select distinct key from unnest($1::text[]) as candidates (key)
         where not exists (select 1 from images where parts_key = key)
           and not exists (select 1 from faces where parts_key = key)
           and not exists (select 1 from faces where chip_key = key)
           and not exists (select 1 from faces where crop_key = key)
           and not exists (select 1 from images where thumbnail_key = key)
           and not exists (select 1 from videos where source_key = key)
         order by key",
    )
    .bind(keys)
    .fetch_all(conn)
    .await?)
}

fn bucket(key: &str) -> i32 {
    i32::from(Sha256::digest(key.as_bytes())[0] % BUCKETS)
}

/// Number of blobs that one query looks up.
const KEYS_PER_QUERY: i64 = 500;
const MAX_CONCURRENT_COPIES: usize = 16;
/// Size of a large blob in bytes. A copy into a bucket holds a part of the blob in memory.
const LARGE_BLOB_BYTES: u64 = 1 << 20;
const MAX_CONCURRENT_LARGE_COPIES: usize = 2;
/// Maximum number of reported keys of missing blobs.
pub const MAX_REPORTED_KEYS: usize = 20;

/// Numbers of copied blobs, by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopyTotals {
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

enum BlobCopy {
    Copied,
    AlreadyPresent,
    Missing(String),
}

impl BlobKeys<'_> {
    /// Copies every blob that a row refers to, unless it exists at the destination. Equal keys mean
    /// equal content.
    ///
    /// # Errors
    /// Fails with the errors of the database and of both blob stores. Blobs that were already
    /// copied are kept and not copied again.
    pub async fn copy(self, from: &Blobs, to: &Blobs) -> Result<CopyTotals, StoreError> {
        let (mut totals, mut after) = (CopyTotals::default(), String::new());
        let large = Semaphore::new(MAX_CONCURRENT_LARGE_COPIES);
        loop {
            let keys = self.keys(&after, KEYS_PER_QUERY).await?;
            let Some(last) = keys.last() else { return Ok(totals) };
            after.clone_from(last);
            let outcomes =
                stream::iter(keys).map(|key| copy(from, to, key, &large)).buffered(MAX_CONCURRENT_COPIES);
            for outcome in outcomes.try_collect::<Vec<_>>().await? {
                match outcome {
                    BlobCopy::Copied => totals.copied += 1,
                    BlobCopy::AlreadyPresent => totals.there += 1,
                    BlobCopy::Missing(key) => {
                        totals.missing += 1;
                        if totals.missing_keys.len() < MAX_REPORTED_KEYS {
                            totals.missing_keys.push(key);
                        }
                    }
                }
            }
        }
    }

    /// Deletes from a copy of the blob store all blobs that no row refers to, so that the copy
    /// contains no erased content. Returns the number deleted.
    pub async fn prune_copies(self, copies: &Blobs) -> Result<u64, StoreError> {
        let mut removed = 0;
        let mut chunks = copies.list().map_ok(|blob| blob.key).try_chunks(KEYS_PER_QUERY as usize);
        while let Some(chunk) = chunks.next().await {
            let mut conn = self.0.pool.acquire().await?;
            let orphans = self.orphans(&mut conn, chunk.map_err(|error| error.1)?).await?;
            copies.delete(&orphans).await?;
            removed += orphans.len() as u64;
        }
        Ok(removed)
    }
}

async fn copy(from: &Blobs, to: &Blobs, key: String, large: &Semaphore) -> Result<BlobCopy, StoreError> {
    if to.exists(&key).await? {
        return Ok(BlobCopy::AlreadyPresent);
    }
    let Some((size, mut pieces)) = from.stream(&key).await? else { return Ok(BlobCopy::Missing(key)) };
    let _permit = if size > LARGE_BLOB_BYTES { large.acquire().await.ok() } else { None };
    let (mut writer, mut hasher) = (to.writer(&key).await?, Sha256::new());
    let transfer = async {
        while let Some(piece) = pieces.try_next().await? {
            hasher.update(&piece);
            writer.write(&piece).await?;
        }
        Ok(())
    };
    let result: Result<(), StoreError> = transfer.await;
    // Damaged content would have a different key.
    if result.is_ok() && Blobs::is_key_of(&key, hasher.finalize()) {
        writer.finish().await?;
        return Ok(BlobCopy::Copied);
    }
    let discard_result = writer.discard().await;
    result.and(discard_result).map(|()| BlobCopy::Missing(key))
}
