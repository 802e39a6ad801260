//! 1:N search by similarity.
use crate::{Store, StoreError, faces::Face};
use uuid::Uuid;

/// What to look for, and where.
#[derive(Clone, Debug)]
pub struct SearchQuery {
    /// The collection.
    pub collection_id: Uuid,
    /// The probe, L2-normalised.
    pub embedding: Vec<f32>,
    /// Only faces of this model.
    pub model_id: i32,
    /// Lowest cosine similarity.
    pub threshold: f32,
    /// Most results.
    pub limit: i64,
    /// Never use the index.
    pub exact: bool,
    /// Only faces in images found by this crawl.
    pub crawl_id: Option<Uuid>,
    /// At least this overall quality.
    pub min_quality: Option<f32>,
    /// Leave this face out (a search by `face_id`).
    pub exclude_face: Option<Uuid>,
}

/// A face and how near it is.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The face.
    pub face: Face,
    /// Cosine similarity, -1..1.
    pub similarity: f32,
}

impl Store {
    /// Best first. Exact up to 50,000 faces in scope, then HNSW with iterative scan; the flag says which it was (`true`: exact).
    pub async fn search(&self, _query: &SearchQuery) -> Result<(Vec<Hit>, bool), StoreError> {
        todo!()
    }
}
