use super::view::CollectionView;
use crate::auth::Caller;
use crate::extract::Query;
use crate::{ApiError, Code, Scope, Spec};
use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The collections, ordered by name.
#[derive(Serialize, ToSchema)]
pub(super) struct CollectionList {
    collections: Vec<CollectionView>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NoParams {}

// The operation takes no parameters and rejects any.
pub(super) const SPEC: Spec = Spec::needs(Scope::Read).problems(&[&[Code::BadQuery]]);

/// List the collections that the caller may access.
#[utoipa::path(
    get, path = "/collections", operation_id = "list_collections", tag = "collections",
    responses((status = 200, description = "All collections, by name", body = CollectionList)),
)]
pub(super) async fn list_collections(
    caller: Caller,
    Query(NoParams {}): Query<NoParams>,
) -> Result<Json<CollectionList>, ApiError> {
    let rows = caller.store().collections().await?;
    Ok(Json(CollectionList { collections: rows.into_iter().map(Into::into).collect() }))
}
