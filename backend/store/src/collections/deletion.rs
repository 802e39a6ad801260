//! Deletes a collection: it becomes inaccessible at once, and its content is erased in steps.
//!
//! `mark_deleted` is fast for a collection of any size. Then call `erase_step` until `is_done` is
//! set. Each call needs its own small transaction. An interrupted call can be repeated.
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::collections::DEFAULT_COLLECTION;
use crate::db::deletions::set_tombstones;
use crate::images::delete_images;
use crate::store::Collections;
use crate::videos::delete_video_rows;
use sqlx::PgConnection;
use uuid::Uuid;

/// Number of images per call. A transaction can delete these images, with their faces and blobs,
/// within seconds on any blob store.
const IMAGES_PER_STEP: i64 = 200;
/// Number of videos per call. Each has at most 20,000 tracks, which are deleted with it.
const VIDEOS_PER_STEP: i64 = 10;
/// Number of ledger rows per call.
const ROWS_PER_STEP: i64 = 5_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasureStep {
    /// Number of deleted rows: images (without their faces), or rows of another table.
    pub rows: u64,
    /// Blobs to delete after the commit.
    pub blobs: Vec<String>,
    /// Whether the collection row is deleted, by this step or earlier.
    pub is_done: bool,
}

impl Collections<'_> {
    /// Makes a collection inaccessible, releases its name and deletes its keys. If it is `default`,
    /// an empty successor inherits its name, settings, keys and webhook secrets.
    ///
    /// # Errors
    /// Fails with `NotFound` if the collection does not exist or was already deleted.
    pub async fn mark_deleted(self, conn: &mut PgConnection, id: Uuid) -> Result<(), StoreError> {
        let name: Option<String> = sqlx::query_scalar(
            "select name from collections
             where id = $1 and deleting_at is null and ($2::uuid is null or id = $2) for update",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        let name = name.ok_or_else(|| StoreError::not_found("collection", id))?;
        set_tombstones(conn, &[id], &[]).await?;
        // Renames the collection, so that its name becomes available. The new name cannot collide
        // with a name that a user would choose.
        sqlx::query("update collections set deleting_at = now(), name = $2 where id = $1")
            .bind(id)
            .bind(format!("deleting_{}", id.simple()))
            .execute(&mut *conn)
            .await?;
        if name == DEFAULT_COLLECTION {
            let successor = Uuid::now_v7();
            sqlx::query(
                "insert into collections (id, name, quality_profile, match_threshold, retention_days)
                 select $2, $3, quality_profile, match_threshold, retention_days from collections where id = $1",
            )
            .bind(id)
            .bind(successor)
            .bind(&name)
            .execute(&mut *conn)
            .await?;
            crate::collections::move_webhook_secrets(conn, id, successor).await?;
            sqlx::query("update api_keys set collection_id = $2 where collection_id = $1")
                .bind(id)
                .bind(successor)
                .execute(conn)
                .await?;
        } else {
            sqlx::query("delete from api_keys where collection_id = $1").bind(id).execute(conn).await?;
        }
        Ok(())
    }

    /// Returns the crawls of a deleted collection that must be cancelled. These are live crawls,
    /// and crawls that have ended but have a scheduled next run.
    pub async fn crawls_to_cancel(self, collection: Uuid) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from crawls where collection_id = $1
               and (state in ('running', 'paused') or next_run_at is not null) order by id",
        )
        .bind(collection)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Erases a part of a deleted collection, and in the last step the collection itself. Its
    /// crawls must be cancelled first; while a crawl is live, `is_done` remains `false`.
    ///
    /// # Errors
    /// Fails with `Conflict` if the collection is not deleted.
    pub async fn erase_step(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
    ) -> Result<ErasureStep, StoreError> {
        let is_deleted: Option<bool> =
            sqlx::query_scalar("select deleting_at is not null from collections where id = $1")
                .bind(collection)
                .fetch_optional(&mut *conn)
                .await?;
        match is_deleted {
            None => return Ok(ErasureStep { is_done: true, ..ErasureStep::default() }),
            Some(false) => return Err(StoreError::Conflict("the collection has not been deleted".into())),
            Some(true) => {}
        }
        let images: Vec<Uuid> =
            sqlx::query_scalar("select id from images where collection_id = $1 order by id limit $2")
                .bind(collection)
                .bind(IMAGES_PER_STEP)
                .fetch_all(&mut *conn)
                .await?;
        if !images.is_empty() {
            let (rows, keys) = delete_images(conn, &images).await?;
            return Ok(ErasureStep {
                rows,
                blobs: enqueue_blob_deletions(conn, keys).await?,
                is_done: false,
            });
        }
        let videos: Vec<Uuid> =
            sqlx::query_scalar("select id from videos where collection_id = $1 order by id limit $2")
                .bind(collection)
                .bind(VIDEOS_PER_STEP)
                .fetch_all(&mut *conn)
                .await?;
        if !videos.is_empty() {
            let keys = delete_video_rows(conn, &videos).await?;
            let rows = videos.len() as u64;
            return Ok(ErasureStep {
                rows,
                blobs: enqueue_blob_deletions(conn, keys).await?,
                is_done: false,
            });
        }
        for sql in DELETIONS {
            let rows = sqlx::query(sql)
                .bind(collection)
                .bind(ROWS_PER_STEP)
                .execute(&mut *conn)
                .await?
                .rows_affected();
            if rows > 0 {
                return Ok(ErasureStep { rows, ..ErasureStep::default() });
            }
        }
        // A transaction that will add rows waits for this lock, and then finds no collection.
        sqlx::query("select 1 from collections where id = $1 for update")
            .bind(collection)
            .execute(&mut *conn)
            .await?;
        let result = sqlx::query(
            "delete from collections where id = $1
               and not exists (select 1 from images where collection_id = $1)
               and not exists (select 1 from crawls where collection_id = $1)
               and not exists (select 1 from videos where collection_id = $1)",
        )
        .bind(collection)
        .execute(conn)
        .await?;
        let rows = result.rows_affected();
        Ok(ErasureStep { rows, is_done: rows == 1, ..ErasureStep::default() })
    }
}

/// Statements that delete everything except images, dependent rows first, so that no cascade
/// deletes many rows. Live crawls are not deleted: they must be cancelled first.
const DELETIONS: [&str; 10] = [
    "delete from watch_outbox where id in (select id from watch_outbox where collection_id = $1 limit $2)",
    "delete from alerts where id in (select id from alerts where collection_id = $1 limit $2)",
    "delete from watchlists where id in (select id from watchlists where collection_id = $1 limit $2)",
    "delete from subjects where id in (select id from subjects where collection_id = $1 limit $2)",
    "delete from suppressions where id in (select id from suppressions where collection_id = $1 limit $2)",
    "delete from image_sources where id in (
         select s.id from image_sources s join crawls r on r.id = s.crawl_id
         where r.collection_id = $1 and r.finished_at is not null limit $2)",
    "delete from image_urls where id in (
         select u.id from image_urls u join crawls r on r.id = u.crawl_id
         where r.collection_id = $1 and r.finished_at is not null limit $2)",
    "delete from pages where id in (
         select p.id from pages p join crawls r on r.id = p.crawl_id
         where r.collection_id = $1 and r.finished_at is not null limit $2)",
    "delete from crawl_directories where ctid = any(array(
         select d.ctid from crawl_directories d join crawls r on r.id = d.crawl_id
         where r.collection_id = $1 and r.finished_at is not null limit $2))",
    "delete from crawls where id in (
         select id from crawls where collection_id = $1 and finished_at is not null limit $2)",
];
