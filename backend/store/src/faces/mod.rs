//! Reads, inserts and deletes faces.
pub mod models;
pub mod search;
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::blobs::parts::{FaceParts, NewFaceParts};
use crate::db::deletions::set_tombstones;
use crate::db::values::{check_embedding, floats, halfvec};
use crate::index::scope::{Access, FaceFilter, images_of_small_site};
use crate::store::Faces;
use pgvector::HalfVector;
use serde_json::Value;
use sqlx::{PgConnection, Postgres, QueryBuilder};
use time::{Duration, OffsetDateTime};
use uuid::{Builder, Uuid};

/// Margin of a stored crop around its face, as a fraction of the larger side of the box. An erasure
/// includes this margin.
pub const CROP_MARGIN: f32 = 0.25;

#[derive(Clone, Debug)]
pub struct NewFace {
    /// Its id (UUIDv7).
    pub id: Uuid,
    /// x, y, width, height in pixels of the upright image.
    pub bbox: [f32; 4],
    /// Detection score, 0 to 1.
    pub det_score: f32,
    /// Five landmark points as x, y pairs, in pixels.
    pub landmarks: [f32; 10],
    /// `vision::QualityReport` as JSON.
    pub quality: Option<Value>,
    pub quality_overall: Option<f32>,
    pub quality_passed: Option<bool>,
    /// Embedding, L2-normalised.
    pub embedding: Vec<f32>,
    /// Id of the embedding model (`store::index::EmbeddingModel::id`).
    pub model_id: i32,
    /// Its crop and its aligned chip.
    pub parts: Option<NewFaceParts>,
}

#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Face {
    pub id: Uuid,
    pub collection_id: Uuid,
    pub collection: String,
    pub image_id: Uuid,
    /// x, y, width, height in pixels of the upright image.
    pub bbox: Vec<f32>,
    /// Detection score, 0 to 1.
    pub det_score: f32,
    /// Five landmark points as x, y pairs, in pixels.
    pub landmarks: Vec<f32>,
    pub quality: Option<Value>,
    pub embedding_model: String,
    /// Where its crop and its chip are.
    #[serde(skip)]
    #[sqlx(flatten)]
    pub parts: FaceParts,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

#[derive(Clone, Debug, Default)]
pub struct FaceListQuery {
    pub collection: String,
    pub image_id: Option<Uuid>,
    /// `true` selects faces that did not fail their quality profile, `false` selects those that
    /// did.
    pub passed: Option<bool>,
    pub filter: FaceFilter,
}

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct FaceSubject {
    pub face_id: Uuid,
    pub subject_id: Uuid,
    pub name: Option<String>,
}

macro_rules! select_faces {
    ($tail:literal) => {
        concat!(
            "select f.id, f.collection_id, c.name as collection, f.image_id, f.bbox, f.det_score, f.landmarks, f.quality, ",
            "m.name as embedding_model, coalesce(f.parts_key, i.parts_key) as parts_key, f.parts_offset, f.crop_bytes, f.chip_bytes, f.crop_key, f.chip_key, ",
            "f.created_at ",
            "from faces f join collections c on c.id = f.collection_id join embedding_models m on m.id = f.model_id ",
            "join images i on i.id = f.image_id ",
            $tail
        )
    };
}

