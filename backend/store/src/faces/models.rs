//! The registered embedding models, and faces that have an embedding of another model. A search
//! never compares faces of different models.
use crate::StoreError;
use crate::blobs::parts::FaceParts;
use crate::db::values::{check_embedding, halfvec};
pub use crate::index::EmbeddingModel;
use crate::store::Models;
use pgvector::HalfVector;
use sqlx::{PgExecutor, PgPool};
use uuid::Uuid;

impl Models<'_> {
    /// Registers the model. Does nothing if it is registered.
    ///
    /// # Errors
    /// Fails with `Invalid` if `dimensions` is outside 1 to 2000, and with `Conflict` if the
    /// identity is registered with different dimensions.
    pub async fn register(
        self,
        identity: &str,
        name: &str,
        dimensions: i32,
    ) -> Result<EmbeddingModel, StoreError> {
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            return Err(StoreError::Invalid(format!(
                "an embedding with {dimensions} components cannot be stored; 1 to {MAX_DIMENSIONS} are allowed"
            )));
        }
        let mut model = find_model(&self.0.pool, identity).await?;
        if model.is_none() {
            // Another process may register the model at the same time.
            sqlx::query(
                "insert into embedding_models (identity, name, dimensions) values ($1, $2, $3) on conflict (identity) do nothing",
            )
            .bind(identity)
            .bind(name)
            .bind(dimensions)
            .execute(&self.0.pool)
            .await?;
            model = find_model(&self.0.pool, identity).await?;
        }
        check_dimensions(model.ok_or_else(|| StoreError::not_found("embedding model", identity))?, dimensions)
    }

    /// Stores the model's match threshold, which is the minimum similarity of two faces of one
    /// person, and the measured false-match rate.
    pub async fn record_match_threshold(
        self,
        model: i32,
        threshold: f32,
        fmr: Option<f64>,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "update embedding_models set match_threshold = $2, match_fmr = $3
             where id = $1 and (match_threshold, match_fmr) is distinct from ($2, $3)",
        )
        .bind(model)
        .bind(threshold)
        .bind(fmr)
        .execute(&self.0.pool)
        .await?;
        Ok(())
    }

    pub async fn get(self, id: i32) -> Result<EmbeddingModel, StoreError> {
        self.get_in(&self.0.pool, id).await
    }

    pub(crate) async fn get_in(
        self,
        executor: impl PgExecutor<'_>,
        id: i32,
    ) -> Result<EmbeddingModel, StoreError> {
        sqlx::query_as("select id, identity, name, dimensions from embedding_models where id = $1")
            .bind(id)
            .fetch_optional(executor)
            .await?
            .ok_or_else(|| StoreError::not_found("embedding model", id))
    }
}

async fn find_model(pool: &PgPool, identity: &str) -> Result<Option<EmbeddingModel>, StoreError> {
    let query = "select id, identity, name, dimensions from embedding_models where identity = $1";
    Ok(sqlx::query_as(query).bind(identity).fetch_optional(pool).await?)
}

/// Maximum number of components of an embedding. It ensures that a row fits into one database page.
const MAX_DIMENSIONS: i32 = 2000;

fn check_dimensions(model: EmbeddingModel, dimensions: i32) -> Result<EmbeddingModel, StoreError> {
    if model.dimensions == dimensions {
        return Ok(model);
    }
    Err(StoreError::Conflict(format!(
        "the embedding model {} is registered with {} components, not {dimensions}",
        model.name, model.dimensions
    )))
}

/// A face with an embedding of a different model.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct OutdatedFace {
    pub id: Uuid,
    /// Where its aligned chip is, from which a new embedding can be computed.
    #[sqlx(flatten)]
    pub parts: FaceParts,
    /// Name of the model of its current embedding.
    pub model: String,
}

impl Models<'_> {
    /// Returns faces of the collection with embeddings of another model, by id, after `after`.
    pub async fn outdated_faces(
        self,
        collection: Uuid,
        model: i32,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<OutdatedFace>, StoreError> {
        Ok(sqlx::query_as(
            "select f.id, coalesce(f.parts_key, i.parts_key) as parts_key, f.parts_offset, f.crop_bytes, f.chip_bytes,
                    f.crop_key, f.chip_key, m.name as model
             from faces f join images i on i.id = f.image_id join embedding_models m on m.id = f.model_id
             where f.collection_id = $1 and f.id > $3 and f.model_id <> $2 order by f.id limit $4",
        )
        .bind(collection)
        .bind(model)
        .bind(after)
        .bind(limit)
        .fetch_all(&self.0.pool)
        .await?)
    }

    pub async fn count_outdated_faces(self, collection: Uuid, model: i32) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar("select count(*) from faces where collection_id = $1 and model_id <> $2")
            .bind(collection)
            .bind(model)
            .fetch_one(&self.0.pool)
            .await?)
    }

    /// Returns, for each model other than `model`, its name and its number of faces in all
    /// collections, in descending order of that number.
    pub async fn faces_of_other_models(self, model: i32) -> Result<Vec<(String, i64)>, StoreError> {
        // The query makes one index lookup per model, regardless of how many faces `model` has.
        Ok(sqlx::query_as(
            "select m.name, n.faces from embedding_models m
             cross join lateral (select count(*) as faces from faces f where f.model_id = m.id) n
             where m.id <> $1 and n.faces > 0 order by n.faces desc, m.name",
        )
        .bind(model)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Replaces the embeddings of the faces with embeddings of `model`, in one transaction, so that
    /// a face always has exactly one embedding. Returns the number replaced. Faces that were
    /// deleted in the meantime are not counted.
    ///
    /// Clustering will process the faces again. Their subjects do not change.
    ///
    /// # Errors
    /// Fails with `Invalid` if an embedding does not fit the model. Then nothing changes.
    pub async fn replace_embeddings(
        self,
        model: &EmbeddingModel,
        embeddings: &[(Uuid, Vec<f32>)],
    ) -> Result<u64, StoreError> {
        for (_, embedding) in embeddings {
            check_embedding(embedding, &model.name, model.dimensions)?;
        }
        let ids: Vec<Uuid> = embeddings.iter().map(|(id, _)| *id).collect();
        let mut tx = self.0.begin().await?;
        // All transactions lock faces in id order, which prevents deadlocks.
        sqlx::query("select 1 from faces where id = any($1) order by id for no key update")
            .bind(&ids)
            .execute(tx.conn())
            .await?;
        let replaced = sqlx::query(
            "update faces f set embedding = n.embedding, model_id = $3
             from unnest($1::uuid[], $2::halfvec[]) as n (id, embedding) where f.id = n.id and f.model_id <> $3",
        )
        .bind(&ids)
        .bind(embeddings.iter().map(|(_, embedding)| halfvec(embedding)).collect::<Vec<HalfVector>>())
        .bind(model.id)
        .execute(tx.conn())
        .await?;
        sqlx::query("delete from clustered_faces where face_id = any($1)")
            .bind(&ids)
            .execute(tx.conn())
            .await?;
        tx.commit().await?;
        Ok(replaced.rows_affected())
    }
}
