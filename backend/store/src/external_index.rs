//! A vector index in an engine outside the database. The engine returns candidates, which are
//! checked against the rows.
//!
//! Each candidate is compared again with its row, in the scope of the request, so a face that was
//! erased or moved is never returned, and similarities are those of the rows. Exact searches
//! compare in Postgres. A look-up of all similar faces also compares in Postgres, because an
//! erasure must not omit a face, and because it is not recorded whether the engine has all faces.
mod follow;

use crate::embeddings::EmbeddingModel;
use crate::face_index::{AllSimilar, FaceIndex, Found, Nearest, Neighbours, Pair, Similar, comparison};
use crate::face_scope::FaceScope;
use crate::vector_engine::{EngineError, EngineFilter, EngineQuery, VectorEngine, Wanted};
use crate::{Store, StoreError};
use half::f16;
use pgvector::HalfVector;
use sqlx::PgConnection;
use std::collections::HashMap;
use std::sync::Arc;
use uuid::Uuid;

pub use follow::Followed;

/// Number of candidates that are requested beyond the limit of a query: a percentage of the limit,
/// and the minimum. The engine may still contain deleted faces.
const ROOM_PERCENT: i64 = 10;
const MIN_ROOM: i64 = 10;

/// The index of an engine outside the database.
#[derive(Clone, Debug)]
pub struct ExternalIndex {
    store: Store,
    engine: Arc<dyn VectorEngine>,
}

impl ExternalIndex {
    /// Returns the index of `engine` for the faces of the store's database.
    pub fn new(store: Store, engine: Arc<dyn VectorEngine>) -> Self {
        Self { store, engine }
    }

    async fn candidates(
        &self,
        model: &EmbeddingModel,
        queries: Vec<EngineQuery>,
    ) -> Result<Vec<Vec<Similar>>, StoreError> {
        self.engine.search(model, queries).await.map_err(|error| self.unavailable(error))
    }

    fn unavailable(&self, error: EngineError) -> StoreError {
        StoreError::IndexUnavailable(format!("{}: {error}", self.engine.name()))
    }

    /// Returns the embeddings of the faces that the collection and the model still have.
    async fn embeddings(
        &self,
        scope: &FaceScope,
        faces: &[Uuid],
    ) -> Result<HashMap<Uuid, Vec<f32>>, StoreError> {
        let rows: Vec<(Uuid, HalfVector)> = sqlx::query_as(
            "select id, embedding from faces where id = any($1) and model_id = $2 and collection_id = $3",
        )
        .bind(faces)
        .bind(scope.model_id)
        .bind(scope.collection_id)
        .fetch_all(self.store.pool())
        .await?;
        Ok(rows.into_iter().map(|(id, embedding)| (id, floats(&embedding))).collect())
    }
}

#[async_trait::async_trait]
impl FaceIndex for ExternalIndex {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    /// Always returns `false`, because the preparation of an engine is fast and can be repeated.
    async fn is_prepared(&self, _: &EmbeddingModel) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn prepare(&self, _: &mut PgConnection, model: &EmbeddingModel) -> Result<(), StoreError> {
        self.engine.prepare(model).await.map_err(|error| self.unavailable(error))
    }

    async fn nearest(&self, query: &Nearest<'_>) -> Result<Found, StoreError> {
        if query.exact {
            let faces = comparison::nearest(self.store.pool(), query).await?;
            return Ok(Found { faces, exact: true });
        }
        let room = (query.limit / (100 / ROOM_PERCENT)).max(MIN_ROOM);
        let wanted = Wanted::Nearest(usize::try_from(query.limit.saturating_add(room)).unwrap_or_default());
        let queries = vec![EngineQuery { filter: filter(query.scope), probe: query.probe.to_vec(), wanted }];
        let found = self.candidates(query.model, queries).await?;
        let ids: Vec<Uuid> = found.into_iter().flatten().map(|face| face.id).collect();
        let faces = comparison::among(self.store.pool(), query, &ids).await?;
        Ok(Found { faces, exact: false })
    }

    async fn neighbours(&self, query: &Neighbours<'_>) -> Result<Vec<Pair>, StoreError> {
        if query.exact {
            return comparison::neighbours(self.store.pool(), query).await;
        }
        let probes: Vec<(Uuid, Vec<f32>)> =
            self.embeddings(query.scope, query.faces).await?.into_iter().collect();
        let wanted = Wanted::Nearest(usize::try_from(query.limit).unwrap_or_default());
        let of = |(face, probe): &(Uuid, Vec<f32>)| {
            let filter = EngineFilter { exclude_face: Some(*face), ..filter(query.scope) };
            EngineQuery { filter, probe: probe.clone(), wanted }
        };
        let found = self.candidates(query.model, probes.iter().map(of).collect()).await?;
        let pairs: Vec<(Uuid, Uuid)> = probes
            .iter()
            .zip(found)
            .flat_map(|((face, _), found)| found.into_iter().map(|neighbour| (*face, neighbour.id)))
            .collect();
        comparison::among_pairs(self.store.pool(), query, &pairs).await
    }

    /// Compares in Postgres. No recorded change may be left although the engine lacks faces: before
    /// the copy of older faces has ended, and after the recording was stopped and started again.
    async fn all_similar(
        &self,
        conn: &mut PgConnection,
        query: &AllSimilar<'_>,
    ) -> Result<Vec<Similar>, StoreError> {
        comparison::all_similar(conn, query).await
    }
}

/// Returns the filters of the scope that an engine can apply.
fn filter(scope: &FaceScope) -> EngineFilter {
    EngineFilter {
        collection_id: scope.collection_id,
        min_quality: scope.min_quality,
        omit_failed: scope.omit_failed,
        with_subject: scope.with_subject,
        exclude_face: scope.exclude_face,
    }
}

fn floats(embedding: &HalfVector) -> Vec<f32> {
    embedding.as_slice().iter().copied().map(f16::to_f32).collect()
}
