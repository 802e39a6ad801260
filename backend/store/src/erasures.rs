//! Erasures delete what is stored about a person or from a URL, except what suppresses it.
//!
//! An erasure is planned and carried out in one transaction, under the collection's suppression
//! lock, so that no image can be added in between.
//!
//! The erasure of a face also deletes its crop and chip, and the thumbnail of its image. It deletes
//! the crops and chips of other faces if they contain a part of the erased face. An erasure deletes
//! an image whose faces are all erased, and a person whose faces are all erased.
mod carry_out;
mod chip;
mod likeness;
mod plan;
mod restored;
mod subjects;
mod videos;

pub use carry_out::CarriedOut;
pub use plan::{Plan, PlannedFace};
pub use restored::ErasedAgain;

use crate::{Store, StoreError};
use pgvector::HalfVector;
use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub enum Target {
    /// All faces whose similarity to an embedding is at least `threshold`. Faces of other models
    /// cannot be compared.
    Likeness {
        /// The embedding, L2-normalised.
        embedding: Vec<f32>,
        model_id: i32,
        threshold: f32,
    },
    Face(Uuid),
    /// An image with all its faces.
    Image(Uuid),
    /// A video with all other videos of the same file.
    Video(Uuid),
    /// A person with all faces that are assigned to them.
    Subject(Uuid),
    /// All images found at a URL or on the page with that URL. Contains all spellings of the URL;
    /// the normalised URL is first.
    Url(Vec<String>),
}

impl Target {
    /// Returns the name of the target in `erasures.kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Likeness { .. } => "likeness",
            Self::Face(_) => "face",
            Self::Image(_) => "image",
            Self::Video(_) => "video",
            Self::Subject(_) => "subject",
            Self::Url(_) => "url",
        }
    }
}

/// The record of an erasure. It contains only numbers, times and ids.
#[derive(Clone, Debug, FromRow)]
pub struct ErasureRecord {
    pub id: Uuid,
    pub collection_id: Uuid,
    /// The target, see [`Target::kind`].
    pub kind: String,
    /// Whether images and URLs are suppressed.
    pub suppress: bool,
    pub suppress_person: bool,
    /// Minimum similarity, for a likeness.
    pub threshold: Option<f32>,
    pub faces: i64,
    /// Number of images that were erased completely.
    pub images: i64,
    /// Number of videos that were erased completely; `None` for an erasure of an earlier version.
    pub videos: Option<i64>,
    /// Number of suppressions: of images, videos, faces, URLs and people.
    pub suppressions: i64,
    pub created_at: OffsetDateTime,
    pub lifted_at: Option<OffsetDateTime>,
}

impl Store {
    /// Returns the models and embeddings of faces of a plan, in the order of their ids. An
    /// embedding takes about a kilobyte of memory, so pass only a part of a large plan per call.
    pub async fn planned_embeddings(
        &self,
        conn: &mut PgConnection,
        faces: &[Uuid],
    ) -> Result<Vec<(i32, Vec<f32>)>, StoreError> {
        let rows: Vec<(i32, HalfVector)> =
            sqlx::query_as("select model_id, embedding from faces where id = any($1) order by id")
                .bind(faces)
                .fetch_all(conn)
                .await?;
        let floats = |vector: HalfVector| vector.as_slice().iter().map(|value| value.to_f32()).collect();
        Ok(rows.into_iter().map(|(model, embedding)| (model, floats(embedding))).collect())
    }

    /// Inserts the record of an erasure, or updates its number of suppressions. Returns the time of
    /// the transaction, which differs from the time in `record`. Suppressions refer to the record,
    /// so insert the record first, then the suppressions, then call this again with their number.
    pub async fn record_erasure(
        &self,
        conn: &mut PgConnection,
        record: &ErasureRecord,
    ) -> Result<OffsetDateTime, StoreError> {
        Ok(sqlx::query_scalar(
            "insert into erasures (id, collection_id, kind, suppress, suppress_person, threshold, faces, images, suppressions, videos)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
             on conflict (id) do update set suppressions = excluded.suppressions
             returning created_at",
        )
        .bind(record.id)
        .bind(record.collection_id)
        .bind(&record.kind)
        .bind(record.suppress)
        .bind(record.suppress_person)
        .bind(record.threshold)
        .bind(record.faces)
        .bind(record.images)
        .bind(record.suppressions)
        .bind(record.videos)
        .fetch_one(conn)
        .await?)
    }

    /// Returns the erasures of a collection, newest first, before the id `before`.
    pub async fn erasures(
        &self,
        collection: Uuid,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<ErasureRecord>, StoreError> {
        Ok(sqlx::query_as(
            "select id, collection_id, kind, suppress, suppress_person, threshold, faces, images, videos, suppressions, created_at, lifted_at
             from erasures where collection_id = $1 and ($2::uuid is null or id < $2) and ($4::uuid is null or collection_id = $4)
             order by id desc limit $3",
        )
        .bind(collection)
        .bind(before)
        .bind(limit.max(0))
        .bind(self.collection_scope)
        .fetch_all(&self.pool)
        .await?)
    }

    /// Lifts the suppressions of an erasure and records the time. Returns the record and the number
    /// of lifted suppressions. Content that another erasure also suppresses remains suppressed.
    /// Erased data is not restored.
    ///
    /// # Errors
    /// Fails with `NotFound` if the erasure does not exist.
    pub async fn lift_suppressions(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
    ) -> Result<(ErasureRecord, u64), StoreError> {
        let record: Option<ErasureRecord> = sqlx::query_as(
            "update erasures set lifted_at = coalesce(lifted_at, now()) where id = $1 and ($2::uuid is null or collection_id = $2)
             returning id, collection_id, kind, suppress, suppress_person, threshold, faces, images, videos, suppressions, created_at, lifted_at",
        )
        .bind(id)
        .bind(self.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        let record = record.ok_or_else(|| StoreError::not_found("erasure", id))?;
        let lifted =
            sqlx::query("delete from suppressions where erasure_id = $1").bind(id).execute(conn).await?;
        Ok((record, lifted.rows_affected()))
    }
}
