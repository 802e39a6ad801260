//! Parses JSON bodies. Malformed text fails with `bad_json`. Well-formed text with an invalid field
//! fails with `invalid_field`, which contains the name of the field.
//!
//! The structure of a text is checked while it is read, because the values of a text can take many
//! times the memory of the text. The values are then converted to the type of the operation, with
//! an error type that contains the field and the allowed values.
use super::values::{NO_NUL, NUL};
use super::{body, typed};
use crate::{ApiError, AppState, Code, Result};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;

/// Maximum size of a text that is parsed on the current thread, in bytes. A larger text would block
/// all other tasks of that thread.
const MAX_INLINE_BYTES: usize = 64 << 10;

/// Holds the value of a JSON body without images.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self> {
        let (parts, body) = request.into_parts();
        if !is_json(&parts.headers) {
            return Err(unsupported(&parts.headers, &["application/json"]));
        }
        let bytes = body::read(&parts.headers, body, state.config.json_limit, "the body").await?;
        parse(bytes).await.map(Self)
    }
}

/// Returns the media type in lower case, without parameters. It is empty if there is none.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let media = media_type(headers);
    media == "application/json" || (media.starts_with("application/") && media.ends_with("+json"))
}

pub(crate) fn unsupported(headers: &HeaderMap, allowed: &[&str]) -> ApiError {
    let media = media_type(headers);
    let received = match media.as_str() {
        "" => "the content type is missing".to_owned(),
        media => format!("the content type is `{media}`"),
    };
    ApiError::new(Code::UnsupportedMediaType, format!("{received}; allowed: {}", allowed.join(", ")))
        .field("content-type")
        .value(media)
        .allowed(allowed.iter().copied())
}

/// Reads a JSON body of an operation that also accepts uploads. Its limits are lower.
///
/// # Errors
/// Fails with 413 for more than `limit` bytes, 503 if the body needs more than `time`, and as
/// [`Json`].
pub(crate) async fn read_small_json<T: DeserializeOwned + Send + 'static>(
    request: Request,
    limit: usize,
    time: Duration,
) -> Result<T> {
    let (parts, body) = request.into_parts();
    let read = tokio::time::timeout(time, body::read(&parts.headers, body, limit, "the body")).await;
    let too_slow = |_| ApiError::new(Code::Timeout, format!("the JSON body did not arrive within {time:?}"));
    parse(read.map_err(too_slow)??).await
}

/// Parses a JSON text. A long text is parsed on a thread for blocking work.
pub(super) async fn parse<T: DeserializeOwned + Send + 'static>(bytes: Bytes) -> Result<T> {
    if bytes.len() <= MAX_INLINE_BYTES {
        return parse_sync(&bytes);
    }
    // The id of the request is available only in the current task.
    let parsed = tokio::task::spawn_blocking(move || parse_sync(&bytes)).await;
    parsed.map_err(ApiError::internal)?.map_err(ApiError::with_current_request_id)
}

pub(super) fn parse_sync<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    typed::read::<T>(read(text)?).map_err(|error| {
        ApiError::new(Code::InvalidField, error.to_string()).field(error.path).allowed(error.allowed)
    })
}

/// Maximum number of values in a body, including arrays and objects. No operation needs this number
/// of values. Without their texts, the values take at most a few megabytes.
pub(super) const MAX_VALUES: usize = 20_000;
/// Maximum number of characters of a field name that a problem repeats.
const MAX_NAME_CHARS: usize = 200;
/// Maximum number of nested objects and arrays.
pub(super) const MAX_DEPTH: usize = 32;

/// Reads a text and checks its structure.
///
/// # Errors
/// Fails with 422 for a NUL character, for a name that occurs twice in an object, and for too many
/// values or levels. `field` is set to the position. Fails with 400 for a text that is not JSON.
pub(super) fn read(text: &[u8]) -> Result<Value> {
    let mut walk = Walk { path: Vec::new(), values: 0, error: None };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = AnyValue(&mut walk).deserialize(&mut deserializer);
    // Text after the document is also an error.
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| {
        let malformed = || ApiError::new(Code::BadJson, format!("the body is not JSON: {error}"));
        walk.error.unwrap_or_else(malformed)
    })
}

struct Walk {
    /// The steps to the current value: `name`, `.name` or `[index]`.
    path: Vec<String>,
    values: usize,
    error: Option<ApiError>,
}

impl Walk {
    /// Stores the problem and returns an error that ends the walk.
    fn fail<E: Error>(&mut self, message: &str, allowed: String) -> E {
        let path = self.path.concat();
        let detail = if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") };
        self.error = Some(ApiError::new(Code::InvalidField, detail).field(path).allowed([allowed]));
        E::custom(message)
    }

    fn count<E: Error>(&mut self) -> Result<(), E> {
        self.values += 1;
        if self.values <= MAX_VALUES {
            return Ok(());
        }
        Err(self.fail(
            &format!("the body has more than {MAX_VALUES} values"),
            format!("at most {MAX_VALUES} values"),
        ))
    }

    fn check_text<E: Error>(&mut self, text: &str) -> Result<(), E> {
        if text.contains('\0') { Err(self.fail(NUL, NO_NUL.to_owned())) } else { Ok(()) }
    }

    /// Checks that another level is allowed.
    fn check_depth<E: Error>(&mut self) -> Result<(), E> {
        if self.path.len() < MAX_DEPTH {
            return Ok(());
        }
        // The full path to this value would be too long for a message.
        self.path.truncate(1);
        Err(self.fail(
            &format!("the body is nested deeper than {MAX_DEPTH} levels"),
            format!("at most {MAX_DEPTH} levels"),
        ))
    }
}

/// Reads a value of any type and checks it.
struct AnyValue<'a>(&'a mut Walk);

