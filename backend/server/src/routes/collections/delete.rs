use super::view::find;
use crate::auth::Caller;
use crate::extract::{NameOrId, Query};
use crate::routes::deletion::{DeletionParams, DeletionPreview, preview};
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pipeline::jobs::erase_collection;
use serde_json::json;
use store::keys::audit::Action;
use store::retried;

pub(super) const SPEC: Spec =
    Spec::needs(Scope::Admin).problems(&[&[Code::BadQuery, Code::ConfirmationNeeded]]);

/// Delete a collection with everything in it: crawls, images, faces, people, suppressions and keys.
///
/// The collection becomes inaccessible immediately, and its name can be reused. Its crawls are
/// cancelled, and a worker deletes its rows and image files in batches. The audit log records
/// `collection.erased` when the deletion is complete. The collection `default` is emptied but not
/// deleted, and keeps its settings and keys.
#[utoipa::path(
    delete, path = "/collections/{id}", operation_id = "delete_collection", tag = "collections",
    params(("id" = String, Path, description = "Name or id of the collection", example = "default"), DeletionParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 202, description = "The collection is inaccessible, and its data is being erased"),
    ),
)]
pub(super) async fn delete_collection(
    State(state): State<AppState>,
    caller: Caller,
    which: NameOrId,
    Query(params): Query<DeletionParams>,
) -> Result<Response, ApiError> {
    let collection = find(&caller, which).await?;
    let store = caller.store();
    let extent = store.extent_of_collection(collection.id).await?;
    let target = format!("delete_collection.{}", collection.id);
    if let Some(response) = preview(&state, target, extent, params.dry_run, params.confirm.as_deref()).await?
    {
        return Ok(response);
    }
    retried("delete_collection", || async {
        let mut tx = store.begin().await?;
        state.services.queue.enqueue(tx.conn(), &[erase_collection(collection.id)]).await?;
        store.mark_collection_deleted(tx.conn(), collection.id).await?;
        let detail = json!({"name": collection.name});
        caller.audit(&mut tx, Action::DeleteCollection, collection.id, detail).await?;
        Ok::<_, ApiError>(tx.commit().await?)
    })
    .await?;
    Ok(StatusCode::ACCEPTED.into_response())
}
