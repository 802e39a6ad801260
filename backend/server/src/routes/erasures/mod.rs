//! Erasures: what was stored of a person or under an address goes, and does not come back.
mod create;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod lift;
mod list;
mod target;
mod threshold;
mod view;

use crate::AppState;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this resource.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list::list_erasures, create::create_erasure))
        .routes(routes!(lift::lift_suppressions))
}
