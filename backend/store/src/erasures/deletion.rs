//! Deletes faces and images permanently. Returns the blobs that no row needs any more.
//!
//! Blobs are content-addressed, so two rows can share a blob. A key is returned only if no
//! remaining row refers to it. The caller deletes the blobs after its commit (`Store::drop_blobs`).
//! If the caller crashes before that, the sweep deletes the blobs, because their keys are recorded.
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::erasures::deletion_log;
use crate::{Store, StoreError};
use sqlx::PgConnection;
use uuid::Uuid;

impl Store {
    /// Deletes a face and decrements the face count of its image. If the image was sent only for
    /// enrolment and the face was its last one that belongs to a subject, the image is deleted too.
    /// Returns the blob keys to delete after the commit.
    pub async fn delete_face(&self, conn: &mut PgConnection, id: Uuid) -> Result<Vec<String>, StoreError> {
        // An enrolment locks the image before its faces too.
        let image: Uuid = sqlx::query_scalar(
            "select i.id from images i join faces f on f.image_id = i.id
             where f.id = $1 and ($2::uuid is null or f.collection_id = $2) for update of i",
        )
        .bind(id)
        .bind(self.collection_scope)
        .fetch_optional(&mut *conn)
        .await?
        .ok_or_else(|| StoreError::not_found("face", id))?;
        let (chip, crop, is_assigned): (Option<String>, Option<String>, bool) = sqlx::query_as(
            "delete from faces where id = $1 and image_id = $2
             returning chip_key, crop_key, exists (select from subject_faces where face_id = $1)",
        )
        .bind(id)
        .bind(image)
        .fetch_optional(&mut *conn)
        .await?
        .ok_or_else(|| StoreError::not_found("face", id))?;
        sqlx::query("update images set face_count = greatest(face_count - 1, 0) where id = $1")
            .bind(image)
            .execute(&mut *conn)
            .await?;
        deletion_log::set(conn, &[id], &[image]).await?;
        let mut keys = [chip, crop].into_iter().flatten().collect();
        keys = enqueue_blob_deletions(conn, keys).await?;
        if is_assigned {
            keys.extend(self.drop_enrolled(conn, &[image]).await?);
        }
        Ok(keys)
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
        deletion_log::set(conn, &found, &found).await?;
        let (deleted, keys) = delete_images(conn, &found).await?;
        if deleted == 0 {
            return Err(StoreError::not_found("image", id));
        }
        enqueue_blob_deletions(conn, keys).await
    }
}

/// Locks images in id order. A transaction that locks several of these locks them in the order
/// subjects, images, faces, assignments.
pub(crate) async fn lock_images(conn: &mut PgConnection, ids: &[Uuid]) -> Result<(), StoreError> {
    sqlx::query("select 1 from images where id = any($1) order by id for update")
        .bind(ids)
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes images with all dependent rows. Returns their number and all their blob keys.
pub(crate) async fn delete_images(
    conn: &mut PgConnection,
    ids: &[Uuid],
) -> Result<(u64, Vec<String>), StoreError> {
    // No transaction can add a face to a locked image.
    lock_images(conn, ids).await?;
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
