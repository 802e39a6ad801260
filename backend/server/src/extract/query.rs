//! Parses query strings strictly. An unknown, repeated or wrong parameter is an error that names
//! the parameter, its value and what is allowed.
use super::{NO_NUL, NUL};
use crate::{ApiError, Code};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::value::MapDeserializer;
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use std::borrow::Cow;
use std::fmt;

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

/// An error message of serde and the parameter that it concerns.
#[derive(Debug)]
struct QueryError {
    key: Option<String>,
    message: String,
}

impl QueryError {
    fn with_key(mut self, key: &str) -> Self {
        self.key.get_or_insert_with(|| key.to_owned());
        self
    }

    fn into_problem(self, pairs: &[(Cow<'_, str>, Cow<'_, str>)]) -> ApiError {
        let allowed = allowed_of(&self.message);
        // serde reports an unknown or repeated field without its position. The first word in
        // backticks is the name.
        let unplaced = self.key.is_none();
        let key = self.key.or_else(|| quoted(&self.message).next().map(str::to_owned)).unwrap_or_default();
        let message = self.message.replace("field", "parameter");
        let detail = if unplaced { message } else { format!("{key}: {message}") };
        let mut error = ApiError::new(Code::BadQuery, detail).field(&key).allowed(allowed);
        if let Some((_, value)) = pairs.iter().rev().find(|(name, _)| *name == key) {
            error = error.value(value);
        }
        error
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for QueryError {}

impl de::Error for QueryError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { key: None, message: message.to_string() }
    }
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the allowed values that a message of serde contains: a list of names or a sentence at
/// its end. The received value precedes them and can contain the same words, so the last match is
/// used.
pub(super) fn allowed_of(message: &str) -> Vec<String> {
    let Some((_, expected)) = message.rsplit_once("expected ") else { return Vec::new() };
    let names: Vec<String> = quoted(expected).map(str::to_owned).collect();
    if names.is_empty() { vec![expected.to_owned()] } else { names }
}

macro_rules! parsed {
    ($($method:ident $visit:ident $type:ty),*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
            match self.text.parse::<$type>() {
                Ok(value) => visitor.$visit(value),
                Err(_) => Err(de::Error::invalid_value(de::Unexpected::Str(self.text), &visitor)),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::extract::values::{Bounded, Fraction};
    use uuid::Uuid;

    #[derive(Debug, Default, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Params {
        limit: Option<Bounded<1, 1000>>,
        score: Option<Fraction>,
        flag: Option<bool>,
        rotate: Option<pipeline::Rotate>,
        #[serde(deserialize_with = "crate::extract::values::uuid")]
        id: Option<Uuid>,
        name: Option<String>,
    }

    #[test]
    fn good_values_are_read() {
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
    fn every_mistake_names_parameter_value_and_what_is_allowed() {
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
    fn a_nul_character_is_refused_wherever_it_stands() {
        for (query, field) in [("name=a%00b", "name"), ("na%00me=a", "na\0me"), ("limit=%001", "limit")] {
            let problem = parse::<Params>(query).unwrap_err().into_problem();
            assert_eq!((problem.code, problem.field.as_deref()), (Code::BadQuery, Some(field)), "{query}");
        }
    }

    #[test]
    fn a_parameter_given_twice_is_refused() {
        let problem = parse::<Params>("limit=1&limit=2").unwrap_err().into_problem();
        assert_eq!((problem.code, problem.field.as_deref()), (Code::BadQuery, Some("limit")));
    }
}
