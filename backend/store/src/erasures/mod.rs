//! Erasures delete what is stored about a person or from a URL, except what suppresses it.
//!
//! An erasure is planned and carried out in one transaction, under the collection's suppression
//! lock, so that no image can be added in between.
//!
//! The erasure of a face also deletes its crop and chip, and the thumbnail of its image. It deletes
//! the crops and chips of other faces if they contain a part of the erased face. An erasure deletes
//! an image whose faces are all erased, and a person whose faces are all erased.
mod carry_out;
pub mod deletion_log;
mod plan;
pub mod retention;
pub mod suppressions;
pub mod traces;
use crate::StoreError;
pub use crate::db::deletions::CarriedOut;
use crate::erasures::plan::FaceRow;
use crate::index::{AllSimilar, FaceIndex};
use crate::index::{ROUNDING, halfvec};
use crate::store::Erasures;
pub use carry_out::ErasedAgain;
use pgvector::HalfVector;
pub use plan::{Plan, PlannedFace};
use sqlx::{AssertSqlSafe, FromRow, PgConnection};
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

#[derive(FromRow)]
struct EmbeddingRow {
    image_id: Uuid,
    model_id: i32,
    embedding: HalfVector,
    bbox: Vec<f32>,
    width: i32,
    height: i32,
    sha256: Vec<u8>,
    phash: Option<i64>,
    dhash: Option<i64>,
    ahash: Option<i64>,
}

impl From<EmbeddingRow> for EmbeddedFace {
    fn from(row: EmbeddingRow) -> Self {
        let (width, height) = (row.width.max(1) as f32, row.height.max(1) as f32);
        let at = |place: usize| row.bbox.get(place).copied().unwrap_or_default();
        let hashes = row.phash.zip(row.dhash).zip(row.ahash);
        Self {
            image_id: row.image_id,
            model_id: row.model_id,
            embedding: row.embedding.as_slice().iter().map(|value| value.to_f32()).collect(),
            region: [at(0) / width, at(1) / height, at(2) / width, at(3) / height],
            sha256: row.sha256,
            hashes: hashes.map(|((phash, dhash), ahash)| [phash, dhash, ahash]),
        }
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
        let rows: Vec<EmbeddingRow> = sqlx::query_as(
            "select f.image_id, f.model_id, f.embedding, f.bbox, i.width, i.height, i.sha256, i.phash, i.dhash, i.ahash
             from faces f join images i on i.id = f.image_id where f.id = any($1) order by f.id",
        )
        .bind(faces)
        .fetch_all(conn)
        .await?;
        Ok(rows.into_iter().map(EmbeddedFace::from).collect())
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
    let similar = index.all_similar(&mut *conn, query).await?;
    let ids: Vec<Uuid> = similar.into_iter().map(|face| face.id).collect();
    let sql = format!(
        "select id, image_id, bbox, similarity from (
             select f.id, f.image_id, f.bbox, 1 - (f.embedding <=> $3::halfvec({})) as similarity from faces f
             where f.model_id = $2 and f.collection_id = $1 and f.id = any($5)) scope
         where similarity >= $4 order by id",
        query.model.dimensions
    );
    let probe = halfvec(query.probe);
    let mut found = Vec::new();
    for ids in ids.chunks(BATCH) {
        // Built at run time, because the probe's type contains the number of dimensions.
        let rows: Vec<FaceRow> = sqlx::query_as(AssertSqlSafe(sql.as_str()))
            .bind(query.collection_id)
            .bind(query.model.id)
            .bind(&probe)
            .bind(f64::from(query.threshold) - ROUNDING)
            .bind(ids)
            .fetch_all(&mut *conn)
            .await?;
        found.extend(rows.into_iter().map(PlannedFace::from));
    }
    Ok(found)
}

/// Landmark positions in a chip.
const TEMPLATE: [[f64; 2]; 5] =
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]];
const SIDE: f64 = 112.0;
/// Margin, in pixels of the image, from which interpolation can add pixels to the edge of a chip,
/// even if the image was upscaled first.
const BORDER: f64 = 4.0;

/// Returns `true` if the chip of a face with these landmarks may contain a part of the box `other`.
/// `landmarks` are x, y pairs; `other` is x, y, width, height. Also `true` for landmarks from which
/// no chip can be cut.
fn chip_shows(landmarks: &[f32], other: [f32; 4]) -> bool {
    let Some([left, top, right, bottom]) = footprint(landmarks) else { return true };
    let [x, y, width, height] = other.map(f64::from);
    x < right + BORDER && x + width > left - BORDER && y < bottom + BORDER && y + height > top - BORDER
}

/// Returns the bounding box of a chip: left, top, right, bottom in pixels of the image.
fn footprint(landmarks: &[f32]) -> Option<[f64; 4]> {
    let from: Vec<[f64; 2]> =
        landmarks.as_chunks::<2>().0.iter().map(|[x, y]| [f64::from(*x), f64::from(*y)]).collect();
    let mean = |points: &[[f64; 2]], axis: usize| points.iter().map(|point| point[axis]).sum::<f64>() / 5.0;
    let (fx, fy) = (mean(&from, 0), mean(&from, 1));
    let (tx, ty) = (mean(&TEMPLATE, 0), mean(&TEMPLATE, 1));
    let (mut along, mut across, mut spread) = (0.0, 0.0, 0.0);
    for (f, t) in from.iter().zip(&TEMPLATE) {
        let (ux, uy, vx, vy) = (f[0] - fx, f[1] - fy, t[0] - tx, t[1] - ty);
        along += ux * vx + uy * vy;
        across += ux * vy - uy * vx;
        spread += ux * ux + uy * uy;
    }
    let (a, b) = (along / spread, across / spread);
    let square = a * a + b * b;
    if from.len() != 5 || !square.is_finite() || square < 1e-12 {
        return None;
    }
    let corners = [[0.0, 0.0], [SIDE, 0.0], [0.0, SIDE], [SIDE, SIDE]].map(|[u, v]| {
        let (du, dv) = (u - tx, v - ty);
        [fx + (a * du + b * dv) / square, fy + (a * dv - b * du) / square]
    });
    let least = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::INFINITY, f64::min);
    let most = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::NEG_INFINITY, f64::max);
    Some([least(0), least(1), most(0), most(1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chip_shows_only_boxes_overlapping_its_footprint() {
        // Scale 2 and an offset: the chip covers x from 100 to 324 and y from 50 to 274.
        let landmarks: Vec<f32> =
            TEMPLATE.iter().flat_map(|[x, y]| [(100.0 + 2.0 * x) as f32, (50.0 + 2.0 * y) as f32]).collect();
        for (x, shown) in [(330.0, false), (327.0, true), (200.0, true), (40.0, false), (50.0, true)] {
            assert_eq!(chip_shows(&landmarks, [x, 100.0, 50.0, 50.0]), shown, "{x}");
        }
        assert!(!chip_shows(&landmarks, [200.0, 280.0, 50.0, 50.0]));
        assert!(chip_shows(&[1.0; 10], [900.0, 900.0, 5.0, 5.0]), "degenerate landmarks count as shown");
        assert!(chip_shows(&[], [900.0, 900.0, 5.0, 5.0]));
    }
}
