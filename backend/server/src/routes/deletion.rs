//! Shared types of large deletions: the dry run and its confirmation token.
use serde::{Deserialize, Serialize};
use store::extent::Extent;
use utoipa::{IntoParams, ToSchema};

/// Options of a deletion: a dry run, or the confirmation of one.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeletionParams {
    /// Report what would be deleted, and delete nothing.
    #[param(default = false)]
    pub(crate) dry_run: Option<bool>,
    /// `confirm` of a dry run of the same call, at most 15 minutes old. It is required if the call
    /// deletes more than `CONFIRM_ABOVE` rows.
    pub(crate) confirm: Option<String>,
}

/// What the call would delete.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "dry_run": true, "images": 1840, "faces": 5130, "subjects": 12, "suppressions": 0,
    "confirm": "1769861700.6982.cGxhaW4gdGV4dCBvZiAzMiBieXRlcywgc2lnbmVk"
}))]
pub(crate) struct DeletionPreview {
    /// Always true: nothing was changed.
    dry_run: bool,
    /// Stored images, counted up to a million.
    images: i64,
    /// Stored faces, counted up to a million.
    faces: i64,
    /// Enrolled people and clusters.
    subjects: i64,
    /// Suppressions of erased images and people. Without them these may be stored again.
    suppressions: i64,
    /// Send it as `confirm` with the same call. It is valid for 15 minutes.
    confirm: String,
}

impl DeletionPreview {
    pub(crate) fn new(extent: Extent, confirm: String) -> Self {
        let Extent { images, faces, subjects, suppressions } = extent;
        Self { dry_run: true, images, faces, subjects, suppressions, confirm }
    }
}
