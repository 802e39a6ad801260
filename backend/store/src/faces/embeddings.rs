//! Embeddings as the database stores them, and the models that compute them. Reads and writes are
//! in other modules.
use crate::StoreError;
use half::f16;
use pgvector::HalfVector;

#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct EmbeddingModel {
    /// Short id that faces refer to.
    pub id: i32,
    /// Identity of the model (`inference::EmbedderInfo::identity`).
    pub identity: String,
    /// File name.
    pub name: String,
    pub dimensions: i32,
}

/// Tolerance for comparing in double precision with a threshold in single precision. A face whose
/// similarity rounds up to the threshold must not be lost.
pub(crate) const ROUNDING: f64 = 1e-6;

pub(crate) fn halfvec(embedding: &[f32]) -> HalfVector {
    HalfVector::from(embedding.iter().copied().map(f16::from_f32).collect::<Vec<f16>>())
}

pub(crate) fn floats(embedding: &HalfVector) -> Vec<f32> {
    embedding.as_slice().iter().copied().map(f16::to_f32).collect()
}

/// Fails with `Invalid` unless the embedding can be compared. The embedding must have the model's
/// length and finite components, and must not be zero after rounding to half precision.
pub(crate) fn check_embedding(embedding: &[f32], model: &str, dimensions: i32) -> Result<(), StoreError> {
    if embedding.len() != dimensions as usize {
        return Err(StoreError::Invalid(format!(
            "the embedding has {} components; the model {model} requires {dimensions}",
            embedding.len()
        )));
    }
    if embedding.iter().any(|component| !f16::from_f32(*component).is_finite()) {
        return Err(StoreError::Invalid("the embedding has a component that is not a finite number".into()));
    }
    if embedding.iter().all(|component| f16::from_f32(*component) == f16::ZERO) {
        return Err(StoreError::Invalid("all components of the embedding are zero".into()));
    }
    Ok(())
}
