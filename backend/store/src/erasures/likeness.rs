//! Finds the faces that are similar to an embedding.
use super::plan::{FaceRow, PlannedFace};
use crate::StoreError;
use crate::faces::halfvec;
use crate::models::EmbeddingModel;
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

/// Number of faces that one statement compares. Such a statement takes only a small part of the
/// statement timeout, even on a slow machine.
const BATCH: i64 = 50_000;

/// Returns all faces of the collection and model with at least the given similarity.
///
/// Compares with every face instead of using the approximate index, because an erasure must not
/// miss one. Reads the faces in id order in batches, so no statement takes long.
pub(super) async fn similar_faces(
    conn: &mut PgConnection,
    collection: Uuid,
    embedding: &[f32],
    model: &EmbeddingModel,
    threshold: f32,
) -> Result<Vec<PlannedFace>, StoreError> {
    // The range matches the index on (collection_id, id), so the end of a batch is found without
    // reading rows.
    let last = "select id from faces where collection_id = $1 and id > $2 order by id offset $3 limit 1";
    let sql = format!(
        "select id, image_id, bbox, similarity from (
             select f.*, 1 - (f.embedding <=> $3::halfvec({})) as similarity from faces f
             where f.model_id = $2 and f.collection_id = $1 and f.id > $5 and f.id <= $6) scope
         where similarity >= $4 order by id",
        model.dimensions
    );
    let probe = halfvec(embedding);
    let (mut found, mut after) = (Vec::new(), Uuid::nil());
    loop {
        let batch_end: Option<Uuid> = sqlx::query_scalar(last)
            .bind(collection)
            .bind(after)
            .bind(BATCH - 1)
            .fetch_optional(&mut *conn)
            .await?;
        // Built at run time, because the type of the probe contains the model's number of
        // dimensions.
        let rows: Vec<FaceRow> = sqlx::query_as(AssertSqlSafe(sql.as_str()))
            .bind(collection)
            .bind(model.id)
            .bind(&probe)
            .bind(f64::from(threshold) - crate::search::ROUNDING)
            .bind(after)
            .bind(batch_end.unwrap_or(Uuid::max()))
            .fetch_all(&mut *conn)
            .await?;
        found.extend(rows.into_iter().map(PlannedFace::from));
        match batch_end {
            Some(last) => after = last,
            None => return Ok(found),
        }
    }
}