impl Faces<'_> {
    /// Inserts the faces of one image and adds them to its `face_count`. Embeddings are stored with
    /// 11 significant bits (halfvec). Does nothing if `faces` is empty.
    ///
    /// # Errors
    /// Fails with `NotFound` if the collection has no such image or a model is not registered.
    /// Fails with `Invalid` if an embedding has the wrong length, is zero, or has a component that
    /// is not finite.
    pub async fn insert(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        image: Uuid,
        faces: &[NewFace],
    ) -> Result<(), StoreError> {
        if faces.is_empty() {
            return Ok(());
        }
        check_embeddings(conn, faces.iter()).await?;
        let updated = sqlx::query(
            "update images set face_count = face_count + $3 where id = $1 and collection_id = $2",
        )
        .bind(image)
        .bind(collection)
        .bind(faces.len() as i32)
        .execute(&mut *conn)
        .await?;
        if updated.rows_affected() == 0 {
            return Err(StoreError::not_found("image", image));
        }
        let rows: Vec<FaceRow<'_>> = faces.iter().map(|face| (collection, image, face)).collect();
        insert_rows(conn, &rows).await
    }

    /// Inserts faces of images that this transaction inserted with their `face_count`. Each face
    /// comes with its collection and its image. Does nothing if `faces` is empty.
    ///
    /// # Errors
    /// Fails with `NotFound` if a model is not registered, and with `Invalid` if an embedding is
    /// invalid.
    pub async fn insert_for_new_images(
        self,
        conn: &mut PgConnection,
        faces: &[FaceRow<'_>],
    ) -> Result<(), StoreError> {
        if faces.is_empty() {
            return Ok(());
        }
        check_embeddings(conn, faces.iter().map(|(.., face)| *face)).await?;
        insert_rows(conn, faces).await
    }

    pub async fn get(self, id: Uuid) -> Result<Face, StoreError> {
        sqlx::query_as(select_faces!("where f.id = $1 and ($2::uuid is null or f.collection_id = $2)"))
            .bind(id)
            .bind(self.0.collection_scope)
            .fetch_optional(&self.0.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("face", id))
    }

    /// Returns faces, newest first.
    pub async fn list(
        self,
        list: &FaceListQuery,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Face>, StoreError> {
        let collection = self.0.collections().get(&list.collection).await?.id;
        let mut query = QueryBuilder::<Postgres>::new(select_faces!("where f.collection_id = "));
        query.push_bind(collection);
        if let Some(image) = list.image_id {
            query.push(" and f.image_id = ").push_bind(image);
        }
        match list.passed {
            Some(true) => query.push(" and f.quality_passed is distinct from false"),
            Some(false) => query.push(" and f.quality_passed = false"),
            None => &mut query,
        };
        let images = images_of_small_site(&self.0.pool, collection, &list.filter, self.0.exact_limit).await?;
        // The statement reads faces from the newest and tests each one. If the site has many
        // images, it soon finds `limit` faces.
        list.filter.push(&mut query, Access::EachFace, images.as_deref());
        push_id_bounds(&mut query, &list.filter);
        if let Some(before) = before {
            query.push(" and f.id < ").push_bind(before);
        }
        query.push(" order by f.id desc limit ").push_bind(limit.max(0));
        Ok(query.build_query_as().fetch_all(&self.0.pool).await?)
    }

    /// Returns faces by id, in no particular order. Missing faces are omitted.
    pub(crate) async fn by_ids(self, ids: &[Uuid]) -> Result<Vec<Face>, StoreError> {
        Ok(sqlx::query_as(select_faces!("where f.id = any($1)")).bind(ids).fetch_all(&self.0.pool).await?)
    }

    /// Returns the faces of several images, ordered by face id.
    pub(crate) async fn of_images(self, images: &[Uuid]) -> Result<Vec<Face>, StoreError> {
        Ok(sqlx::query_as(select_faces!("where f.image_id = any($1) order by f.id"))
            .bind(images)
            .fetch_all(&self.0.pool)
            .await?)
    }

    /// Returns the model id and the embedding of a stored face.
    pub async fn embedding(self, face: Uuid) -> Result<(i32, Vec<f32>), StoreError> {
        let (model, embedding): (i32, HalfVector) =
            sqlx::query_as("select model_id, embedding from faces where id = $1 and ($2::uuid is null or collection_id = $2)")
                .bind(face)
                .bind(self.0.collection_scope)
                .fetch_optional(&self.0.pool)
                .await?
                .ok_or_else(|| StoreError::not_found("face", face))?;
        Ok((model, floats(&embedding)))
    }
}

async fn check_embeddings<'a>(
    conn: &mut PgConnection,
    faces: impl Iterator<Item = &'a NewFace> + Clone,
) -> Result<(), StoreError> {
    let ids: Vec<i32> = faces.clone().map(|face| face.model_id).collect();
    let models: Vec<(i32, String, i32)> =
        sqlx::query_as("select id, name, dimensions from embedding_models where id = any($1)")
            .bind(ids)
            .fetch_all(conn)
            .await?;
    for face in faces {
        let (_, name, dimensions) = models
            .iter()
            .find(|(id, ..)| *id == face.model_id)
            .ok_or_else(|| StoreError::not_found("embedding model", face.model_id))?;
        check_embedding(&face.embedding, name, *dimensions)?;
    }
    Ok(())
}

/// A new face with its collection and its image.
pub type FaceRow<'a> = (Uuid, Uuid, &'a NewFace);

