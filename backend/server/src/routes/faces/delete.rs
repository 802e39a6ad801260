use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::routes::deletion::{DeletionParams, DeletionPreview, preview};
use crate::routes::images::drop_blobs;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use store::keys::audit::Action;
use store::retried;

pub(super) const SPEC: Spec = Spec::needs(Scope::Erase).problems(&[&[Code::ConfirmationNeeded]]);

/// Delete a stored face with its embedding, crop and chip.
///
/// If its image was sent only for enrolment, and the face was the last one of the image that
/// belongs to a subject, the image is deleted too.
#[utoipa::path(
    delete, path = "/faces/{id}", operation_id = "delete_face", tag = "faces",
    params(("id" = Uuid, Path, description = "Id of the face"), DeletionParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 204, description = "The face was deleted"),
    ),
)]
pub(super) async fn delete_face(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<DeletionParams>,
) -> Result<Response, ApiError> {
    let store = caller.store();
    let face = store.face(id).await?;
    let (target, extent) = (format!("delete_face.{id}"), store.extent_of_face(id).await?);
    if let Some(response) = preview(&state, target, extent, params.dry_run, params.confirm.as_deref()).await?
    {
        return Ok(response);
    }
    let blobs = retried("delete_face", || async {
        let mut tx = store.begin().await?;
        let blobs = store.delete_face(tx.conn(), id).await?;
        caller.audit(&mut tx, Action::DeleteFace, face.collection_id, json!({"face_id": id})).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(blobs)
    })
    .await?;
    drop_blobs(&state, blobs).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}
