//! Operations that detect, compare and search faces, and operations on stored faces.
mod analysis;
mod compare;
mod crop;
mod delete;
mod detect;
mod detect_batch;
mod filter;
mod get;
mod likeness;
mod list;
mod search;
mod stored;

pub(crate) use analysis::{
    DetectAnswer, DetectedFace, ImageInfo, ModelNames, ProfileParam, RotateParam, Timings, analyze,
};
#[cfg(feature = "fuzzing")]
pub(crate) use compare::CompareBody;
pub(crate) use likeness::Likeness;
#[cfg(feature = "fuzzing")]
pub(crate) use search::SearchBody;
pub(crate) use stored::{StoredFace, sources_by_image, with_sources};

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(detect::SPEC, routes!(detect::detect_faces))
        .add(detect_batch::SPEC, routes!(detect_batch::detect_faces_batch))
        .add(compare::SPEC, routes!(compare::compare_faces))
        .add(search::SPEC, routes!(search::search_faces))
        .add(list::SPEC, routes!(list::list_faces))
        .add(get::SPEC, routes!(get::get_face))
        .add(delete::SPEC, routes!(delete::delete_face))
        .add(crop::SPEC, routes!(crop::get_face_crop))
}
