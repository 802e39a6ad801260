//! The interface of a vector engine outside the database. The interface does not depend on
//! Postgres.
//!
//! An engine contains one set of faces for each embedding model. An engine may be outdated, and its
//! answers may be wrong: [`crate::external_index`] compares them with the rows.
use crate::embeddings::EmbeddingModel;
use time::OffsetDateTime;
use uuid::Uuid;

pub use crate::face_index::Similar;

/// A face as an engine contains it.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineFace {
    /// The face.
    pub id: Uuid,
    /// Its collection.
    pub collection_id: Uuid,
    /// Its image.
    pub image_id: Uuid,
    /// The subject to which it belongs.
    pub subject_id: Option<Uuid>,
    /// Its overall quality.
    pub quality_overall: Option<f32>,
    /// Whether it passed its quality profile.
    pub quality_passed: Option<bool>,
    /// When it was stored.
    pub created_at: OffsetDateTime,
    /// Its embedding, as Postgres contains it: rounded to half precision.
    pub embedding: Vec<f32>,
}

/// The faces that a query compares with. Other filters are applied to the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineFilter {
    /// Only faces of this collection.
    pub collection_id: Uuid,
    /// Minimum overall quality.
    pub min_quality: Option<f32>,
    /// Omits faces that failed their quality profile.
    pub omit_failed: bool,
    /// Only faces that belong to a subject.
    pub with_subject: bool,
    /// Omits this face.
    pub exclude_face: Option<Uuid>,
}

/// A query for similar faces.
#[derive(Clone, Debug)]
pub struct EngineQuery {
    /// The faces to compare with.
    pub filter: EngineFilter,
    /// The probe embedding. It fits the model.
    pub probe: Vec<f32>,
    /// What to return.
    pub wanted: Wanted,
}

/// Which faces a query returns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// About this number of the most similar faces. The comparison may be approximate.
    Nearest(usize),
    /// Every face with at least this similarity. Each face is compared.
    All(f32),
}

/// Why an engine could not do its work. The text is for the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);

/// A vector engine outside the database.
#[async_trait::async_trait]
pub trait VectorEngine: std::fmt::Debug + Send + Sync {
    /// Returns the name of the implementation, for logs and metrics.
    fn name(&self) -> &'static str;

    /// Creates the set of faces of a model. Does nothing if it exists.
    ///
    /// # Errors
    /// Fails if the engine is not available.
    async fn prepare(&self, model: &EmbeddingModel) -> Result<(), EngineError>;

    /// Returns the answers to the queries, in their order. The faces of an answer have any order.
    ///
    /// # Errors
    /// Fails if the engine is not available.
    async fn search(
        &self,
        model: &EmbeddingModel,
        queries: Vec<EngineQuery>,
    ) -> Result<Vec<Vec<Similar>>, EngineError>;

    /// Stores or replaces faces of a model, and deletes others. The changes are durable when it
    /// returns. Repeating them changes nothing.
    ///
    /// # Errors
    /// Fails if the engine is not available. A part of the changes may have been made.
    async fn update(
        &self,
        model: &EmbeddingModel,
        stored: Vec<EngineFace>,
        deleted: Vec<Uuid>,
    ) -> Result<(), EngineError>;
}