impl<'de> DeserializeSeed<'de> for AnyValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.0.check_text(text)?;
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.0.check_depth()?;
        let mut values = Vec::new();
        loop {
            self.0.path.push(format!("[{}]", values.len()));
            let Some(value) = items.next_element_seed(AnyValue(self.0))? else { break };
            values.push(value);
            self.0.path.pop();
        }
        self.0.path.pop();
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        self.0.check_depth()?;
        let mut values = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let dot = if self.0.path.is_empty() { "" } else { "." };
            self.0.path.push(dot.chars().chain(name.chars().take(MAX_NAME_CHARS)).collect());
            self.0.check_text(&name)?;
            if values.contains_key(&name) {
                let error = self.0.fail("the name occurs twice", "each name once".to_owned());
                self.0.error = self.0.error.take().map(|error| error.reason("twice"));
                return Err(error);
            }
            values.insert(name, fields.next_value_seed(AnyValue(self.0))?);
            self.0.path.pop();
        }
        Ok(values.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::extract::Bounded;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        name: String,
        limit: Option<Bounded<1, 10>>,
        items: Option<Vec<Body>>,
    }

    #[test]
    fn valid_json_body_is_parsed() {
        let body: Body = parse_sync(br#"{"name": "a", "limit": 3, "items": [{"name": "b"}]}"#).unwrap();
        assert_eq!((body.name.as_str(), body.limit.unwrap().get(), body.items.unwrap().len()), ("a", 3, 1));
    }

    #[test]
    fn json_array_is_rejected_as_object() {
        for text in [r#"["a", 3]"#, r#" ["a"]"#, r#"["a", null, null]"#] {
            let problem = parse_sync::<Body>(text.as_bytes()).unwrap_err().into_problem();
            assert_eq!(problem.code, Code::InvalidField, "{text}");
            // The message does not repeat the array, which can be as long as the body.
            assert_eq!(problem.detail, "invalid type: sequence, expected an object");
        }
    }

    #[test]
    fn integer_field_accepts_only_zero_fraction() {
        assert_eq!(parse_sync::<Body>(br#"{"name": "a", "limit": 3.0}"#).unwrap().limit.unwrap().get(), 3);
        for text in [
            r#"{"name": "a", "limit": 3.5}"#,
            r#"{"name": "a", "limit": 11.0}"#,
            r#"{"name": "a", "limit": 1e300}"#,
        ] {
            assert_eq!(parse_sync::<Body>(text.as_bytes()).unwrap_err().code(), Code::InvalidField, "{text}");
        }
    }

    #[test]
    fn nul_character_in_json_is_rejected() {
        for (text, field) in [
            (r#"{"name": "a\u0000b"}"#, "name"),
            (r#"{"name": "a", "items": [{"name": "b"}, {"name": "\u0000"}]}"#, "items[1].name"),
            (r#"{"name": "a", "\u0000": 1}"#, "\0"),
        ] {
            let problem = parse_sync::<Body>(text.as_bytes()).unwrap_err().into_problem();
            assert_eq!((problem.code, problem.field.as_deref()), (Code::InvalidField, Some(field)), "{text}");
        }
        // A `u0000` after an escaped backslash is ordinary text.
        assert_eq!(parse_sync::<Body>(br#"{"name": "a\\u0000"}"#).unwrap().name, r"a\u0000");
    }

    #[test]
    fn json_error_repeats_little_of_input() {
        let long = "expected `a`, `b`, ".repeat(1000);
        for (text, allowed) in [
            (format!(r#"{{"name": "a", "items": "{long}"}}"#), "a sequence"),
            (format!(r#"{{"name": "a", "limit": "{long}"}}"#), "a whole number from 1 to 10"),
            (format!(r#"{{"name": "a", "{long}": 1}}"#), "name"),
        ] {
            let problem = parse_sync::<Body>(text.as_bytes()).unwrap_err().into_problem();
            assert_eq!(problem.allowed.first().map(String::as_str), Some(allowed));
            let length = serde_json::to_string(&problem).unwrap().len();
            assert!(length < 4000, "{length} bytes");
        }
    }

    #[test]
    fn malformed_json_is_distinguished_from_invalid_fields() {
        for (text, code, field, allowed) in [
            ("", Code::BadJson, None, None),
            ("{", Code::BadJson, None, None),
            ("nonsense", Code::BadJson, None, None),
            (r#"{"name": "a"} x"#, Code::BadJson, None, None),
            ("[]", Code::InvalidField, Some(""), None),
            ("{}", Code::InvalidField, Some("name"), None),
            (r#"{"name": 1}"#, Code::InvalidField, Some("name"), Some("a string")),
            (
                r#"{"name": "a", "limit": 11}"#,
                Code::InvalidField,
                Some("limit"),
                Some("a whole number from 1 to 10"),
            ),
            (
                r#"{"name": "a", "limit": "3"}"#,
                Code::InvalidField,
                Some("limit"),
                Some("a whole number from 1 to 10"),
            ),
            (r#"{"name": "a", "size": 1}"#, Code::InvalidField, Some("size"), Some("name")),
            (
                r#"{"name": "a", "items": [{"name": "b", "limit": 0}]}"#,
                Code::InvalidField,
                Some("items[0].limit"),
                None,
            ),
        ] {
            let problem = parse_sync::<Body>(text.as_bytes()).unwrap_err().into_problem();
            assert_eq!(problem.code, code, "{text}: {}", problem.detail);
            assert_eq!(problem.field.as_deref(), field, "{text}: {}", problem.detail);
            if let Some(allowed) = allowed {
                assert_eq!(problem.allowed.first().map(String::as_str), Some(allowed), "{text}");
            }
        }
    }
}
