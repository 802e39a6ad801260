//! Operations on the faces of a subject.
pub(super) mod enrol;
mod input;
pub(super) mod list;
pub(super) mod remove;

#[cfg(feature = "fuzzing")]
pub(crate) use input::EnrolBody;

use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

/// What happens to images that were sent for enrolment.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Enrolled {
    /// They are deleted when none of their faces is assigned to a subject.
    #[default]
    Delete,
    /// They are kept like other images.
    Keep,
}

/// Selects what is deleted together with a subject or its face, or requests a dry run.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EnrolledImagesParams {
    /// With `delete` (the default), an image that was only sent for enrolment is deleted when none
    /// of its faces is assigned to a subject. With `keep`, it is kept like other images. Images
    /// that a crawl or a scan found are always kept.
    #[param(inline)]
    pub(super) enrolled_images: Option<Enrolled>,
    /// Report what would be deleted without deleting or changing anything.
    #[param(default = false)]
    pub(super) dry_run: Option<bool>,
    /// `confirm` of a dry run of the same call, at most 15 minutes old. It is required if the call
    /// deletes more than `CONFIRM_ABOVE` rows.
    pub(super) confirm: Option<String>,
}
