//! Operations on subjects (enrolled people and clusters) and their faces.
mod create;
mod delete;
mod faces;
mod get;
mod list;
mod merge;
mod update;
mod view;

#[cfg(feature = "fuzzing")]
pub(crate) use self::{create::CreateSubject, faces::EnrolBody, merge::MergeSubjects, update::UpdateSubject};

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(create::SPEC, routes!(create::create_subject))
        .add(list::SPEC, routes!(list::list_subjects))
        .add(get::SPEC, routes!(get::get_subject))
        .add(update::SPEC, routes!(update::update_subject))
        .add(delete::SPEC, routes!(delete::delete_subject))
        .add(merge::SPEC, routes!(merge::merge_subject))
        .add(faces::enrol::SPEC, routes!(faces::enrol::enrol_faces))
        .add(faces::list::SPEC, routes!(faces::list::list_subject_faces))
        .add(faces::remove::SPEC, routes!(faces::remove::remove_subject_face))
}
