//! Finds the faces that are similar to an embedding.
use super::plan::{FaceRow, PlannedFace};
use crate::StoreError;
use crate::faces::embeddings::{ROUNDING, halfvec};
use crate::index::{AllSimilar, FaceIndex};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

/// Number of rows that one statement reads.
const BATCH: usize = 50_000;

/// Returns all faces of the collection and model with at least the given similarity, ordered by id.
/// The index returns candidates. Each candidate is compared with its row again, so that no other
/// face is erased.
pub(super) async fn similar_faces(
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
