//! Operations that report devices, health and metrics, and the web page.
mod gpu;
mod health;
mod page;

pub(crate) use page::{no_method, no_route, no_status_route, router as page_router};

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    status_router().add(gpu::SPEC, routes!(gpu::get_gpu))
}

/// Returns the routes that every process with a port serves, including workers.
pub(crate) fn status_router() -> Routes {
    Routes::default()
        .add(health::LIVE, routes!(health::live))
        .add(health::READY, routes!(health::ready))
        .add(health::METRICS, routes!(health::get_metrics))
}
