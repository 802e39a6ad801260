//! The registered embedding models. A search never compares faces of different models.
use crate::{Store, StoreError};
use sqlx::AssertSqlSafe;

/// A registered embedding model.
#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct EmbeddingModel {
    /// Short id that faces refer to.
    pub id: i32,
    /// Identity of the model (`inference::EmbedderInfo::identity`).
    pub identity: String,
    /// File name.
    pub name: String,
    /// Number of components of an embedding.
    pub dimensions: i32,
}

impl Store {
    /// Registers the model and creates its partial HNSW index. Does nothing if both exist.
    ///
    /// # Errors
    /// Fails with `Invalid` if `dimensions` is outside 1 to 2000, and with `Conflict` if the
    /// identity is registered with different dimensions.
    pub async fn register_model(
        &self,
        identity: &str,
        name: &str,
        dimensions: i32,
    ) -> Result<EmbeddingModel, StoreError> {
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            return Err(StoreError::Invalid(format!(
                "an embedding with {dimensions} components cannot be stored; 1 to {MAX_DIMENSIONS} are allowed"
            )));
        }
        if let Some(known) = self.find_model(identity).await?
            && self.has_index(&known).await?
        {
            return same_dimensions(known, dimensions);
        }
        let mut tx = self.begin().await?;
        sqlx::query("select pg_advisory_xact_lock(hashtextextended('facecrawl.register_model', 0))")
            .execute(tx.conn())
            .await?;
        sqlx::query(
            "insert into embedding_models (identity, name, dimensions) values ($1, $2, $3) on conflict (identity) do nothing",
        )
        .bind(identity)
        .bind(name)
        .bind(dimensions)
        .execute(tx.conn())
        .await?;
        let model: EmbeddingModel =
            sqlx::query_as("select id, identity, name, dimensions from embedding_models where identity = $1")
                .bind(identity)
                .fetch_one(tx.conn())
                .await?;
        let model = same_dimensions(model, dimensions)?;
        // The index build waits for writers of `faces` and can take long for a large table.
        sqlx::query("set local statement_timeout = 0").execute(tx.conn()).await?;
        // The statement contains only numbers, so nothing in it comes from a caller. Statistics are
        // disabled, because they would keep samples of erased embeddings.
        let index = format!(
            "create index if not exists {0} on faces using hnsw ((embedding::halfvec({1})) halfvec_cosine_ops)
                 with (m = {NEIGHBOURS}, ef_construction = {CANDIDATES}) where model_id = {2};
             alter index {0} alter column 1 set statistics 0",
            index_name(model.id),
            model.dimensions,
            model.id
        );
        sqlx::raw_sql(AssertSqlSafe(index)).execute(tx.conn()).await?;
        tx.commit().await?;
        Ok(model)
    }

    /// Stores the model's match threshold, which is the minimum similarity of two faces of one
    /// person, and the measured false-match rate.
    pub async fn record_match_threshold(
        &self,
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
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Returns the model with this id.
    pub async fn model(&self, id: i32) -> Result<EmbeddingModel, StoreError> {
        sqlx::query_as("select id, identity, name, dimensions from embedding_models where id = $1")
            .bind(id)
            .fetch_optional(&self.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("embedding model", id))
    }

    async fn find_model(&self, identity: &str) -> Result<Option<EmbeddingModel>, StoreError> {
        Ok(sqlx::query_as("select id, identity, name, dimensions from embedding_models where identity = $1")
            .bind(identity)
            .fetch_optional(&self.pool)
            .await?)
    }

    /// Returns `true` if the model's index exists. This is checked first, because `create index if
    /// not exists` waits for all writers even if the index exists.
    async fn has_index(&self, model: &EmbeddingModel) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar("select to_regclass($1) is not null")
            .bind(index_name(model.id))
            .fetch_one(&self.pool)
            .await?)
    }
}

/// Maximum number of components of an embedding. It ensures that a row fits into one database page.
const MAX_DIMENSIONS: i32 = 2000;

/// Parameters of the HNSW index: the number of links per face and layer, and the number of
/// candidates considered when a face is added. They are pgvector's `m` and `ef_construction`, by
/// default 16 and 64. With 64 candidates and a million faces, one face in thirty gets no good links
/// when it is added. Later searches do not find such a face; see `docs/reference/PERFORMANCE.md`.
const NEIGHBOURS: i32 = 16;
const CANDIDATES: i32 = 128;

fn index_name(model: i32) -> String {
    format!("faces_embedding_hnsw_{model}")
}

fn same_dimensions(model: EmbeddingModel, dimensions: i32) -> Result<EmbeddingModel, StoreError> {
    if model.dimensions == dimensions {
        return Ok(model);
    }
    Err(StoreError::Conflict(format!(
        "the embedding model {} is registered with {} components, not {dimensions}",
        model.name, model.dimensions
    )))
}
