//! Operations on subjects (enrolled people and clusters) and their faces.
mod archive;
mod change;
mod faces;
mod import;
mod view;

#[cfg(feature = "fuzzing")]
pub(crate) use self::{
    change::{CreateSubject, MergeSubjects, UpdateSubject},
    faces::EnrolBody,
};

pub(crate) use self::{
    change::{delete, merge},
    faces::{EnrolledImagesParams, remove_face},
    view::check_name,
};

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(change::CREATE, routes!(change::create_subject))
        .add(view::READ, routes!(view::list_subjects))
        .add(view::READ, routes!(view::get_subject))
        .add(change::UPDATE, routes!(change::update_subject))
        .add(change::DELETE, routes!(change::delete_subject))
        .add(change::MERGE, routes!(change::merge_subject))
        .add(faces::ENROL, routes!(faces::enrol_faces))
        .add(import::SPEC, routes!(import::import_subjects))
        .add(faces::LIST_FACES, routes!(faces::list_subject_faces))
        .add(faces::REMOVE_FACE, routes!(faces::remove_subject_face))
}
