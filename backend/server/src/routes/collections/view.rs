//! Defines the collection type of the API and the settings that callers choose.
use crate::auth::Caller;
use crate::extract::NameOrId;
use crate::{ApiError, Code};
use serde::Serialize;
use store::collections::Collection;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// A collection.
#[derive(Serialize, ToSchema)]
pub(super) struct CollectionView {
    /// Its id.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b00")]
    id: Uuid,
    /// Its unique name.
    #[schema(example = "default")]
    name: String,
    /// Quality profile that is applied to faces: `off`, `standard`, `strict`; null means the
    /// default of the service.
    #[schema(example = "standard")]
    quality_profile: Option<String>,
    /// Minimum similarity at which two faces are considered one person; null means the embedding
    /// model's own.
    #[schema(example = 0.45)]
    match_threshold: Option<f32>,
    /// Days after which images and faces are deleted; null means never.
    #[schema(example = 365)]
    retention_days: Option<i32>,
    /// Time of creation.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl From<Collection> for CollectionView {
    fn from(row: Collection) -> Self {
        Self {
            id: row.id,
            name: row.name,
            quality_profile: row.quality_profile,
            match_threshold: row.match_threshold,
            retention_days: row.retention_days,
            created_at: row.created_at,
        }
    }
}

/// Returns the collection of a path if the caller may access it.
pub(super) async fn find(caller: &Caller, which: NameOrId) -> Result<Collection, ApiError> {
    Ok(match which {
        NameOrId::Id(id) => caller.store().collection_by_id(id).await?,
        NameOrId::Name(name) => caller.store().collection(&name).await?,
    })
}

/// Rejects invalid names of collections. In a path, a name that has the form of an id could refer
/// to a different collection.
pub(crate) fn check_name(field: &str, name: &str) -> Result<(), ApiError> {
    let good = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
        && Uuid::parse_str(name).is_err();
    if good {
        return Ok(());
    }
    Err(ApiError::new(Code::InvalidField, format!("{field}: the value is not a valid collection name"))
        .field(field)
        .value(name)
        .allowed(["1 to 64 characters of a-z, 0-9, - and _, but not a UUID"]))
}
