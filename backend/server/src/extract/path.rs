//! Ids in paths.
use crate::{ApiError, Code};
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use uuid::Uuid;

/// The `{id}` of a path where a name does too.
#[derive(Clone, Debug)]
pub(crate) enum NameOrId {
    Id(Uuid),
    Name(String),
}

impl<S: Send + Sync> FromRequestParts<S> for NameOrId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text = match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => text,
            // Percent-encoding that is no UTF-8 names nothing.
            Err(_) => String::new(),
        };
        Ok(Uuid::parse_str(&text).map_or_else(|_| Self::Name(text), Self::Id))
    }
}

/// The `{id}` of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Id(pub(crate) Uuid);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let refuse = |text: &str| {
            ApiError::new(Code::BadId, format!("id: `{text}` is not a UUID"))
                .field("id")
                .value(text)
                .allowed(["a UUID"])
        };
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => Uuid::parse_str(&text).map(Self).map_err(|_| refuse(&text)),
            // Percent-encoding that is no UTF-8.
            Err(_) => Err(refuse(parts.uri.path().rsplit('/').next().unwrap_or_default())),
        }
    }
}
