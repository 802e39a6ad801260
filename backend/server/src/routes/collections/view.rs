//! Gets and lists collections.
use crate::auth::Caller;
use crate::extract::{NameOrId, Query};
use crate::{Code, Result, Scope, Spec};
use axum::Json;
use serde::{Deserialize, Serialize};
use store::collections::Collection;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// A collection.
#[derive(Serialize, ToSchema)]
pub(super) struct CollectionView {
    /// Its id.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b00")]
    id: Uuid,
    /// Its unique name.
    #[schema(example = "default")]
    name: String,
    /// Quality profile that is applied to faces: `off`, `standard`, `strict`; null means the
    /// default of the service.
    #[schema(example = "standard")]
    quality_profile: Option<String>,
    /// Minimum similarity at which two faces are considered one person; null means the embedding
    /// model's own.
    #[schema(example = 0.45)]
    match_threshold: Option<f32>,
    /// Days after which images and faces are deleted; null means never.
    #[schema(example = 365)]
    retention_days: Option<i32>,
    /// Time of creation.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl From<Collection> for CollectionView {
    fn from(row: Collection) -> Self {
        Self {
            id: row.id,
            name: row.name,
            quality_profile: row.quality_profile,
            match_threshold: row.match_threshold,
            retention_days: row.retention_days,
            created_at: row.created_at,
        }
    }
}

/// Returns the collection of a path if the caller may access it.
pub(super) async fn find(caller: &Caller, which: NameOrId) -> Result<Collection> {
    Ok(match which {
        NameOrId::Id(id) => caller.store().collections().by_id(id).await?,
        NameOrId::Name(name) => caller.store().collections().get(&name).await?,
    })
}

pub(super) const GET: Spec = Spec::needs(Scope::Read);

/// Return a collection.
#[utoipa::path(
    get, path = "/collections/{id}", operation_id = "get_collection", tag = "collections",
    params(("id" = String, Path, description = "Name or id of the collection", example = "default")),
    responses((status = 200, description = "The collection", body = CollectionView)),
)]
pub(super) async fn get_collection(caller: Caller, which: NameOrId) -> Result<Json<CollectionView>> {
    Ok(Json(find(&caller, which).await?.into()))
}

/// The collections, ordered by name.
#[derive(Serialize, ToSchema)]
pub(super) struct CollectionList {
    collections: Vec<CollectionView>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NoParams {}

// The operation takes no parameters and rejects any.
pub(super) const LIST: Spec = Spec::needs(Scope::Read).problems(&[&[Code::BadQuery]]);

/// List the collections that the caller may access.
#[utoipa::path(
    get, path = "/collections", operation_id = "list_collections", tag = "collections",
    responses((status = 200, description = "All collections, by name", body = CollectionList)),
)]
pub(super) async fn list_collections(
    caller: Caller,
    Query(NoParams {}): Query<NoParams>,
) -> Result<Json<CollectionList>> {
    let rows = caller.store().collections().list().await?;
    Ok(Json(CollectionList { collections: rows.into_iter().map(Into::into).collect() }))
}
