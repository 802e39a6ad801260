//! Defines the subject type of the API and the values that callers may set.
use crate::{ApiError, Code};
use serde::Serialize;
use serde_json::Value;
use store::people::{MAX_METADATA_BYTES, Subject};
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// Maximum length of a name and an external id, in characters.
const MAX_CHARS: usize = 200;

/// A person.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct SubjectView {
    /// Its id.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b04")]
    id: Uuid,
    /// The collection of the subject.
    #[schema(example = "default")]
    collection: String,
    /// Display name; null for a cluster without a name.
    #[schema(example = "Ada Lovelace")]
    name: Option<String>,
    /// The caller's own id for the person, unique in the collection.
    #[schema(example = "crm-1815")]
    external_id: Option<String>,
    /// A JSON object that the caller sets.
    #[schema(value_type = Object, example = json!({"team": "engines"}))]
    metadata: Value,
    /// `enrolled` if a caller created or changed it; `cluster` if clustering created it and no
    /// caller has changed it.
    #[schema(example = "enrolled")]
    origin: String,
    /// Number of its faces.
    #[schema(example = 2)]
    face_count: i64,
    /// Its face with the best quality.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b03")]
    best_face_id: Option<Uuid>,
    /// Time of creation.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl From<Subject> for SubjectView {
    fn from(subject: Subject) -> Self {
        Self {
            id: subject.id,
            collection: subject.collection,
            name: subject.name,
            external_id: subject.external_id,
            metadata: subject.metadata,
            origin: subject.origin,
            face_count: subject.face_count,
            best_face_id: subject.best_face_id,
            created_at: subject.created_at,
        }
    }
}

/// Returns a name or an external id in the form in which it is stored and found: without
/// surrounding white space.
pub(super) fn normal_text(text: &str) -> &str {
    text.trim()
}

/// Validates a name or an external id and returns its [normal form](normal_text).
pub(super) fn check_text(field: &str, text: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let normal = normal_text(&text);
    let length = normal.chars().count();
    if (1..=MAX_CHARS).contains(&length) && !text.chars().any(char::is_control) {
        return Ok(Some(normal.to_owned()));
    }
    let allowed = format!("1 to {MAX_CHARS} characters without control characters");
    Err(ApiError::new(Code::InvalidField, format!("{field}: the value must have {allowed}"))
        .field(field)
        .value(text)
        .allowed([allowed, "null".into()]))
}

/// A JSON object that the caller sets.
pub(super) fn check_metadata(metadata: Value) -> Result<Value, ApiError> {
    let refuse = |detail: String| {
        let allowed = format!("a JSON object of at most {MAX_METADATA_BYTES} bytes");
        ApiError::new(Code::InvalidField, format!("metadata: {detail}")).field("metadata").allowed([allowed])
    };
    if !metadata.is_object() {
        return Err(refuse("the value must be a JSON object".into()));
    }
    let text = metadata.to_string();
    if text.len() > MAX_METADATA_BYTES {
        return Err(refuse(format!("it has {} bytes; at most {MAX_METADATA_BYTES} are allowed", text.len())));
    }
    Ok(metadata)
}
