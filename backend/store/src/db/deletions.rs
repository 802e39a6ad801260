//! Shared parts of all deletions: tombstones, and the remaining work of the caller.
use crate::StoreError;
use sqlx::PgConnection;
use std::collections::BTreeSet;
use uuid::Uuid;

/// Jobs whose records contain an erased URL or its host, by their crawls and ledger rows, and by
/// their videos.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "clear the records of these jobs in the same transaction"]
pub struct LedgerJobs {
    pub crawls: BTreeSet<Uuid>,
    pub rows: BTreeSet<Uuid>,
    pub videos: BTreeSet<Uuid>,
}

impl LedgerJobs {
    pub(crate) fn extend(&mut self, other: Self) {
        self.crawls.extend(other.crawls);
        self.rows.extend(other.rows);
        self.videos.extend(other.videos);
    }
}

/// The remaining work for the caller of a deletion.
#[derive(Clone, Debug, Default)]
pub struct ErasureOutcome {
    /// Blobs to delete after the commit.
    pub blobs: Vec<String>,
    /// Jobs whose records contain an erased URL. Clear these records in the same transaction.
    pub jobs: LedgerJobs,
}

/// Sets tombstones for the rows that this transaction deletes, and for replaced smaller versions of
/// `images`. `images` are the images that lose a face or are deleted. Call it before the deletion.
pub(crate) async fn set_tombstones(
    conn: &mut PgConnection,
    ids: &[Uuid],
    images: &[Uuid],
) -> Result<(), StoreError> {
    sqlx::query(
        "insert into tombstones (digest)
         select sha256(uuid_send(id)) from unnest($1::uuid[]) as deleted (id)
         union select digest from superseded_images where image_id = any($2)
         on conflict do nothing",
    )
    .bind(ids)
    .bind(images)
    .execute(conn)
    .await?;
    Ok(())
}
