//! The interface of a vector index: it finds the ids of similar faces. Rows are read and written by
//! other modules.
//!
//! Postgres is the source of truth. Answers contain only faces whose rows are in the scope of the
//! request, with the rows' similarities; only [`FaceIndex::all_similar`] may return others too.
//! [`crate::index::external`] does this for an engine that keeps its own copy of the embeddings.

pub mod changes;
pub(crate) mod comparison;
pub mod engine;
pub mod external;
pub mod pgvector;
pub mod sets;

use crate::StoreError;
use crate::faces::embeddings::EmbeddingModel;
use crate::faces::scope::FaceScope;
use sqlx::PgConnection;
use std::fmt;
use std::time::Duration;
use uuid::Uuid;

pub use pgvector::Pgvector;

/// A look-up of the faces that are most similar to a probe.
#[derive(Clone, Debug)]
pub struct Nearest<'a> {
    pub scope: &'a FaceScope,
    pub model: &'a EmbeddingModel,
    /// The probe embedding. It fits the model.
    pub probe: &'a [f32],
    /// Minimum similarity of an exact comparison. Other comparisons ignore it, so that the caller
    /// can tell from the number of faces that an answer is incomplete.
    pub threshold: f32,
    pub limit: i64,
    /// Requires a comparison with every face in scope.
    pub exact: bool,
}

#[derive(Clone, Debug)]
pub struct Neighbours<'a> {
    pub faces: &'a [Uuid],
    pub scope: &'a FaceScope,
    pub model: &'a EmbeddingModel,
    /// Maximum number of neighbours of each face.
    pub limit: i64,
    pub threshold: f32,
    pub exact: bool,
}

/// A look-up of all faces of a collection that are similar to a probe.
#[derive(Clone, Debug)]
pub struct AllSimilar<'a> {
    pub collection_id: Uuid,
    /// Only faces with embeddings of this model.
    pub model: &'a EmbeddingModel,
    /// The probe embedding. It fits the model.
    pub probe: &'a [f32],
    pub threshold: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, sqlx::FromRow)]
pub struct Similar {
    pub id: Uuid,
    /// Cosine similarity, -1 to 1.
    pub similarity: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, sqlx::FromRow)]
pub struct Pair {
    /// The queried face.
    pub face: Uuid,
    pub neighbour: Uuid,
    /// Cosine similarity, -1 to 1.
    pub similarity: f32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The faces, in any order.
    pub faces: Vec<Similar>,
    /// Whether every face in scope was compared.
    pub exact: bool,
}

/// A vector index over the embeddings of the stored faces. Every method that looks faces up fails
/// with [`StoreError::IndexUnavailable`] if the index cannot answer now. The caller then compares
/// in Postgres, or tries again later.
#[async_trait::async_trait]
pub trait FaceIndex: fmt::Debug + Send + Sync {
    /// Returns the name of the implementation, for logs and metrics.
    fn name(&self) -> &'static str;

    /// Returns whether the index can store faces of the model.
    async fn is_prepared(&self, model: &EmbeddingModel) -> Result<bool, StoreError>;

    /// Creates what the index needs for faces of the model, including faces that exist already.
    /// Does nothing if it exists. `conn` is in the transaction that registers the model.
    async fn prepare(&self, conn: &mut PgConnection, model: &EmbeddingModel) -> Result<(), StoreError>;

    /// Returns the most similar faces. An approximate answer may omit some of them.
    async fn nearest(&self, query: &Nearest<'_>) -> Result<Found, StoreError>;

    /// Returns the most similar faces of each of the stored faces, without the face itself, in the
    /// order of the ids of the face and its neighbour.
    async fn neighbours(&self, query: &Neighbours<'_>) -> Result<Vec<Pair>, StoreError>;

    /// Returns all faces that `conn` can see and that are at least as similar as the threshold. The
    /// answer may contain other faces too, but it must not omit any of these, because an erasure
    /// uses it. The order is by id.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable` if the index cannot be complete, or with the database's error.
    async fn all_similar(
        &self,
        conn: &mut PgConnection,
        query: &AllSimilar<'_>,
    ) -> Result<Vec<Similar>, StoreError>;

    /// Returns the age of the oldest change of a face that the index lacks; zero if there is none.
    async fn lag(&self) -> Result<Duration, StoreError> {
        Ok(Duration::ZERO)
    }

    /// Returns when the index contains every change that was committed before the call.
    ///
    /// # Errors
    /// Fails with `IndexUnavailable` after the time `within`, or with the database's error.
    async fn caught_up(&self, within: Duration) -> Result<(), StoreError> {
        let _ = within;
        Ok(())
    }
}
