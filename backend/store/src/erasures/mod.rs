//! Erasures delete the stored data about a person or from a URL, except its suppressions.
//!
//! An erasure is planned and carried out in one transaction, under the collection's suppression
//! lock, so that no image can be added before the commit.
//!
//! The erasure of a face also deletes its crop and chip, and the thumbnail of its image. It deletes
//! the crops and chips of other faces if they contain a part of the erased face. An erasure deletes
//! an image whose faces are all erased, and a person whose faces are all erased.
mod carry_out;
pub mod deletion_log;
mod plan;
pub mod retention;
mod suppressed;
pub mod suppressions;
mod traces;
use crate::StoreError;
pub use crate::db::deletions::ErasureOutcome;
use crate::db::values::{floats, halfvec, region};
use crate::index::{AllSimilar, FaceIndex, ROUNDING};
use crate::store::Erasures;
pub use carry_out::RepeatedErasure;
pub use plan::{Plan, PlannedFace};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row};
pub use suppressed::PageMentions;
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

/// A face of a plan.
#[derive(Clone, Debug)]
pub struct EmbeddedFace {
    pub image_id: Uuid,
    pub model_id: i32,
    pub embedding: Vec<f32>,
    /// x, y, width, height as fractions of the image.
    pub region: [f32; 4],
    /// SHA-256 of the file of the image.
    pub sha256: Vec<u8>,
    /// The perceptual hashes of the image (DCT, gradients, mean); `None` for the frame of a video.
    pub hashes: Option<[i64; 3]>,
}

impl FromRow<'_, PgRow> for EmbeddedFace {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let hash = |column| row.try_get::<Option<i64>, _>(column);
        let hashes = hash("phash")?.zip(hash("dhash")?).zip(hash("ahash")?);
        Ok(Self {
            image_id: row.try_get("image_id")?,
            model_id: row.try_get("model_id")?,
            embedding: floats(&row.try_get("embedding")?),
            region: region(row)?,
            sha256: row.try_get("sha256")?,
            hashes: hashes.map(|((phash, dhash), ahash)| [phash, dhash, ahash]),
        })
    }
}

impl Erasures<'_> {
    /// Returns faces of a plan with their embeddings, in the order of their ids. An embedding takes
    /// about a kilobyte of memory, so pass only a part of a large plan per call.
    pub async fn planned_embeddings(
        self,
        conn: &mut PgConnection,
        faces: &[Uuid],
    ) -> Result<Vec<EmbeddedFace>, StoreError> {
        Ok(sqlx::query_as(
            "select f.image_id, f.model_id, f.embedding, f.bbox, i.width, i.height, i.sha256, i.phash, i.dhash, i.ahash
             from faces f join images i on i.id = f.image_id where f.id = any($1) order by f.id",
        )
        .bind(faces)
        .fetch_all(conn)
        .await?)
    }

    /// Inserts the record of an erasure, or updates its number of suppressions. Returns the time of
    /// the transaction, which differs from the time in `record`. Suppressions refer to the record,
    /// so insert the record first, then the suppressions, then call this again with their number.
    pub async fn record(
        self,
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
    pub async fn list(
        self,
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
        .bind(self.0.collection_scope)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Lifts the suppressions of an erasure and records the time. Returns the record and the number
    /// of lifted suppressions. Content that another erasure also suppresses remains suppressed.
    /// Erased data is not restored.
    ///
    /// # Errors
    /// Fails with `NotFound` if the erasure does not exist.
    pub async fn lift(self, conn: &mut PgConnection, id: Uuid) -> Result<(ErasureRecord, u64), StoreError> {
        let record: Option<ErasureRecord> = sqlx::query_as(
            "update erasures set lifted_at = coalesce(lifted_at, now()) where id = $1 and ($2::uuid is null or collection_id = $2)
             returning id, collection_id, kind, suppress, suppress_person, threshold, faces, images, videos, suppressions, created_at, lifted_at",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        let record = record.ok_or_else(|| StoreError::not_found("erasure", id))?;
        let lifted =
            sqlx::query("delete from suppressions where erasure_id = $1").bind(id).execute(conn).await?;
        Ok((record, lifted.rows_affected()))
    }
}

/// Number of rows that one statement reads.
const BATCH: usize = 50_000;

/// Returns all faces of the collection and model with at least the given similarity, ordered by id.
/// The index returns candidates. Each candidate is compared with its row again, so that no other
/// face is erased.
async fn similar_faces(
    index: &dyn FaceIndex,
    conn: &mut PgConnection,
    query: &AllSimilar<'_>,
) -> Result<Vec<PlannedFace>, StoreError> {
    let candidates = index.all_similar(&mut *conn, query).await?;
    let ids: Vec<Uuid> = candidates.into_iter().map(|face| face.id).collect();
    let sql = format!(
        "select id, image_id, bbox, similarity from (
             select f.id, f.image_id, f.bbox, 1 - (f.embedding <=> $3::halfvec({})) as similarity from faces f
             where f.model_id = $2 and f.collection_id = $1 and f.id = any($5)) scope
         where similarity >= $4 order by id",
        query.model.dimensions
    );
    let probe = halfvec(query.probe);
    let mut faces = Vec::new();
    for ids in ids.chunks(BATCH) {
        // Built at run time, because the probe's type contains the number of dimensions.
        let rows: Vec<PlannedFace> = sqlx::query_as(AssertSqlSafe(sql.as_str()))
            .bind(query.collection_id)
            .bind(query.model.id)
            .bind(&probe)
            .bind(f64::from(query.threshold) - ROUNDING)
            .bind(ids)
            .fetch_all(&mut *conn)
            .await?;
        faces.extend(rows);
    }
    Ok(faces)
}
