//! The faces that show a subject.
pub(super) mod enrol;
mod input;
pub(super) mod list;
pub(super) mod remove;

#[cfg(feature = "fuzzing")]
pub(crate) use input::EnrolBody;

use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

/// What becomes of images that were sent in for enrolment.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Enrolled {
    /// They go when nobody enrolled is left in them.
    #[default]
    Delete,
    /// They stay, as images like any other.
    Keep,
}

/// What goes with it.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhatGoes {
    /// `delete` (the default): an image that was only ever sent in for enrolment goes when none of
    /// its faces shows anybody any more; `keep`: it stays, as an image like any other. Images that
    /// a crawl or a scan found always stay.
    #[param(inline)]
    pub(super) enrolled_images: Option<Enrolled>,
}