/// Inserts all faces with one statement. Each column is one array; the boxes and landmarks of all
/// faces are flat arrays.
async fn insert_rows(conn: &mut PgConnection, rows: &[FaceRow<'_>]) -> Result<(), StoreError> {
    let faces = || rows.iter().map(|(.., face)| *face);
    let parts = || faces().map(|face| face.parts.as_ref());
    sqlx::query(
        "insert into faces (id, collection_id, image_id, bbox, det_score, landmarks, quality, quality_overall,
                            quality_passed, embedding, model_id, parts_key, parts_offset, crop_bytes, chip_bytes)
         select n.id, n.collection_id, n.image_id, ($3::real[])[4 * n.i - 3 : 4 * n.i], n.det_score,
                ($4::real[])[10 * n.i - 9 : 10 * n.i], n.quality, n.quality_overall, n.quality_passed, n.embedding, n.model_id,
                n.parts_key, n.parts_offset, n.crop_bytes, n.chip_bytes
         from unnest($1::uuid[], $2::uuid[], $5::uuid[], $6::real[], $7::jsonb[], $8::real[], $9::bool[], $10::halfvec[],
                     $11::int[], $12::text[], $13::int[], $14::int[], $15::int[])
              with ordinality as n (collection_id, image_id, id, det_score, quality, quality_overall, quality_passed, embedding,
                                    model_id, parts_key, parts_offset, crop_bytes, chip_bytes, i)",
    )
    .bind(rows.iter().map(|(collection, ..)| *collection).collect::<Vec<Uuid>>())
    .bind(rows.iter().map(|(_, image, _)| *image).collect::<Vec<Uuid>>())
    .bind(faces().flat_map(|face| face.bbox).collect::<Vec<f32>>())
    .bind(faces().flat_map(|face| face.landmarks).collect::<Vec<f32>>())
    .bind(faces().map(|face| face.id).collect::<Vec<Uuid>>())
    .bind(faces().map(|face| face.det_score).collect::<Vec<f32>>())
    .bind(faces().map(|face| face.quality.clone()).collect::<Vec<Option<Value>>>())
    .bind(faces().map(|face| face.quality_overall).collect::<Vec<Option<f32>>>())
    .bind(faces().map(|face| face.quality_passed).collect::<Vec<Option<bool>>>())
    .bind(faces().map(|face| halfvec(&face.embedding)).collect::<Vec<HalfVector>>())
    .bind(faces().map(|face| face.model_id).collect::<Vec<i32>>())
    .bind(parts().map(|parts| parts?.own_key.as_deref()).collect::<Vec<Option<&str>>>())
    .bind(parts().map(|parts| Some(parts?.offset)).collect::<Vec<Option<i32>>>())
    .bind(parts().map(|parts| Some(parts?.crop_bytes)).collect::<Vec<Option<i32>>>())
    .bind(parts().map(|parts| Some(parts?.chip_bytes)).collect::<Vec<Option<i32>>>())
    .execute(conn)
    .await?;
    Ok(())
}

/// Adds bounds on the ids, so that the statement does not read all faces newer than the period. The
/// ids are UUIDs of version 7, which begin with the time in milliseconds. A worker creates an id on
/// its own clock, before the transaction that stores the face. So each bound is one day wider.
fn push_id_bounds(query: &mut QueryBuilder<Postgres>, filter: &FaceFilter) {
    if let Some(since) = filter.since {
        query.push(" and f.id >= ").push_bind(min_id_at(since.saturating_sub(Duration::DAY)));
    }
    if let Some(until) = filter.until {
        query.push(" and f.id < ").push_bind(min_id_at(until.saturating_add(Duration::DAY)));
    }
}

/// Returns the lowest UUID of version 7 of a time (RFC 9562, section 5.7).
fn min_id_at(time: OffsetDateTime) -> Uuid {
    let milliseconds = (time.unix_timestamp_nanos() / 1_000_000).clamp(0, (1 << 48) - 1);
    Builder::from_unix_timestamp_millis(milliseconds as u64, &[0; 10]).into_uuid()
}

#[derive(sqlx::FromRow)]
struct DeletedFace {
    #[sqlx(flatten)]
    parts: FaceParts,
    is_assigned: bool,
}

impl Faces<'_> {
    /// Deletes a face and decrements the face count of its image. If the image was sent only for
    /// enrolment and the face was its last one that belongs to a subject, the image is deleted too.
    /// Returns the blob keys to delete after the commit.
    pub async fn delete(self, conn: &mut PgConnection, id: Uuid) -> Result<Vec<String>, StoreError> {
        // An enrolment also locks the image before its faces.
        let image: Uuid = sqlx::query_scalar(
            "select i.id from images i join faces f on f.image_id = i.id
             where f.id = $1 and ($2::uuid is null or f.collection_id = $2) for update of i",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_optional(&mut *conn)
        .await?
        .ok_or_else(|| StoreError::not_found("face", id))?;
        let deleted: DeletedFace = sqlx::query_as(
            "delete from faces f using images i where f.id = $1 and f.image_id = $2 and i.id = f.image_id
             returning coalesce(f.parts_key, i.parts_key) as parts_key, parts_offset, crop_bytes, chip_bytes, crop_key, chip_key,
                       exists (select from subject_faces where face_id = $1) as is_assigned",
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
        set_tombstones(conn, &[id], &[image]).await?;
        let mut keys = enqueue_blob_deletions(conn, deleted.parts.keys().collect()).await?;
        if deleted.is_assigned {
            keys.extend(self.0.people().delete_enrolled_images(conn, &[image]).await?);
        }
        Ok(keys)
    }
}
