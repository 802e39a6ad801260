//! Operations that create, report, control and export crawls.
mod cancel;
mod create;
mod delete;
mod events;
mod export;
mod get;
mod list;
mod pause;
mod resume;
mod unprocessed;
mod view;

#[cfg(feature = "fuzzing")]
pub(crate) use create::CreateCrawl;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(create::SPEC, routes!(create::create_crawl))
        .add(list::SPEC, routes!(list::list_crawls))
        .add(get::SPEC, routes!(get::get_crawl))
        .add(delete::SPEC, routes!(delete::delete_crawl))
        .add(pause::SPEC, routes!(pause::pause_crawl))
        .add(resume::SPEC, routes!(resume::resume_crawl))
        .add(cancel::SPEC, routes!(cancel::cancel_crawl))
        .add(events::SPEC, routes!(events::follow_crawl))
        .add(export::SPEC, routes!(export::export_crawl))
        .add(unprocessed::SPEC, routes!(unprocessed::list_unprocessed_images))
}
