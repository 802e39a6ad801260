//! Replaces smaller versions of an image with a larger one.
//!
//! A transaction that links a ledger row to a stored image first locks the image (`for share`),
//! until the transaction ends. A transaction that replaces an image locks it against such links
//! (`for no key update`). So a link is either created before the replacement and moved by it, or
//! fails because the image was deleted. Sightings need no such lock: they are added under a lock on
//! their ledger row, and these rows are locked here before they move. Lock order: images, ledger
//! rows, sources, cached responses.
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::db::values::{floats, region};
use crate::images::delete_images;
use crate::store::Images;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, PgExecutor, Row};
use uuid::Uuid;

/// A face of a stored image, with which the faces of an incoming image are compared.
#[derive(Clone, Debug)]
pub struct StoredFace {
    pub image_id: Uuid,
    pub model_id: i32,
    /// x, y, width, height as fractions of the image.
    pub region: [f32; 4],
    /// The embedding, L2-normalised.
    pub embedding: Vec<f32>,
}

impl FromRow<'_, PgRow> for StoredFace {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            image_id: row.try_get("image_id")?,
            model_id: row.try_get("model_id")?,
            region: region(row)?,
            embedding: floats(&row.try_get("embedding")?),
        })
    }
}

impl Images<'_> {
    /// Locks an image against replacement until the transaction ends, so that rows can be linked to
    /// it. Returns `false` if the image was deleted. Waits for a transaction that is replacing it.
    pub async fn lock(self, conn: &mut PgConnection, id: Uuid) -> Result<bool, StoreError> {
        let locked: Option<i32> = sqlx::query_scalar("select 1 from images where id = $1 for share")
            .bind(id)
            .fetch_optional(conn)
            .await?;
        Ok(locked.is_some())
    }

    /// Returns the images that have a watched face, or a face assigned to a subject. They are never
    /// replaced.
    pub async fn images_with_subjects(
        self,
        executor: impl PgExecutor<'_>,
        images: &[Uuid],
    ) -> Result<Vec<Uuid>, StoreError> {
        if images.is_empty() {
            return Ok(Vec::new());
        }
        Ok(sqlx::query_scalar(
            "select f.image_id from faces f join subject_faces s on s.face_id = f.id where f.image_id = any($1)
             union
             select f.image_id from faces f join watched_faces w on w.collection_id = f.collection_id and w.face_id = f.id
             where f.image_id = any($1)",
        )
        .bind(images)
        .fetch_all(executor)
        .await?)
    }

    /// Locks images for replacement. Returns `false` if one of them was deleted or now has a
    /// watched face or a face assigned to a subject. In that case, search again. Waits for
    /// transactions that are linking to them.
    pub async fn lock_to_replace(self, conn: &mut PgConnection, images: &[Uuid]) -> Result<bool, StoreError> {
        let locked: Vec<i32> =
            sqlx::query_scalar("select 1 from images where id = any($1) order by id for no key update")
                .bind(images)
                .fetch_all(&mut *conn)
                .await?;
        // From here on, no transaction can enrol or watch one of these faces.
        sqlx::query("select 1 from faces where image_id = any($1) order by id for update")
            .bind(images)
            .execute(&mut *conn)
            .await?;
        Ok(locked.len() == images.len() && self.images_with_subjects(conn, images).await?.is_empty())
    }

    /// Returns the faces of images. An embedding takes about a kilobyte of memory, so pass images
    /// with a limited number of faces per call.
    pub async fn faces_of_images(
        self,
        conn: &mut PgConnection,
        images: &[Uuid],
    ) -> Result<Vec<StoredFace>, StoreError> {
        Ok(sqlx::query_as(
            "select f.image_id, f.model_id, f.bbox, f.embedding, i.width, i.height
             from faces f join images i on i.id = f.image_id where f.image_id = any($1) order by f.id",
        )
        .bind(images)
        .fetch_all(conn)
        .await?)
    }

    /// Replaces the locked `images` with `replacement`. Moves their ledger rows and sources to it,
    /// then deletes them with their faces. Returns the blob keys to delete after the commit.
    ///
    /// Rows in state `processed` become `duplicate` with the reason `superseded`. `row` is the
    /// ledger row that the caller settles in the same transaction. It is locked together with the
    /// others, in a fixed order.
    pub async fn replace(
        self,
        conn: &mut PgConnection,
        images: &[Uuid],
        replacement: Uuid,
        row: Uuid,
    ) -> Result<Vec<String>, StoreError> {
        sqlx::query("select 1 from image_urls where id = $2 or image_id = any($1) order by id for update")
            .bind(images)
            .bind(row)
            .execute(&mut *conn)
            .await?;
        for statement in [
            "update image_urls set image_id = $2, reason = case state when 'processed' then 'superseded' else reason end,
                    state = case state when 'processed' then 'duplicate' else state end
             where image_id = any($1)",
            "update image_sources set image_id = $2 where image_id = any($1)",
            // The cached response then refers to the larger version of the stored content.
            "update image_visits set image_id = $2 where image_id = any($1)",
            "update superseded_images set image_id = $2 where image_id = any($1)",
            "insert into superseded_images (image_id, digest) select $2, sha256(uuid_send(id)) from unnest($1::uuid[]) as older (id)",
        ] {
            sqlx::query(statement).bind(images).bind(replacement).execute(&mut *conn).await?;
        }
        let (_, keys) = delete_images(conn, images).await?;
        enqueue_blob_deletions(conn, keys).await
    }
}
