//! Reads ids and names from paths, and parses query strings strictly. An unknown, repeated or wrong
//! parameter is an error that names the parameter, its value and what is allowed.
use super::values::{NO_NUL, NUL};
use crate::{ApiError, Code};
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use serde::de::value::MapDeserializer;
use serde::de::{self, DeserializeOwned, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor};
use std::borrow::Cow;
use std::fmt;
use uuid::Uuid;

/// Holds the parameters of a request as a struct with `#[serde(default, deny_unknown_fields)]`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parse(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

pub(crate) fn parse<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    let pairs: Vec<_> = url::form_urlencoded::parse(query.as_bytes()).collect();
    if let Some((key, _)) = pairs.iter().find(|(key, text)| key.contains('\0') || text.contains('\0')) {
        return Err(ApiError::new(Code::BadQuery, format!("{key}: {NUL}"))
            .field(key.as_ref())
            .allowed([NO_NUL]));
    }
    let map = pairs.iter().map(|(key, text)| (key.as_ref(), Text { key, text }));
    T::deserialize(MapDeserializer::<_, QueryError>::new(map)).map_err(|error| error.into_problem(&pairs))
}

/// One value with its key, so that an error can name the key.
struct Text<'a> {
    key: &'a str,
    text: &'a str,
}

/// An error of serde, with the parameter that it concerns and what is allowed.
#[derive(Debug)]
struct QueryError {
    key: Option<String>,
    message: String,
    allowed: Vec<String>,
}

impl QueryError {
    /// Returns an error whose message names the parameter. serde calls parameters fields.
    fn of_field(key: &str, error: &de::value::Error, allowed: &[&str]) -> Self {
        Self {
            key: Some(key.to_owned()),
            message: error.to_string().replacen("field", "parameter", 1),
            allowed: allowed.iter().copied().map(str::to_owned).collect(),
        }
    }

    /// Names the parameter of an invalid value.
    fn with_key(self, key: &str) -> Self {
        match self.key {
            Some(_) => self,
            None => Self { key: Some(key.to_owned()), message: format!("{key}: {}", self.message), ..self },
        }
    }

    fn into_problem(self, pairs: &[(Cow<'_, str>, Cow<'_, str>)]) -> ApiError {
        let key = self.key.unwrap_or_default();
        let error = ApiError::new(Code::BadQuery, self.message).field(&key).allowed(self.allowed);
        match pairs.iter().rev().find(|(name, _)| *name == key) {
            Some((_, value)) => error.value(value),
            None => error,
        }
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for QueryError {}

/// Keeps what serde's own error type would only write into its message.
impl de::Error for QueryError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { key: None, message: message.to_string(), allowed: Vec::new() }
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let message = de::value::Error::invalid_type(unexpected, expected);
        Self { allowed: vec![expected.to_string()], ..Self::custom(message) }
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let message = de::value::Error::invalid_value(unexpected, expected);
        Self { allowed: vec![expected.to_string()], ..Self::custom(message) }
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let message = de::value::Error::unknown_variant(variant, expected);
        let allowed = expected.iter().copied().map(str::to_owned).collect();
        Self { allowed, ..Self::custom(message) }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::of_field(field, &de::value::Error::unknown_field(field, expected), expected)
    }

    fn missing_field(field: &'static str) -> Self {
        Self::of_field(field, &de::value::Error::missing_field(field), &[])
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::of_field(field, &de::value::Error::duplicate_field(field), &[])
    }
}

macro_rules! parsed {
    ($($method:ident $visit:ident $type:ty),*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
            match self.text.parse::<$type>() {
                Ok(value) => visitor.$visit(value),
                Err(_) => Err(de::Error::invalid_value(Unexpected::Str(self.text), &visitor)),
            }
            .map_err(|error: QueryError| error.with_key(self.key))
        }
    )* };
}

impl<'de> Deserializer<'de> for Text<'_> {
    type Error = QueryError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        visitor.visit_str(self.text).map_err(|error: QueryError| error.with_key(self.key))
    }

    parsed! {
        deserialize_bool visit_bool bool, deserialize_i64 visit_i64 i64, deserialize_u64 visit_u64 u64,
        deserialize_i32 visit_i32 i32, deserialize_u32 visit_u32 u32, deserialize_f32 visit_f32 f32,
        deserialize_f64 visit_f64 f64
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, QueryError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, QueryError> {
        visitor
            .visit_enum(self.text.into_deserializer())
            .map_err(|error: QueryError| error.with_key(self.key))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u128 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, QueryError> for Text<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

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
            Ok(Path(text)) => Uuid::parse_str(&text).map(Self).map_err(|_| not_a_uuid("id", &text)),
            Err(_) => Err(not_a_uuid("id", last_part(parts))),
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
            return Err(not_a_uuid("face_id", last_part(parts)));
        };
        let parse = |field: &str, text: &str| Uuid::parse_str(text).map_err(|_| not_a_uuid(field, text));
        Ok(Self { id: parse("id", &id)?, face_id: parse("face_id", &face_id)? })
    }
}

/// Returns the problem for an id that is not a UUID.
fn not_a_uuid(field: &str, text: &str) -> ApiError {
    ApiError::new(Code::BadId, format!("{field}: `{text}` is not a UUID"))
        .field(field)
        .value(text)
        .allowed(["a UUID"])
}

/// Returns the last part of the raw path. It is used if the percent-encoding is not valid UTF-8.
fn last_part(parts: &Parts) -> &str {
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
