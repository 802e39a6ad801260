//! Operations on stored images and their sources, quality reports and enhancement.
mod blob;
mod delete;
mod enhance;
mod get;
mod list;
mod quality;
mod sources;
mod stored;
mod thumbnail;

pub(crate) use blob::{blob_answer, drop_blobs};

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(quality::SPEC, routes!(quality::report_quality))
        .add(enhance::SPEC, routes!(enhance::enhance_image))
        .add(list::SPEC, routes!(list::list_images))
        .add(get::SPEC, routes!(get::get_image))
        .add(delete::SPEC, routes!(delete::delete_image))
        .add(sources::SPEC, routes!(sources::list_image_sources))
        .add(thumbnail::SPEC, routes!(thumbnail::get_image_thumbnail))
}
