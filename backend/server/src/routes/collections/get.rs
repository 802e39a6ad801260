//! `GET /collections/{id}`
use super::view::{CollectionView, find};
use crate::auth::Caller;
use crate::extract::NameOrId;
use crate::{ApiError, Problem};
use axum::Json;

/// One collection.
#[utoipa::path(
    get, path = "/collections/{id}", operation_id = "get_collection", tag = "collections",
    params(("id" = String, Path, description = "The collection's name or id", example = "default")),
    responses(
        (status = 200, description = "The collection", body = CollectionView),
        (status = 404, description = "No such collection", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get_collection(
    caller: Caller,
    which: NameOrId,
) -> Result<Json<CollectionView>, ApiError> {
    Ok(Json(find(&caller, which).await?.into()))
}
