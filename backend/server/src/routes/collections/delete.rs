//! `DELETE /collections/{id}`
use super::view::find;
use crate::auth::Caller;
use crate::extract::NameOrId;
use crate::{ApiError, AppState, Problem};
use axum::extract::State;
use axum::http::StatusCode;
use pipeline::jobs::erase_collection;
use serde_json::json;
use store::audit::Action;

/// Delete a collection with everything in it: crawls, images, faces, people, suppressions and keys.
///
/// It is out of reach at once, and its name is free. Its crawls are cancelled and its rows and pictures erased by a worker, piece by piece; the
/// audit log says `collection.erased` when nothing is left. `default` is emptied and stays, with its settings and keys.
#[utoipa::path(
    delete, path = "/collections/{id}", operation_id = "delete_collection", tag = "collections",
    params(("id" = String, Path, description = "The collection's name or id", example = "default")),
    responses(
        (status = 202, description = "It is out of reach, and is being erased"),
        (status = 404, description = "No such collection", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn delete_collection(
    State(state): State<AppState>,
    caller: Caller,
    which: NameOrId,
) -> Result<StatusCode, ApiError> {
    let collection = find(&caller, which).await?;
    let store = caller.store();
    let mut tx = store.begin().await?;
    state.services.queue.enqueue(tx.conn(), &[erase_collection(collection.id)]).await?;
    store.bury_collection(tx.conn(), collection.id).await?;
    let detail = json!({"name": collection.name});
    caller.audit(&mut tx, Action::DeleteCollection, collection.id, detail).await?;
    tx.commit().await?;
    Ok(StatusCode::ACCEPTED)
}
