//! Reads ids and names from paths.
use crate::{ApiError, Code};
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use uuid::Uuid;

/// The `{id}` of a path that accepts a name or an id.
#[derive(Clone, Debug)]
pub(crate) enum NameOrId {
    Id(Uuid),
    Name(String),
}

impl<S: Send + Sync> FromRequestParts<S> for NameOrId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text = match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) if !text.contains('\0') => text,
            // Invalid UTF-8 and NUL cannot be part of a name. The empty name matches nothing.
            _ => String::new(),
        };
        Ok(Uuid::parse_str(&text).map_or_else(|_| Self::Name(text), Self::Id))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Id(pub(crate) Uuid);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => Uuid::parse_str(&text).map(Self).map_err(|_| refuse("id", &text)),
            Err(_) => Err(refuse("id", last_part(parts))),
        }
    }
}

/// The `{id}` of a subject and the `{face_id}` of a face in a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubjectFace {
    pub(crate) id: Uuid,
    pub(crate) face_id: Uuid,
}

impl<S: Send + Sync> FromRequestParts<S> for SubjectFace {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Ok(Path((id, face_id))) = Path::<(String, String)>::from_request_parts(parts, state).await else {
            return Err(refuse("face_id", last_part(parts)));
        };
        let parse = |field: &str, text: &str| Uuid::parse_str(text).map_err(|_| refuse(field, text));
        Ok(Self { id: parse("id", &id)?, face_id: parse("face_id", &face_id)? })
    }
}

/// Returns the problem for an id that is not a UUID.
fn refuse(field: &str, text: &str) -> ApiError {
    ApiError::new(Code::BadId, format!("{field}: `{text}` is not a UUID"))
        .field(field)
        .value(text)
        .allowed(["a UUID"])
}

/// Returns the last part of the raw path. It is used if the percent-encoding is not valid UTF-8.
fn last_part(parts: &Parts) -> &str {
    parts.uri.path().rsplit('/').next().unwrap_or_default()
}
