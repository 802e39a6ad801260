//! What deletions of much have in common: a look first, and its token.
use serde::{Deserialize, Serialize};
use store::extent::Extent;
use utoipa::{IntoParams, ToSchema};

/// A look, or the call itself.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeletionParams {
    /// Report what would be deleted, and delete nothing.
    #[param(default = false)]
    pub(crate) dry_run: Option<bool>,
    /// `confirm` of a dry run of the same call, not older than 15 minutes; needed where more rows
    /// go than `CONFIRM_ABOVE`.
    pub(crate) confirm: Option<String>,
}

/// What would go.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "dry_run": true, "images": 1840, "faces": 5130, "subjects": 12, "suppressions": 0,
    "confirm": "1769861700.6982.cGxhaW4gdGV4dCBvZiAzMiBieXRlcywgc2lnbmVk"
}))]
pub(crate) struct DeletionPreview {
    /// True: nothing was changed.
    dry_run: bool,
    /// Stored images, counted up to a million.
    images: i64,
    /// Stored faces, counted up to a million.
    faces: i64,
    /// Enrolled people and clusters.
    subjects: i64,
    /// What keeps erased pictures and people out, which may be stored again afterwards.
    suppressions: i64,
    /// Send it as `confirm` with the same call. Good for 15 minutes.
    confirm: String,
}

impl DeletionPreview {
    pub(crate) fn new(extent: Extent, confirm: String) -> Self {
        let Extent { images, faces, subjects, suppressions } = extent;
        Self { dry_run: true, images, faces, subjects, suppressions, confirm }
    }
}
