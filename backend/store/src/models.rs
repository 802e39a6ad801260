//! Embedding models by identity; search never mixes them.
use crate::{Store, StoreError};

/// A registered embedding model.
#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct EmbeddingModel {
    /// Short key used by faces.
    pub id: i32,
    /// `inference::EmbedderInfo::identity`.
    pub identity: String,
    /// File name.
    pub name: String,
    /// Components.
    pub dimensions: i32,
}

impl Store {
    /// Registers the model (idempotent) and makes sure of its partial HNSW index.
    pub async fn register_model(
        &self,
        _identity: &str,
        _name: &str,
        _dimensions: i32,
    ) -> Result<EmbeddingModel, StoreError> {
        todo!()
    }
}
