use super::{Enrolled, EnrolledImagesParams};
use crate::auth::{Caller, insufficient};
use crate::extract::{Query, SubjectFace};
use crate::routes::deletion::{DeletionPreview, preview};
use crate::routes::images::drop_blobs;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use store::erasures::retention::Extent;
use store::keys::audit::Action;
use store::retried;

pub(in super::super) const SPEC: Spec = Spec::needs(Scope::Write).problems(&[&[Code::ConfirmationNeeded]]);

/// Remove a face from a subject.
///
/// Clustering does not assign the face to this subject again. The face is kept, unless its image
/// was only sent for enrolment (see `enrolled_images`). `enrolled_images=delete`, the default,
/// requires the scope `erase` in addition to `write`.
#[utoipa::path(
    delete, path = "/subjects/{id}/faces/{face_id}", operation_id = "remove_subject_face", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject"), ("face_id" = Uuid, Path, description = "Id of the face"), EnrolledImagesParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 204, description = "The face was removed from the subject"),
        (status = 404, description = "The subject does not exist, or the face is not assigned to it"),
    ),
)]
pub(in super::super) async fn remove_subject_face(
    State(state): State<AppState>,
    caller: Caller,
    SubjectFace { id, face_id }: SubjectFace,
    Query(params): Query<EnrolledImagesParams>,
) -> Result<Response, ApiError> {
    let drop = matches!(params.enrolled_images.unwrap_or_default(), Enrolled::Delete);
    if drop && caller.key().is_some_and(|key| !key.allows(Scope::Erase)) {
        let detail = "this deletes images that were sent for enrolment, which requires the scope erase; \
                      send enrolled_images=keep to remove the face and keep the image";
        return Err(insufficient(Scope::Erase, detail));
    }
    let store = caller.store();
    let subject = store.subject(id).await?;
    let extent =
        if drop { store.extent_of_enrolled(Some(id), Some(face_id)).await? } else { Extent::default() };
    let target = format!("remove_subject_face.{id}.{face_id}.{drop}");
    if let Some(response) = preview(&state, target, extent, params.dry_run, params.confirm.as_deref()).await?
    {
        return Ok(response);
    }
    let blobs = retried("remove_subject_face", || async {
        let mut tx = store.begin().await?;
        store.lock_subjects(tx.conn(), subject.collection_id, &[id]).await?;
        let blobs = store.unlink_face(tx.conn(), id, face_id, drop).await?;
        let detail = json!({"subject_id": id, "face_id": face_id});
        caller.audit(&mut tx, Action::RemoveSubjectFace, subject.collection_id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(blobs)
    })
    .await?;
    drop_blobs(&state, blobs).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}
