//! People: enrolled subjects and clusters, and the faces that show them.
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

use crate::AppState;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this resource.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(create::create_subject, list::list_subjects))
        .routes(routes!(get::get_subject, update::update_subject, delete::delete_subject))
        .routes(routes!(merge::merge_subject))
        .routes(routes!(faces::enrol::enrol_faces, faces::list::list_subject_faces))
        .routes(routes!(faces::remove::remove_subject_face))
}
