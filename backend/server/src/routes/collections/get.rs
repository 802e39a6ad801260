use super::view::{CollectionView, find};
use crate::auth::Caller;
use crate::extract::NameOrId;
use crate::{ApiError, Scope, Spec};
use axum::Json;

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Return a collection.
#[utoipa::path(
    get, path = "/collections/{id}", operation_id = "get_collection", tag = "collections",
    params(("id" = String, Path, description = "Name or id of the collection", example = "default")),
    responses((status = 200, description = "The collection", body = CollectionView)),
)]
pub(super) async fn get_collection(
    caller: Caller,
    which: NameOrId,
) -> Result<Json<CollectionView>, ApiError> {
    Ok(Json(find(&caller, which).await?.into()))
}
