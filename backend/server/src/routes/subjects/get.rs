use super::view::SubjectView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::{ApiError, Scope, Spec};
use axum::Json;

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Return a subject.
#[utoipa::path(
    get, path = "/subjects/{id}", operation_id = "get_subject", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject")),
    responses((status = 200, description = "The subject", body = SubjectView)),
)]
pub(super) async fn get_subject(caller: Caller, Id(id): Id) -> Result<Json<SubjectView>, ApiError> {
    Ok(Json(caller.store().subject(id).await?.into()))
}
