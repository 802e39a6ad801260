//! Collections: the unit of isolation.
use crate::{Store, StoreError};
use time::OffsetDateTime;
use uuid::Uuid;

/// A collection. `default` always exists.
#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Collection {
    /// Its id.
    pub id: Uuid,
    /// Unique name: 1 to 64 of `a-z 0-9 - _`.
    pub name: String,
    /// `off`, `standard`, `strict`; `None` is the service's own.
    pub quality_profile: Option<String>,
    /// Similarity from which a search result counts; `None` is the embedder's own.
    pub match_threshold: Option<f32>,
    /// Days after which images and faces are erased; `None` is never.
    pub retention_days: Option<i32>,
    /// When it was made.
    pub created_at: OffsetDateTime,
}

impl Store {
    /// By name.
    pub async fn collection(&self, _name: &str) -> Result<Collection, StoreError> {
        todo!()
    }
    /// By name, made when it is not there.
    pub async fn ensure_collection(&self, _name: &str) -> Result<Collection, StoreError> {
        todo!()
    }
    /// All, by name.
    pub async fn collections(&self) -> Result<Vec<Collection>, StoreError> {
        todo!()
    }
}
