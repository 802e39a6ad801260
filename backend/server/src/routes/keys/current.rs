use super::view::KeyView;
use crate::auth::Caller;
use crate::operation::{Access, Spec};
use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

/// The key of a call.
#[derive(Serialize, ToSchema)]
pub(super) struct CurrentKey {
    /// Whether this service requires keys (`AUTH=keys`). If it does not, every caller has all
    /// permissions except creating and revoking keys.
    #[schema(example = true)]
    asks_for_keys: bool,
    /// The key of this call; null if the service requires no keys.
    key: Option<KeyView>,
}

pub(super) const SPEC: Spec = Spec::with(Access::AnyKey);

/// Return the key of this call and its permissions.
#[utoipa::path(
    get, path = "/keys/current", operation_id = "get_current_key", tag = "keys",
    responses((status = 200, description = "The key", body = CurrentKey)),
)]
pub(super) async fn get_current_key(caller: Caller) -> Json<CurrentKey> {
    let key = caller.key().cloned().map(KeyView::from);
    Json(CurrentKey { asks_for_keys: key.is_some(), key })
}
