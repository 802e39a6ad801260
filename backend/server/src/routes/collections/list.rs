//! `GET /collections`
use crate::ApiError;
use crate::auth::Caller;
use crate::extract::Query;
use axum::Json;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// A collection.
#[derive(Serialize, ToSchema)]
struct CollectionView {
    /// Its id.
    id: Uuid,
    /// Its unique name.
    #[schema(example = "default")]
    name: String,
    /// Demands on faces; null is the service's own.
    #[schema(example = "standard")]
    quality_profile: Option<String>,
    /// Similarity from which a search result counts; null is the embedding model's own.
    match_threshold: Option<f32>,
    /// Days after which images and faces are erased; null is never.
    retention_days: Option<i32>,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

/// All collections, by name.
#[derive(Serialize, ToSchema)]
pub(super) struct CollectionList {
    collections: Vec<CollectionView>,
}

/// Takes no parameters.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NoParams {}

/// List the collections that the caller can reach.
#[utoipa::path(
    get, path = "/collections", operation_id = "list_collections", tag = "collections",
    responses((status = 200, description = "All collections, by name", body = CollectionList)),
)]
pub(super) async fn list_collections(
    caller: Caller,
    Query(NoParams {}): Query<NoParams>,
) -> Result<Json<CollectionList>, ApiError> {
    let rows = caller.store().collections().await?;
    let collections = rows
        .into_iter()
        .map(|row| CollectionView {
            id: row.id,
            name: row.name,
            quality_profile: row.quality_profile,
            match_threshold: row.match_threshold,
            retention_days: row.retention_days,
            created_at: row.created_at,
        })
        .collect();
    Ok(Json(CollectionList { collections }))
}
