//! Jobs of the queue, for those who keep the service running.
mod list;
mod retry;
mod view;

use crate::AppState;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this resource.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list::list_jobs)).routes(routes!(retry::retry_job))
}
