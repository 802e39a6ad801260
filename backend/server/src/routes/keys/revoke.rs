//! `POST /keys/{id}/revoke`
use super::view::{KeyView, own};
use crate::auth::Caller;
use crate::extract::Id;
use crate::{ApiError, Problem};
use axum::Json;
use store::audit::Action;

/// End a key for good.
///
/// Every service notices within 5 seconds. Keys that were made with it go on working; `GET /audit?action=key.create&key_id=…` lists them.
/// Revoking a key again changes nothing.
#[utoipa::path(
    post, path = "/keys/{id}/revoke", operation_id = "revoke_key", tag = "keys",
    params(("id" = Uuid, Path, description = "The key")),
    responses(
        (status = 200, description = "The key as it is now", body = KeyView),
        (status = 404, description = "No such key", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "This service asks for no keys", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn revoke_key(caller: Caller, Id(id): Id) -> Result<Json<KeyView>, ApiError> {
    own(&caller)?;
    let store = caller.store();
    let mut tx = store.begin().await?;
    let key = store.revoke_key(tx.conn(), id).await?;
    caller.audit(&mut tx, Action::RevokeKey, key.collection_id, key.audited()).await?;
    tx.commit().await?;
    Ok(Json(key.into()))
}
