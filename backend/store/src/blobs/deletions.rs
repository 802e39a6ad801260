//! Deletes blobs safely: a blob exists as long as a row refers to it, and is deleted afterwards.
//!
//! A transaction that deletes a row also records the row's blobs in `blob_deletions`. After the
//! commit the blobs are deleted, by the caller or by the periodic sweep. Each blob is deleted under
//! the lock of its key's bucket, and only if no row refers to it at that time. The blobs of an
//! incoming image are written before its rows. The image's transaction acquires the same locks in
//! shared mode, and rewrites those blobs that were recorded for deletion in the meantime. So a blob
//! with a committed row always exists, and a blob without rows is deleted.
//!
//! Lock order: images and faces first, then the buckets in ascending order, then the rows of
//! `blob_deletions` by key.
use crate::{Blobs, Store, StoreError};
use sha2::{Digest, Sha256};
use sqlx::PgConnection;
use std::collections::{BTreeMap, BTreeSet};

/// First half of the advisory lock keys. The second half is the bucket.
const LOCKS: i32 = 0x626c_6f62;
/// Number of buckets. It is small enough that an image with thousands of faces needs few locks, and
/// large enough that a deletion rarely blocks an incoming image.
const BUCKETS: u8 = 64;
/// Maximum number of recorded blobs per batch.
const BATCH: i64 = 500;

impl Store {
    /// Locks the blobs against deletion until the transaction ends. Returns those that may already
    /// have been deleted. The caller must write them again before the commit.
    ///
    /// Every transaction that inserts rows for newly written blobs must call this, after it writes
    /// the rows and before it records blobs for deletion.
    pub async fn keep_blobs(
        &self,
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
        .bind(LOCKS)
        .bind(buckets.into_iter().collect::<Vec<i32>>())
        .execute(&mut *conn)
        .await?;
        sqlx::query("select 1 from blob_deletions where key = any($1) order by key for update")
            .bind(keys)
            .execute(&mut *conn)
            .await?;
        Ok(sqlx::query_scalar("delete from blob_deletions where key = any($1) returning key")
            .bind(keys)
            .fetch_all(conn)
            .await?)
    }

    /// Deletes those of the recorded blobs that no row refers to. Returns the number deleted. Call
    /// it after the commit that recorded them. Blobs that cannot be deleted remain recorded.
    pub async fn drop_blobs(&self, blobs: &Blobs, keys: &[String]) -> Result<u64, StoreError> {
        let mut buckets: BTreeMap<i32, Vec<&str>> = BTreeMap::new();
        for key in keys {
            buckets.entry(bucket(key)).or_default().push(key);
        }
        let mut dropped = 0;
        for (bucket, keys) in buckets {
            let mut tx = self.begin().await?;
            sqlx::query("select pg_advisory_xact_lock($1, $2)")
                .bind(LOCKS)
                .bind(bucket)
                .execute(tx.conn())
                .await?;
            // Locks the rows first. If another transaction is recording one of the blobs at this
            // moment, the next statement then sees that transaction's deletions.
            let listed: Vec<String> = sqlx::query_scalar(
                "select key from blob_deletions where key = any($1) and deleted_at is null order by key for update",
            )
            .bind(keys)
            .fetch_all(tx.conn())
            .await?;
            let doomed = unreferenced(tx.conn(), listed.clone()).await?;
            sqlx::query("delete from blob_deletions where key = any($1) and key <> all($2)")
                .bind(&listed)
                .bind(&doomed)
                .execute(tx.conn())
                .await?;
            blobs.delete(&doomed).await?;
            sqlx::query("update blob_deletions set deleted_at = now() where key = any($1)")
                .bind(&doomed)
                .execute(tx.conn())
                .await?;
            tx.commit().await?;
            dropped += doomed.len() as u64;
        }
        Ok(dropped)
    }

    /// Deletes all blobs recorded before the call, and removes records of blobs that were deleted a
    /// day ago. Returns the number deleted.
    pub async fn delete_pending_blobs(&self, blobs: &Blobs) -> Result<u64, StoreError> {
        let mut dropped = 0;
        let mut after = String::new();
        loop {
            let keys: Vec<String> = sqlx::query_scalar(
                "select key from blob_deletions where deleted_at is null and key > $1 order by key limit $2",
            )
            .bind(&after)
            .bind(BATCH)
            .fetch_all(&self.pool)
            .await?;
            let Some(last) = keys.last() else { break };
            after.clone_from(last);
            dropped += self.drop_blobs(blobs, &keys).await?;
        }
        sqlx::query("delete from blob_deletions where deleted_at < now() - interval '1 day'")
            .execute(&self.pool)
            .await?;
        Ok(dropped)
    }
}

impl Store {
    /// Records blobs for deletion. As far as the caller knows, no row refers to them.
    pub async fn record_blob_deletions(
        &self,
        conn: &mut PgConnection,
        keys: Vec<String>,
    ) -> Result<(), StoreError> {
        enqueue_blob_deletions(conn, keys).await.map(drop)
    }

    /// Returns those of the blobs that no row refers to.
    pub async fn orphans(
        &self,
        conn: &mut PgConnection,
        keys: Vec<String>,
    ) -> Result<Vec<String>, StoreError> {
        unreferenced(conn, keys).await
    }

    /// Returns the distinct keys that rows refer to, in order, after the key `after`.
    pub async fn blob_keys(&self, after: &str, limit: i64) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar(
            "select key from (
                 (select chip_key as key from faces where chip_key > $1 order by 1 limit $2)
                 union (select crop_key from faces where crop_key > $1 order by 1 limit $2)
                 union (select thumbnail_key from images where thumbnail_key > $1 order by 1 limit $2)
                 union (select source_key from videos where source_key > $1 order by 1 limit $2)) keys
             order by key limit $2",
        )
        .bind(after)
        .bind(limit)
        .fetch_all(&self.pool)
        .await?)
    }
}

/// Records that this transaction deletes rows that refer to these blobs. Returns the distinct keys
/// that no other row visible to this transaction refers to.
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
    unreferenced(conn, keys).await
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
        "select distinct key from unnest($1::text[]) as gone (key)
         where not exists (select 1 from faces where chip_key = key)
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
