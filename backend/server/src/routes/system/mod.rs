//! Operations: devices, health, metrics, the API's own description, the page.
mod docs;
mod gpu;
mod health;
mod metrics;
mod page;

pub(crate) use docs::router as docs_router;
pub(crate) use page::router as page_router;

use crate::AppState;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this resource.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    status_router().routes(routes!(gpu::get_gpu)).routes(routes!(docs::get_openapi))
}

/// What every process with a port answers, a worker too.
pub(crate) fn status_router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(metrics::get_metrics))
}
