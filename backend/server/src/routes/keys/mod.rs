//! API keys: made, listed and revoked by those who hold one with the scope `keys`.
mod create;
mod current;
mod list;
mod revoke;
mod view;

#[cfg(feature = "fuzzing")]
pub(crate) use create::CreateKey;

use crate::AppState;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this resource.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(create::create_key, list::list_keys))
        .routes(routes!(current::get_current_key))
        .routes(routes!(revoke::revoke_key))
}
