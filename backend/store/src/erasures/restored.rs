//! Uses the tombstones to find deleted data that a restored backup contains, and deletes it again.
use super::{CarriedOut, Plan};
use crate::erasures::traces::LedgerJobs;
use crate::videos::frames_of;
use crate::{Store, StoreError};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

/// Maximum number of faces, images, subjects and videos (each) per call of [`Store::erase_again`].
const BATCH: i64 = 500;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasedAgain {
    /// Number of faces, including those of whole images.
    pub faces: u64,
    /// Number of whole images.
    pub images: u64,
    pub subjects: u64,
    pub videos: u64,
    /// Number of pages and image URLs whose addresses were erased.
    pub addresses: u64,
    /// Blobs to delete after the commit.
    pub blobs: Vec<String>,
    /// Jobs whose records contain an erased URL. Clear these records in the same transaction.
    pub jobs: LedgerJobs,
}

impl ErasedAgain {
    pub fn is_empty(&self) -> bool {
        self.faces + self.images + self.subjects + self.videos + self.addresses == 0
    }
}

impl Store {
    /// Deletes rows of the collection that have tombstones, as an erasure would. Call it until the
    /// result is empty. Reads every row of the collection, without a statement timeout.
    pub async fn erase_again(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
    ) -> Result<ErasedAgain, StoreError> {
        sqlx::query("set local statement_timeout = 0").execute(&mut *conn).await?;
        self.lock_suppressions(conn, collection, true).await?;
        let mut images = with_tombstones(conn, "images", collection).await?;
        let faces = with_tombstones(conn, "faces", collection).await?;
        let subjects = with_tombstones(conn, "subjects", collection).await?;
        let mut videos = Vec::new();
        // A video has many frames, so it is deleted after them.
        if (images.len() as i64) < BATCH {
            videos = with_tombstones(conn, "videos", collection).await?;
            images.extend(frames_of(conn, &videos).await?);
        }
        // The erasure of an image also erases the address of its row, so the rest is found later.
        let mut addresses = Vec::new();
        if images.is_empty() {
            for table in ["pages", "image_urls"] {
                addresses.extend(addresses_with_tombstones(conn, table, collection).await?);
            }
        }
        let mut plan = Plan { videos, ..Plan::of(conn, collection, &images, &faces, subjects).await? };
        plan.addresses.clone_from(&addresses);
        let (faces, images) = (plan.faces.len() as u64, plan.images.len() as u64);
        let (subjects, videos) = (plan.subjects.len() as u64, plan.videos.len() as u64);
        let CarriedOut { blobs, jobs } = self.carry_out(conn, &plan).await?;
        let addresses = addresses.len() as u64;
        Ok(ErasedAgain { faces, images, subjects, videos, addresses, blobs, jobs })
    }
}

/// Returns the rows of the collection in a table that have tombstones.
async fn with_tombstones(
    conn: &mut PgConnection,
    table: &'static str,
    collection: Uuid,
) -> Result<Vec<Uuid>, StoreError> {
    // Built at run time from the name of the table, which is one of four constants.
    let sql = format!(
        "select r.id from {table} r join tombstones t on t.digest = sha256(uuid_send(r.id))
         where r.collection_id = $1 order by r.id limit $2"
    );
    Ok(sqlx::query_scalar(AssertSqlSafe(sql)).bind(collection).bind(BATCH).fetch_all(conn).await?)
}

/// Returns the addresses of ended rows of a ledger that have tombstones and are not erased.
async fn addresses_with_tombstones(
    conn: &mut PgConnection,
    table: &'static str,
    collection: Uuid,
) -> Result<Vec<String>, StoreError> {
    // Only the rows that led to no image can still be erased by their address.
    let stored_nothing = if table == "image_urls" { "and r.image_id is null" } else { "" };
    // Built at run time from the name of the table, which is one of two constants.
    let sql = format!(
        "select distinct r.url from crawls c join {table} r on r.crawl_id = c.id
         join tombstones t on t.digest = sha256(uuid_send(r.id))
         where c.collection_id = $1 and r.state <> 'queued' and r.url <> 'erased:' || r.id {stored_nothing}
         order by r.url limit $2"
    );
    Ok(sqlx::query_scalar(AssertSqlSafe(sql)).bind(collection).bind(BATCH).fetch_all(conn).await?)
}
