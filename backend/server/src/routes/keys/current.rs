//! `GET /keys/current`
use super::view::KeyView;
use crate::auth::Caller;
use crate::operation::{Access, Spec};
use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

/// By which key a call is made.
#[derive(Serialize, ToSchema)]
pub(super) struct CurrentKey {
    /// Whether this service asks for keys (`AUTH=keys`). Where it does not, every caller may do
    /// everything except change keys.
    #[schema(example = true)]
    asks_for_keys: bool,
    /// The key of this call; null where none is asked for.
    key: Option<KeyView>,
}

pub(super) const SPEC: Spec = Spec::with(Access::AnyKey);

/// Tell by which key this call is made, and what it may do.
#[utoipa::path(
    get, path = "/keys/current", operation_id = "get_current_key", tag = "keys",
    responses((status = 200, description = "The key", body = CurrentKey)),
)]
pub(super) async fn get_current_key(caller: Caller) -> Json<CurrentKey> {
    let key = caller.key().cloned().map(KeyView::from);
    Json(CurrentKey { asks_for_keys: key.is_some(), key })
}
