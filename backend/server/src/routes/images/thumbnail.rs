use super::blob_answer;
use crate::auth::Caller;
use crate::extract::Id;
use crate::routes::dto::Binary;
use crate::{ApiError, AppState, Scope, Spec};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Return a small version of a stored image. The original file is not stored.
#[utoipa::path(
    get, path = "/images/{id}/thumbnail", operation_id = "get_image_thumbnail", tag = "images",
    params(("id" = Uuid, Path, description = "Id of the image")),
    responses(
        (status = 200, description = "The thumbnail", content((Binary = "image/jpeg")), headers(("etag"))),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`", headers(("etag"))),
        (status = 404, description = "The image does not exist or has no thumbnail"),
    ),
)]
pub(super) async fn get_image_thumbnail(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let gone = || ApiError::not_found("thumbnail of image", id);
    let key = caller.store().image(id).await?.thumbnail_key.ok_or_else(gone)?;
    blob_answer(&state, &key, &headers).await?.ok_or_else(gone)
}
