use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::routes::dto::Binary;
use crate::routes::images::blob_answer;
use crate::{ApiError, AppState, Scope, Spec};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

/// The kind of a face image.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum CropKind {
    /// The face with some of its surroundings, JPEG.
    #[default]
    Crop,
    /// The aligned chip of 112x112 pixels from which the embedding was computed, PNG.
    Chip,
}

/// Selects the kind of the image.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CropParams {
    /// `crop` (the default) shows the face with some of its surroundings (JPEG). `chip` is the
    /// aligned 112x112 image (PNG).
    #[param(inline)]
    kind: Option<CropKind>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Return the image of a stored face.
#[utoipa::path(
    get, path = "/faces/{id}/crop", operation_id = "get_face_crop", tag = "faces",
    params(("id" = Uuid, Path, description = "Id of the face"), CropParams),
    responses(
        (status = 200, description = "The image", content((Binary = "image/jpeg"), (Binary = "image/png")), headers(("etag"))),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`", headers(("etag"))),
        (status = 404, description = "The face does not exist or has no image of this kind"),
    ),
)]
pub(super) async fn get_face_crop(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<CropParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let face = caller.store().face(id).await?;
    let (key, what) = match params.kind.unwrap_or_default() {
        CropKind::Crop => (face.crop_key, "crop of face"),
        CropKind::Chip => (face.chip_key, "chip of face"),
    };
    let key = key.ok_or_else(|| ApiError::not_found(what, id))?;
    blob_answer(&state, &key, &headers).await?.ok_or_else(|| ApiError::not_found(what, id))
}
