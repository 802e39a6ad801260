//! Jobs of the queue, for those who keep the service running.
mod get;
mod list;
mod retry;
mod stats;
mod view;

use crate::AppState;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this resource.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list::list_jobs))
        .routes(routes!(stats::get_job_stats))
        .routes(routes!(get::get_job))
        .routes(routes!(retry::retry_job))
}
