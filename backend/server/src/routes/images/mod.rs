//! Operations on stored images and their sources, quality reports and enhancement.
mod quality;
mod stored;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(quality::ANALYZE, routes!(quality::report_quality))
        .add(quality::ANALYZE, routes!(quality::enhance_image))
        .add(stored::READ, routes!(stored::list_images))
        .add(stored::READ, routes!(stored::get_image))
        .add(stored::DELETE, routes!(stored::delete_image))
        .add(stored::READ, routes!(stored::list_image_sources))
        .add(stored::READ, routes!(stored::get_image_thumbnail))
}
