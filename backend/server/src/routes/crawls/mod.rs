//! Crawls: create, watch, steer, take along.
mod cancel;
mod create;
mod delete;
mod events;
mod export;
mod follow;
mod get;
mod list;
mod pause;
mod resume;
mod view;

#[cfg(feature = "fuzzing")]
pub(crate) use create::CreateCrawl;
pub(crate) use export::export_example;
pub(crate) use follow::Follows;

use crate::AppState;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this resource.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(create::create_crawl, list::list_crawls))
        .routes(routes!(get::get_crawl, delete::delete_crawl))
        .routes(routes!(pause::pause_crawl))
        .routes(routes!(resume::resume_crawl))
        .routes(routes!(cancel::cancel_crawl))
        .routes(routes!(events::follow_crawl))
        .routes(routes!(export::export_crawl))
}
