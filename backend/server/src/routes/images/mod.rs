//! Stored images and where they were found; quality reports and enhancement.
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

use crate::AppState;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this resource.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(quality::report_quality))
        .routes(routes!(enhance::enhance_image))
        .routes(routes!(list::list_images))
        .routes(routes!(get::get_image, delete::delete_image))
        .routes(routes!(sources::list_image_sources))
        .routes(routes!(thumbnail::get_image_thumbnail))
}
