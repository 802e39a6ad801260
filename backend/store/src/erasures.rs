//! Erasures: what was stored of a person or under an address goes, and what is needed to keep it out stays.
//!
//! An erasure is planned and carried out in one transaction, under the collection's suppression lock: no picture can slip in between.
//!
//! A face takes its crop and its chip along, the thumbnail of its picture, which shows it, and the
//! crops and chips of other faces that show a part of it. An erasure deletes a picture whose faces
//! all go, and a person whose faces all go.
mod carry_out;
mod chip;
mod likeness;
mod plan;
mod subjects;

pub use carry_out::CarriedOut;
pub use plan::{DoomedFace, Plan};

use crate::{Store, StoreError};
use pgvector::HalfVector;
use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

/// What is to be erased in a collection.
#[derive(Clone, Debug)]
pub enum Target {
    /// Every face that is at least so similar. Faces of other models cannot be compared.
    Likeness {
        /// Of length 1.
        embedding: Vec<f32>,
        /// Its model.
        model_id: i32,
        /// Lowest similarity.
        threshold: f32,
    },
    /// A face.
    Face(Uuid),
    /// An image with all its faces.
    Image(Uuid),
    /// A person with all faces that are known as theirs.
    Subject(Uuid),
    /// Every image that was found at the address or on the page of that address: all its spellings, the normal one first.
    Url(Vec<String>),
}

impl Target {
    /// As `erasures.kind` says it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Likeness { .. } => "likeness",
            Self::Face(_) => "face",
            Self::Image(_) => "image",
            Self::Subject(_) => "subject",
            Self::Url(_) => "url",
        }
    }
}

/// An erasure as it is remembered: numbers.
#[derive(Clone, Debug, FromRow)]
pub struct ErasureRecord {
    /// Its id.
    pub id: Uuid,
    /// Where.
    pub collection_id: Uuid,
    /// [`Target::kind`].
    pub kind: String,
    /// Whether pictures and addresses are kept out.
    pub suppress: bool,
    /// Whether the person is.
    pub suppress_person: bool,
    /// Lowest similarity, for a likeness.
    pub threshold: Option<f32>,
    /// Faces that went.
    pub faces: i64,
    /// Images that went whole.
    pub images: i64,
    /// What it keeps out: pictures, faces, addresses and people.
    pub suppressions: i64,
    /// When.
    pub created_at: OffsetDateTime,
    /// When what it kept out was let in again.
    pub lifted_at: Option<OffsetDateTime>,
}

impl Store {
    /// Returns the models and embeddings of faces that a plan names, in the order of their ids.
    ///
    /// An embedding takes about a kilobyte of memory, so pass a part of a plan at a time.
    ///
    /// # Errors
    /// Those of the database.
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

    /// Remembers that it was done; answers when, which is the transaction's time and not the record's. Suppressions come after, since they name it,
    /// and then the record once more with their number.
    pub async fn record_erasure(
        &self,
        conn: &mut PgConnection,
        record: &ErasureRecord,
    ) -> Result<OffsetDateTime, StoreError> {
        Ok(sqlx::query_scalar(
            "insert into erasures (id, collection_id, kind, suppress, suppress_person, threshold, faces, images, suppressions)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
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
        .fetch_one(conn)
        .await?)
    }

    /// Those of a collection, newest first, before the id `before`.
    pub async fn erasures(
        &self,
        collection: Uuid,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<ErasureRecord>, StoreError> {
        Ok(sqlx::query_as(
            "select id, collection_id, kind, suppress, suppress_person, threshold, faces, images, suppressions, created_at, lifted_at
             from erasures where collection_id = $1 and ($2::uuid is null or id < $2) and ($4::uuid is null or collection_id = $4)
             order by id desc limit $3",
        )
        .bind(collection)
        .bind(before)
        .bind(limit.max(0))
        .bind(self.reach)
        .fetch_all(&self.pool)
        .await?)
    }

    /// Lets in again what an erasure keeps out, and notes when; answers the record and how much it was. What another erasure keeps out, too,
    /// stays out, and what was erased stays gone.
    ///
    /// # Errors
    /// `NotFound` for an erasure that is not there.
    pub async fn lift_suppressions(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
    ) -> Result<(ErasureRecord, u64), StoreError> {
        let record: Option<ErasureRecord> = sqlx::query_as(
            "update erasures set lifted_at = coalesce(lifted_at, now()) where id = $1 and ($2::uuid is null or collection_id = $2)
             returning id, collection_id, kind, suppress, suppress_person, threshold, faces, images, suppressions, created_at, lifted_at",
        )
        .bind(id)
        .bind(self.reach)
        .fetch_optional(&mut *conn)
        .await?;
        let record = record.ok_or_else(|| StoreError::not_found("erasure", id))?;
        let lifted =
            sqlx::query("delete from suppressions where erasure_id = $1").bind(id).execute(conn).await?;
        Ok((record, lifted.rows_affected()))
    }
}
