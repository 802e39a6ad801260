//! Deletes faces, images and crawls permanently. Returns the blobs that no row needs any more.
//!
//! Blobs are content-addressed, so two rows can share a blob. A key is returned only if no
//! remaining row refers to it. The caller deletes the blobs after its commit (`Store::drop_blobs`).
//! If the caller crashes before that, the sweep deletes the blobs, because their keys are recorded.
use crate::blob_deletions::enqueue_blob_deletions;
use crate::crawled_videos::cancel_videos_of_crawl;
use crate::pages::lock_crawl;
use crate::videos::delete_videos;
use crate::{Store, StoreError, tombstones};
use domain::Reason;
use sqlx::PgConnection;
use uuid::Uuid;

impl Store {
    /// Deletes a face and decrements the face count of its image. Returns the face's blob keys.
    pub async fn delete_face(&self, conn: &mut PgConnection, id: Uuid) -> Result<Vec<String>, StoreError> {
        let (image, chip, crop): (Uuid, Option<String>, Option<String>) = sqlx::query_as(
            "delete from faces where id = $1 and ($2::uuid is null or collection_id = $2)
                 returning image_id, chip_key, crop_key",
        )
        .bind(id)
        .bind(self.collection_scope)
        .fetch_optional(&mut *conn)
        .await?
        .ok_or_else(|| StoreError::not_found("face", id))?;
        sqlx::query("update images set face_count = greatest(face_count - 1, 0) where id = $1")
            .bind(image)
            .execute(&mut *conn)
            .await?;
        tombstones::set(conn, &[id], &[image]).await?;
        enqueue_blob_deletions(conn, [chip, crop].into_iter().flatten().collect()).await
    }

    /// Deletes an image with its faces and sources. Ledger rows that led to the image are kept, but
    /// no longer refer to it. Returns the blob keys to delete after the commit.
    pub async fn delete_image(&self, conn: &mut PgConnection, id: Uuid) -> Result<Vec<String>, StoreError> {
        let found: Vec<Uuid> = sqlx::query_scalar(
            "select id from images where id = $1 and ($2::uuid is null or collection_id = $2) for update",
        )
        .bind(id)
        .bind(self.collection_scope)
        .fetch_all(&mut *conn)
        .await?;
        tombstones::set(conn, &found, &found).await?;
        let (deleted, keys) = delete_images(conn, &found).await?;
        if deleted == 0 {
            return Err(StoreError::not_found("image", id));
        }
        enqueue_blob_deletions(conn, keys).await
    }

    /// Deletes a crawl with its pages and ledger rows. Returns the blob keys to delete after the
    /// commit.
    ///
    /// The crawl's images, their sources and its videos are kept; live videos are cancelled. With
    /// `with_images`, images and videos that no other crawl found are deleted too.
    pub async fn delete_crawl(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        with_images: bool,
    ) -> Result<Vec<String>, StoreError> {
        self.crawl_in(conn, id).await?;
        lock_crawl(conn, id).await?;
        let mut keys = Vec::new();
        if with_images {
            let images = images_of_crawl_alone(conn, id).await?;
            tombstones::set(conn, &images, &images).await?;
            keys = delete_images(conn, &images).await?.1;
            let videos = videos_of_crawl_alone(conn, id).await?;
            keys.extend(delete_videos(conn, &videos).await?);
        }
        // Without the crawl, a worker would fetch them without its rules.
        cancel_videos_of_crawl(conn, id, &Reason::Cancelled, i64::MAX).await?;
        // Sightings without an image are useless without their ledger row.
        sqlx::query("delete from image_sources where crawl_id = $1 and image_id is null")
            .bind(id)
            .execute(&mut *conn)
            .await?;
        sqlx::query("delete from crawls where id = $1").bind(id).execute(&mut *conn).await?;
        enqueue_blob_deletions(conn, keys).await
    }
}

/// Returns the images that no other crawl found, in the order of their ids.
pub(crate) async fn images_of_crawl_alone(
    conn: &mut PgConnection,
    crawl: Uuid,
) -> Result<Vec<Uuid>, StoreError> {
    // A source without a crawl belongs to a deleted crawl whose images were kept.
    Ok(sqlx::query_scalar(
        "select distinct u.image_id from image_urls u
         where u.crawl_id = $1 and u.image_id is not null
           and not exists (select 1 from image_urls o where o.image_id = u.image_id and o.crawl_id <> $1)
           and not exists (select 1 from image_sources s
                           where s.image_id = u.image_id and s.crawl_id is distinct from $1)
         order by 1",
    )
    .bind(crawl)
    .fetch_all(conn)
    .await?)
}

/// Locks and returns the videos of a crawl of whose files no other crawl has an address.
pub(crate) async fn videos_of_crawl_alone(
    conn: &mut PgConnection,
    crawl: Uuid,
) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "select v.id from videos v
         where v.crawl_id = $1
           and not exists (select 1 from videos o where o.original_id = v.id and o.crawl_id is distinct from $1)
         order by v.id for update",
    )
    .bind(crawl)
    .fetch_all(conn)
    .await?)
}

/// Deletes images with all dependent rows. Returns their number and all blob keys of the images and
/// their faces.
pub(crate) async fn delete_images(
    conn: &mut PgConnection,
    ids: &[Uuid],
) -> Result<(u64, Vec<String>), StoreError> {
    // Locks the images first, in id order, so that no transaction can add a face to them.
    sqlx::query("select 1 from images where id = any($1) order by id for update")
        .bind(ids)
        .execute(&mut *conn)
        .await?;
    let faces: Vec<(Option<String>, Option<String>)> =
        sqlx::query_as("delete from faces where image_id = any($1) returning chip_key, crop_key")
            .bind(ids)
            .fetch_all(&mut *conn)
            .await?;
    let thumbnails: Vec<Option<String>> =
        sqlx::query_scalar("delete from images where id = any($1) returning thumbnail_key")
            .bind(ids)
            .fetch_all(conn)
            .await?;
    let deleted = thumbnails.len() as u64;
    let keys = faces.into_iter().flat_map(|(chip, crop)| [chip, crop]).chain(thumbnails).flatten();
    Ok((deleted, keys.collect()))
}
