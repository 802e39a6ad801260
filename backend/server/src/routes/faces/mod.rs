//! Operations that detect, compare and search faces, and operations on stored faces.
mod detect;
mod probe;
mod search;
mod stored;

#[cfg(feature = "fuzzing")]
pub(crate) use detect::CompareBody;
pub(crate) use detect::DetectAnswer;
#[cfg(feature = "fuzzing")]
pub(crate) use probe::SearchBody;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(detect::DETECT, routes!(detect::detect_faces))
        .add(detect::DETECT_BATCH, routes!(detect::detect_faces_batch))
        .add(detect::COMPARE, routes!(detect::compare_faces))
        .add(search::SPEC, routes!(search::search_faces))
        .add(stored::READ, routes!(stored::list_faces))
        .add(stored::READ, routes!(stored::get_face))
        .add(stored::DELETE, routes!(stored::delete_face))
        .add(stored::READ, routes!(stored::get_face_crop))
}
