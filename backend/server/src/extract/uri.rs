//! Reads ids and names from paths, and parses query strings strictly. An unknown, repeated or wrong
//! parameter is an error that contains the parameter, its value and the allowed values.
use super::typed;
use super::values::{NO_NUL, NUL};
use crate::{ApiError, Code, Result};
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use uuid::Uuid;

/// Holds the parameters of a request as a struct with `#[serde(default, deny_unknown_fields)]`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        parse(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

pub(crate) fn parse<T: DeserializeOwned>(query: &str) -> Result<T> {
    let pairs: Vec<_> = url::form_urlencoded::parse(query.as_bytes()).collect();
    if let Some((key, _)) = pairs.iter().find(|(key, text)| key.contains('\0') || text.contains('\0')) {
        return Err(ApiError::new(Code::BadQuery, format!("{key}: {NUL}"))
            .field(key.as_ref())
            .allowed([NO_NUL]));
    }
    typed::read_texts::<T>(&pairs).map_err(|error| {
        let key = &error.path;
        // serde calls parameters fields.
        let message = error.is_about_name.then(|| error.message.replacen("field", "parameter", 1));
        let problem = ApiError::new(Code::BadQuery, message.unwrap_or_else(|| error.to_string()))
            .field(key)
            .allowed(error.allowed.iter().map(String::as_str));
        match pairs.iter().rev().find(|(name, _)| name == key) {
            Some((_, value)) => problem.value(value),
            None => problem,
        }
    })
}

/// The `{id}` of a path that accepts a name or an id.
#[derive(Clone, Debug)]
pub(crate) enum NameOrId {
    Id(Uuid),
    Name(String),
}

impl<S: Send + Sync> FromRequestParts<S> for NameOrId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
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

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => Uuid::parse_str(&text).map(Self).map_err(|_| not_a_uuid("id", &text)),
            Err(_) => Err(not_a_uuid("id", last_segment(parts))),
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

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let Ok(Path((id, face_id))) = Path::<(String, String)>::from_request_parts(parts, state).await else {
            return Err(not_a_uuid("face_id", last_segment(parts)));
        };
        let parse = |field: &str, text: &str| Uuid::parse_str(text).map_err(|_| not_a_uuid(field, text));
        Ok(Self { id: parse("id", &id)?, face_id: parse("face_id", &face_id)? })
    }
}

/// Returns the problem for an id that is not a UUID.
fn not_a_uuid(field: &str, text: &str) -> ApiError {
    ApiError::for_field(Code::BadId, field, format!("`{text}` is not a UUID")).value(text).allowed(["a UUID"])
}

/// Returns the last part of the raw path. It is used if the percent-encoding is not valid UTF-8.
fn last_segment(parts: &Parts) -> &str {
    parts.uri.path().rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::extract::{Bounded, Fraction};
    use uuid::Uuid;

    #[derive(Debug, Default, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Params {
        limit: Option<Bounded<1, 1000>>,
        score: Option<Fraction>,
        flag: Option<bool>,
        rotate: Option<pipeline::Rotate>,
        #[serde(deserialize_with = "crate::extract::uuid")]
        id: Option<Uuid>,
        name: Option<String>,
    }

    #[test]
    fn valid_query_values_are_parsed() {
        let id = Uuid::now_v7();
        let query = format!("limit=1000&score=0.5&flag=true&rotate=auto&id={id}&name=a%20b+c");
        let params: Params = parse(&query).unwrap();
        assert_eq!(params.limit.unwrap().get(), 1000);
        assert_eq!(params.score.unwrap().get(), 0.5);
        assert_eq!(params.flag, Some(true));
        assert_eq!(params.rotate, Some(pipeline::Rotate::Auto));
        assert_eq!(params.id, Some(id));
        assert_eq!(params.name.as_deref(), Some("a b c"));
        assert!(parse::<Params>("").unwrap().limit.is_none());
    }

    #[test]
    fn query_error_names_parameter_value_and_allowed_values() {
        for (query, field, value, allowed) in [
            ("limit=0", "limit", "0", "a whole number from 1 to 1000"),
            ("limit=abc", "limit", "abc", "a whole number from 1 to 1000"),
            ("limit=", "limit", "", "a whole number from 1 to 1000"),
            ("score=1.5", "score", "1.5", "a number from 0 to 1"),
            ("score=NaN", "score", "NaN", "a number from 0 to 1"),
            ("flag=yes", "flag", "yes", "a boolean"),
            ("rotate=left", "rotate", "left", "off"),
            ("id=12", "id", "12", "a UUID"),
            ("colour=red", "colour", "red", "limit"),
        ] {
            let problem = parse::<Params>(query).unwrap_err().into_problem();
            assert_eq!(problem.code, Code::BadQuery);
            assert_eq!(problem.field.as_deref(), Some(field), "{query}: {}", problem.detail);
            assert_eq!(problem.value.as_deref(), Some(value), "{query}");
            assert_eq!(problem.allowed.first().map(String::as_str), Some(allowed), "{query}");
            assert!(problem.detail.contains(field), "{}", problem.detail);
        }
    }

    #[test]
    fn nul_character_in_query_is_rejected() {
        for (query, field) in [("name=a%00b", "name"), ("na%00me=a", "na\0me"), ("limit=%001", "limit")] {
            let problem = parse::<Params>(query).unwrap_err().into_problem();
            assert_eq!((problem.code, problem.field.as_deref()), (Code::BadQuery, Some(field)), "{query}");
        }
    }

    #[test]
    fn repeated_query_parameter_is_rejected() {
        let problem = parse::<Params>("limit=1&limit=2").unwrap_err().into_problem();
        assert_eq!((problem.code, problem.field.as_deref()), (Code::BadQuery, Some("limit")));
    }
}
