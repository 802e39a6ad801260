//! Finding, comparing and searching faces; stored faces.
mod analysis;
mod compare;
mod crop;
mod delete;
mod detect;
mod detect_batch;
mod get;
mod likeness;
mod list;
mod search;
mod stored;

pub(crate) use analysis::{DetectAnswer, DetectedFace, ImageInfo, ProfileParam, Timings, analyze};
#[cfg(feature = "fuzzing")]
pub(crate) use compare::CompareBody;
pub(crate) use likeness::Likeness;
#[cfg(feature = "fuzzing")]
pub(crate) use search::SearchBody;
pub(crate) use stored::{StoredFace, places_by_image, with_sources};

use crate::AppState;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this resource.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(detect::detect_faces))
        .routes(routes!(detect_batch::detect_faces_batch))
        .routes(routes!(compare::compare_faces))
        .routes(routes!(search::search_faces))
        .routes(routes!(list::list_faces))
        .routes(routes!(get::get_face, delete::delete_face))
        .routes(routes!(crop::get_face_crop))
}
