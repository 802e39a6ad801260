//! Operations that create, report, control and export crawls.
mod control;
mod create;
mod export;
mod view;

#[cfg(feature = "fuzzing")]
pub(crate) use create::CreateCrawl;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(create::SPEC, routes!(create::create_crawl))
        .add(view::READ, routes!(view::list_crawls))
        .add(view::READ, routes!(view::get_crawl))
        .add(control::DELETE, routes!(control::delete_crawl))
        .add(control::CONTROL, routes!(control::pause_crawl))
        .add(control::CONTROL, routes!(control::resume_crawl))
        .add(control::CONTROL, routes!(control::cancel_crawl))
        .add(control::EVENTS, routes!(control::follow_crawl))
        .add(export::SPEC, routes!(export::export_crawl))
        .add(view::READ, routes!(view::list_unprocessed_images))
}
