//! Deleting for good: rows go, index entries with them, and the caller gets the blobs that nothing needs any more.
//!
//! Blobs are content-addressed, so two rows can share one; a key is returned only when no row that is left refers to it. The caller
//! drops the blobs after its commit (`Store::drop_blobs`); what a crash in between leaves is written down, and the sweep drops it.
use crate::condemned::condemn;
use crate::pages::lock_crawl;
use crate::{Store, StoreError, tombstones};
use sqlx::PgConnection;
use uuid::Uuid;

impl Store {
    /// Deletes a face and counts it out of its image; returns its blob keys.
    pub async fn delete_face(&self, conn: &mut PgConnection, id: Uuid) -> Result<Vec<String>, StoreError> {
        let (image, chip, crop): (Uuid, Option<String>, Option<String>) = sqlx::query_as(
            "delete from faces where id = $1 and ($2::uuid is null or collection_id = $2)
                 returning image_id, chip_key, crop_key",
        )
        .bind(id)
        .bind(self.reach)
        .fetch_optional(&mut *conn)
        .await?
        .ok_or_else(|| StoreError::not_found("face", id))?;
        sqlx::query("update images set face_count = greatest(face_count - 1, 0) where id = $1")
            .bind(image)
            .execute(&mut *conn)
            .await?;
        tombstones::set(conn, &[id], &[image]).await?;
        condemn(conn, [chip, crop].into_iter().flatten().collect()).await
    }

    /// Deletes an image with its faces and sources; returns the blob keys to drop after the commit. Ledger rows that led to it stay, without
    /// the link.
    pub async fn delete_image(&self, conn: &mut PgConnection, id: Uuid) -> Result<Vec<String>, StoreError> {
        let found: Vec<Uuid> = sqlx::query_scalar(
            "select id from images where id = $1 and ($2::uuid is null or collection_id = $2) for update",
        )
        .bind(id)
        .bind(self.reach)
        .fetch_all(&mut *conn)
        .await?;
        tombstones::set(conn, &found, &found).await?;
        let (deleted, keys) = delete_images(conn, &found).await?;
        if deleted == 0 {
            return Err(StoreError::not_found("image", id));
        }
        condemn(conn, keys).await
    }

    /// Removes the crawl with its pages and ledger; its images stay (with their sources), unless `with_images`:
    /// then those that no other crawl found go too. Returns blob keys to drop after the commit.
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
        }
        // Sightings that never became an image say nothing without their ledger row.
        sqlx::query("delete from image_sources where crawl_id = $1 and image_id is null")
            .bind(id)
            .execute(&mut *conn)
            .await?;
        sqlx::query("delete from crawls where id = $1").bind(id).execute(&mut *conn).await?;
        condemn(conn, keys).await
    }
}

/// Returns the images that no other crawl found, in the order of their ids.
pub(crate) async fn images_of_crawl_alone(
    conn: &mut PgConnection,
    crawl: Uuid,
) -> Result<Vec<Uuid>, StoreError> {
    // A source without a crawl was found by one that has been deleted and whose images were to
    // stay.
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

/// Deletes images with all that hangs on them; answers how many, and every blob key they and their faces named.
pub(crate) async fn delete_images(
    conn: &mut PgConnection,
    ids: &[Uuid],
) -> Result<(u64, Vec<String>), StoreError> {
    // Images first held, in id order: nobody can add a face to one of them now.
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
