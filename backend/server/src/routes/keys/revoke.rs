use super::view::{KeyView, calling_key};
use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::{ApiError, Code, Scope, Spec};
use axum::Json;
use serde::{Deserialize, Serialize};
use store::keys::Revocation;
use store::keys::audit::Action;
use store::retried;
use utoipa::{IntoParams, ToSchema};

/// Options of a revocation.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RevokeParams {
    /// Also revoke the descendants of the key: the keys that it created, and the descendants of
    /// those keys.
    #[param(default = false)]
    descendants: Option<bool>,
}

/// A revoked key.
#[derive(Serialize, ToSchema)]
pub(super) struct RevokedKey {
    /// The key after the call.
    key: KeyView,
    /// Number of descendants that this call revoked.
    #[schema(example = 0)]
    descendants_revoked: usize,
    /// Number of descendants that are still valid.
    #[schema(example = 2)]
    descendants_working: usize,
}

impl From<Revocation> for RevokedKey {
    fn from(Revocation { key, descendants, working }: Revocation) -> Self {
        Self { key: key.into(), descendants_revoked: descendants.len(), descendants_working: working }
    }
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Keys).problems(&[&[Code::Conflict]]);

/// Revoke a key permanently.
///
/// The revocation takes effect in every process within 5 seconds. The key can no longer create
/// keys. Keys that it created remain valid, unless `descendants` is true; the response contains
/// their number. Revoking a revoked key changes nothing.
#[utoipa::path(
    post, path = "/keys/{id}/revoke", operation_id = "revoke_key", tag = "keys",
    params(("id" = Uuid, Path, description = "Id of the key"), RevokeParams),
    responses(
        (status = 200, description = "The revoked key, with the counts of its descendants", body = RevokedKey),
        (status = 409, description = "The service runs with `AUTH=none`"),
    ),
)]
pub(super) async fn revoke_key(
    caller: Caller,
    Id(id): Id,
    Query(params): Query<RevokeParams>,
) -> Result<Json<RevokedKey>, ApiError> {
    calling_key(&caller)?;
    let store = caller.store();
    let ended = retried("revoke_key", || async {
        let mut tx = store.begin().await?;
        let ended = store.revoke_key(tx.conn(), id, params.descendants.unwrap_or(false)).await?;
        for key in ended.revoked() {
            caller.audit(&mut tx, Action::RevokeKey, key.collection_id, key.audited()).await?;
        }
        tx.commit().await?;
        Ok::<_, ApiError>(ended)
    })
    .await?;
    Ok(Json(ended.into()))
}
