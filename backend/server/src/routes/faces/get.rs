use super::{StoredFace, with_sources};
use crate::auth::Caller;
use crate::extract::Id;
use crate::{ApiError, AppState, Scope, Spec};
use axum::Json;
use axum::extract::State;

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Return a stored face.
#[utoipa::path(
    get, path = "/faces/{id}", operation_id = "get_face", tag = "faces",
    params(("id" = Uuid, Path, description = "Id of the face")),
    responses((status = 200, description = "The face", body = StoredFace)),
)]
pub(super) async fn get_face(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<StoredFace>, ApiError> {
    let face = caller.store().face(id).await?;
    let face = with_sources(&state, vec![face]).await?.pop();
    face.map(Json).ok_or_else(|| ApiError::not_found("face", id))
}
