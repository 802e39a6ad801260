use crate::auth::Caller;
use crate::extract::cursor::List;
use crate::extract::values::Bounded;
use crate::extract::{Id, Query};
use crate::routes::faces::{StoredFace, with_sources};
use crate::{ApiError, AppState, Scope, Spec};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Selects a page of the list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct ListParams {
    /// Maximum number of faces in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of a subject's faces, newest first.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct SubjectFaceList {
    faces: Vec<StoredFace>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

pub(in super::super) const SPEC: Spec = Spec::needs(Scope::Read);

/// List the faces of a subject.
#[utoipa::path(
    get, path = "/subjects/{id}/faces", operation_id = "list_subject_faces", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject"), ListParams),
    responses((status = 200, description = "A page of faces, newest first", body = SubjectFaceList)),
)]
pub(in super::super) async fn list_subject_faces(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<ListParams>,
) -> Result<Json<SubjectFaceList>, ApiError> {
    let store = caller.store();
    let subject = store.subject(id).await?;
    let list = List::of("subject_faces", id);
    let before = list.after(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut faces = store.faces_of_subject(subject.collection_id, id, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut faces, limit, |face| face.id);
    Ok(Json(SubjectFaceList { faces: with_sources(&state, faces).await?, next_cursor }))
}
