//! One image in the place of others that show the same picture.
//!
//! Whoever links a ledger row to an image that is stored holds the image (`for share`) from before it looks to the end of its transaction, and
//! whoever replaces an image holds it against that (`for no key update`). So a link is either made before the replacement, and moves with
//! the others, or finds the image gone. Sightings need no such care: they are entered under a lock on their ledger row, and the rows are locked
//! here before they move. Lock order: images, ledger rows, sources, visits.
use crate::condemned::condemn;
use crate::erasure::delete_images;
use crate::{Store, StoreError};
use pgvector::HalfVector;
use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

/// A face of an image that a larger version may replace.
#[derive(Clone, Debug)]
pub struct OlderFace {
    /// Its image.
    pub image_id: Uuid,
    /// The model of its embedding.
    pub model_id: i32,
    /// x, y, width, height as fractions of the picture.
    pub region: [f32; 4],
    /// Of length 1.
    pub embedding: Vec<f32>,
}

#[derive(FromRow)]
struct FaceRow {
    image_id: Uuid,
    model_id: i32,
    bbox: Vec<f32>,
    embedding: HalfVector,
    width: i32,
    height: i32,
}

impl From<FaceRow> for OlderFace {
    fn from(row: FaceRow) -> Self {
        let (width, height) = (row.width.max(1) as f32, row.height.max(1) as f32);
        let at = |place: usize| row.bbox.get(place).copied().unwrap_or_default();
        Self {
            image_id: row.image_id,
            model_id: row.model_id,
            region: [at(0) / width, at(1) / height, at(2) / width, at(3) / height],
            embedding: row.embedding.as_slice().iter().map(|value| value.to_f32()).collect(),
        }
    }
}

impl Store {
    /// Keeps an image from being replaced until the transaction ends, so that rows can be linked to it; `false` when it is gone. Waits for
    /// whoever is replacing it.
    pub async fn hold_image(&self, conn: &mut PgConnection, id: Uuid) -> Result<bool, StoreError> {
        let held: Option<i32> = sqlx::query_scalar("select 1 from images where id = $1 for share")
            .bind(id)
            .fetch_optional(conn)
            .await?;
        Ok(held.is_some())
    }

    /// Those of the images that have a face which somebody enrolled as a person's; they are never replaced.
    pub async fn enrolled_images(
        &self,
        conn: &mut PgConnection,
        images: &[Uuid],
    ) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select distinct f.image_id from faces f join subject_faces s on s.face_id = f.id where f.image_id = any($1)",
        )
        .bind(images)
        .fetch_all(conn)
        .await?)
    }

    /// Holds images that are to be replaced; `false` when one of them is gone or has an enrolled face by now: look again. Waits for whoever is
    /// linking to them.
    pub async fn hold_to_replace(
        &self,
        conn: &mut PgConnection,
        images: &[Uuid],
    ) -> Result<bool, StoreError> {
        let held: Vec<i32> =
            sqlx::query_scalar("select 1 from images where id = any($1) order by id for no key update")
                .bind(images)
                .fetch_all(&mut *conn)
                .await?;
        // Nobody can enrol one of these faces from here on.
        sqlx::query("select 1 from faces where image_id = any($1) order by id for update")
            .bind(images)
            .execute(&mut *conn)
            .await?;
        Ok(held.len() == images.len() && self.enrolled_images(conn, images).await?.is_empty())
    }

    /// Faces of images that are held to be replaced.
    pub async fn faces_to_replace(
        &self,
        conn: &mut PgConnection,
        images: &[Uuid],
    ) -> Result<Vec<OlderFace>, StoreError> {
        let rows: Vec<FaceRow> = sqlx::query_as(
            "select f.image_id, f.model_id, f.bbox, f.embedding, i.width, i.height
             from faces f join images i on i.id = f.image_id where f.image_id = any($1) order by f.id",
        )
        .bind(images)
        .fetch_all(conn)
        .await?;
        Ok(rows.into_iter().map(OlderFace::from).collect())
    }

    /// Puts the image `by` in the place of `images`, which must be held: their ledger rows and sources become its own, and they go, faces
    /// included. Rows that were `processed` become `duplicate` with the reason `superseded`. `row` is the ledger row that the caller settles in
    /// the same transaction; it is locked together with the others, in one order. Returns the blob keys to delete after the commit.
    pub async fn replace_images(
        &self,
        conn: &mut PgConnection,
        images: &[Uuid],
        by: Uuid,
        row: Uuid,
    ) -> Result<Vec<String>, StoreError> {
        sqlx::query("select 1 from image_urls where id = $2 or image_id = any($1) order by id for update")
            .bind(images)
            .bind(row)
            .execute(&mut *conn)
            .await?;
        for taken_over in [
            "update image_urls set image_id = $2, reason = case state when 'processed' then 'superseded' else reason end,
                    state = case state when 'processed' then 'duplicate' else state end
             where image_id = any($1)",
            "update image_sources set image_id = $2 where image_id = any($1)",
            // What an address answered is still what is stored, in its larger version.
            "update image_visits set image_id = $2 where image_id = any($1)",
            "update superseded_images set image_id = $2 where image_id = any($1)",
            "insert into superseded_images (image_id, digest) select $2, sha256(uuid_send(id)) from unnest($1) as older (id)",
        ] {
            sqlx::query(taken_over).bind(images).bind(by).execute(&mut *conn).await?;
        }
        let (_, keys) = delete_images(conn, images).await?;
        condemn(conn, keys).await
    }
}
