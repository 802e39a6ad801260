use super::drop_blobs;
use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::routes::deletion::{DeletionParams, DeletionPreview, preview};
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use store::keys::audit::Action;
use store::retried;

pub(super) const SPEC: Spec = Spec::needs(Scope::Erase).problems(&[&[Code::ConfirmationNeeded]]);

/// Delete a stored image with its faces, sources, crops, chips and thumbnail.
#[utoipa::path(
    delete, path = "/images/{id}", operation_id = "delete_image", tag = "images",
    params(("id" = Uuid, Path, description = "Id of the image"), DeletionParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 204, description = "The image was deleted"),
    ),
)]
pub(super) async fn delete_image(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<DeletionParams>,
) -> Result<Response, ApiError> {
    let store = caller.store();
    let image = store.image(id).await?;
    let (target, extent) = (format!("delete_image.{id}"), store.extent_of_image(id).await?);
    if let Some(response) = preview(&state, target, extent, params.dry_run, params.confirm.as_deref()).await?
    {
        return Ok(response);
    }
    let blobs = retried("delete_image", || async {
        let mut tx = store.begin().await?;
        let blobs = store.delete_image(tx.conn(), id).await?;
        let detail = json!({"image_id": id, "faces": image.face_count});
        caller.audit(&mut tx, Action::DeleteImage, image.collection_id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(blobs)
    })
    .await?;
    drop_blobs(&state, blobs).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}
