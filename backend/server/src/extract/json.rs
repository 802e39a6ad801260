//! Parses JSON bodies. Malformed text fails with `bad_json`. Well-formed text with an invalid field
//! fails with `invalid_field`, which names the field.
//!
//! The structure of a text is checked before it is parsed, because the parsed form of many small
//! values can take many times the memory of the text. The check needs memory only in proportion to
//! the depth of the text.
use super::body;
use super::values::{NO_NUL, NUL};
use crate::{ApiError, AppState, Code};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Maximum size of a text that is parsed on the current thread, in bytes. A larger text would block
/// all other tasks of that thread.
const MAX_INLINE_BYTES: usize = 64 << 10;

/// Holds the value of a JSON body without images.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
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

/// Reads a JSON body of an operation that also accepts uploads, whose limits do not suit it.
///
/// # Errors
/// Fails with 413 for more than `limit` bytes, 503 if the body needs more than `time`, and as
/// [`Json`].
pub(crate) async fn read_small_json<T: DeserializeOwned + Send + 'static>(
    request: Request,
    limit: usize,
    time: Duration,
) -> Result<T, ApiError> {
    let (parts, body) = request.into_parts();
    let read = tokio::time::timeout(time, body::read(&parts.headers, body, limit, "the body")).await;
    let too_slow = |_| ApiError::new(Code::Timeout, format!("the JSON body did not arrive within {time:?}"));
    parse(read.map_err(too_slow)??).await
}

/// Parses a JSON text. A long text is parsed on a thread for blocking work.
pub(super) async fn parse<T: DeserializeOwned + Send + 'static>(bytes: Bytes) -> Result<T, ApiError> {
    if bytes.len() <= MAX_INLINE_BYTES {
        return parse_here(&bytes);
    }
    // Only the current task knows the id of the request.
    let parsed = tokio::task::spawn_blocking(move || parse_here(&bytes)).await;
    parsed.map_err(ApiError::internal)?.map_err(ApiError::of_this_request)
}

pub(super) fn parse_here<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    check_structure(bytes)?;
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut deserializer).and_then(|value| {
        // Text after the document is also an error.
        let root = serde_path_to_error::Track::new().path();
        deserializer.end().map_err(|error| serde_path_to_error::Error::new(root, error)).map(|()| value)
    });
    // serde also accepts an array for a struct and uses its items as the fields. Callers do not
    // intend that.
    if parsed.is_ok() && bytes.trim_ascii_start().starts_with(b"[") {
        let sentence = "invalid type: sequence, expected an object";
        return Err(ApiError::new(Code::InvalidField, sentence).allowed(["an object"]));
    }
    parsed.map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        if error.classify() != Category::Data {
            return ApiError::new(Code::BadJson, format!("the body is not JSON: {error}"));
        }
        let message = error.to_string();
        // The position does not help a caller whose library generated the text.
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(text, _)| text);
        let field = match path.as_str() {
            "." => message.split('`').nth(1).unwrap_or_default().to_owned(),
            path => path.to_owned(),
        };
        let detail = if field.is_empty() { message.to_owned() } else { format!("{field}: {message}") };
        ApiError::new(Code::InvalidField, detail).field(field).allowed(allowed_of(message))
    })
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the allowed values that a message of serde contains: a list of names or a sentence at
/// its end. They are read from the text, because a `serde_json::Error` has no other form of them.
/// The received value precedes them and can contain the same words, so the last match is used.
fn allowed_of(message: &str) -> Vec<String> {
    let Some((_, expected)) = message.rsplit_once("expected ") else { return Vec::new() };
    let names: Vec<String> = quoted(expected).map(str::to_owned).collect();
    if names.is_empty() { vec![expected.to_owned()] } else { names }
}

/// Maximum number of values in a body, including arrays and objects. No operation needs this number
/// of values. The parsed form of all values takes at most about one megabyte.
pub(super) const MAX_VALUES: usize = 20_000;
/// Maximum number of characters of a field name that a problem repeats.
const MAX_NAME_CHARS: usize = 200;
/// Maximum number of nested objects and arrays.
pub(super) const MAX_DEPTH: usize = 32;

/// Checks the structure of a text.
///
/// # Errors
/// Fails with 422 for a NUL character, for a name that occurs twice in an object, and for too many
/// values or levels. `field` is set to the position. A text that is not JSON passes, because the
/// parser reports that error.
pub(super) fn check_structure(text: &[u8]) -> Result<(), ApiError> {
    let mut walk = Walk { place: Vec::new(), values: 0, hasher: RandomState::new(), fault: None };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    // An error without `fault` means that the text is not JSON.
    let _ = AnyValue(&mut walk).deserialize(&mut deserializer);
    walk.fault.map_or(Ok(()), Err)
}

/// One step of the path to a value.
enum Step {
    Field(String),
    Item(usize),
}

struct Walk {
    place: Vec<Step>,
    values: usize,
    hasher: RandomState,
    fault: Option<ApiError>,
}

impl Walk {
    /// Stores the problem and returns an error that ends the walk.
    fn refuse<E: Error>(&mut self, sentence: &str, allowed: String) -> E {
        let place = self.place();
        let detail = if place.is_empty() { sentence.to_owned() } else { format!("{place}: {sentence}") };
        self.fault = Some(ApiError::new(Code::InvalidField, detail).field(place).allowed([allowed]));
        E::custom(sentence)
    }

    fn count<E: Error>(&mut self) -> Result<(), E> {
        self.values += 1;
        if self.values <= MAX_VALUES {
            return Ok(());
        }
        Err(self.refuse(
            &format!("the body has more than {MAX_VALUES} values"),
            format!("at most {MAX_VALUES} values"),
        ))
    }

    fn text<E: Error>(&mut self, text: &str) -> Result<(), E> {
        if text.contains('\0') { Err(self.refuse(NUL, NO_NUL.to_owned())) } else { Ok(()) }
    }

    /// Checks that another level is allowed.
    fn descend<E: Error>(&mut self) -> Result<(), E> {
        if self.place.len() < MAX_DEPTH {
            return Ok(());
        }
        // The full path to this value would be too long for a message.
        self.place.truncate(1);
        Err(self.refuse(
            &format!("the body is nested deeper than {MAX_DEPTH} levels"),
            format!("at most {MAX_DEPTH} levels"),
        ))
    }

    fn place(&self) -> String {
        let mut text = String::new();
        for step in &self.place {
            match step {
                Step::Item(index) => text.push_str(&format!("[{index}]")),
                Step::Field(name) if text.is_empty() => text.push_str(name),
                Step::Field(name) => text.push_str(&format!(".{name}")),
            }
        }
        text
    }
}

/// Accepts a value of any type, checks it and drops it.
struct AnyValue<'a>(&'a mut Walk);

impl<'de> DeserializeSeed<'de> for AnyValue<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyValue<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.0.descend()?;
        for index in 0.. {
            self.0.place.push(Step::Item(index));
            if items.next_element_seed(AnyValue(self.0))?.is_none() {
                break;
            }
            self.0.place.pop();
        }
        self.0.place.pop();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        self.0.descend()?;
        // Names can be as long as the body, so only their hashes are kept. Two names with the same
        // 64-bit hash are treated as equal. The hash key is random.
        let mut seen = HashSet::new();
        while let Some(Name(name)) = fields.next_key()? {
            let is_new = seen.insert(self.0.hasher.hash_one(&*name));
            let has_nul = name.contains('\0');
            self.0.place.push(Step::Field(name.chars().take(MAX_NAME_CHARS).collect()));
            if has_nul {
                return Err(self.0.refuse(NUL, NO_NUL.to_owned()));
            }
            if !is_new {
                let error = self.0.refuse("the name occurs twice", "each name once".to_owned());
                self.0.fault = self.0.fault.take().map(|fault| fault.reason("twice"));
                return Err(error);
            }
            fields.next_value_seed(AnyValue(self.0))?;
            self.0.place.pop();
        }
        Ok(())
    }
}

/// The name of a field. It is borrowed from the text if it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

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
        let body: Body = parse_here(br#"{"name": "a", "limit": 3, "items": [{"name": "b"}]}"#).unwrap();
        assert_eq!((body.name.as_str(), body.limit.unwrap().get(), body.items.unwrap().len()), ("a", 3, 1));
    }

    #[test]
    fn json_array_is_rejected_as_object() {
        for text in [r#"["a", 3]"#, r#" ["a"]"#, r#"["a", null, null]"#] {
            assert_eq!(parse_here::<Body>(text.as_bytes()).unwrap_err().code(), Code::InvalidField, "{text}");
        }
    }

    #[test]
    fn integer_field_accepts_only_zero_fraction() {
        assert_eq!(parse_here::<Body>(br#"{"name": "a", "limit": 3.0}"#).unwrap().limit.unwrap().get(), 3);
        for text in [
            r#"{"name": "a", "limit": 3.5}"#,
            r#"{"name": "a", "limit": 11.0}"#,
            r#"{"name": "a", "limit": 1e300}"#,
        ] {
            assert_eq!(parse_here::<Body>(text.as_bytes()).unwrap_err().code(), Code::InvalidField, "{text}");
        }
    }

    #[test]
    fn nul_character_in_json_is_rejected() {
        for (text, field) in [
            (r#"{"name": "a\u0000b"}"#, "name"),
            (r#"{"name": "a", "items": [{"name": "b"}, {"name": "\u0000"}]}"#, "items[1].name"),
            (r#"{"name": "a", "\u0000": 1}"#, "\0"),
        ] {
            let problem = parse_here::<Body>(text.as_bytes()).unwrap_err().into_problem();
            assert_eq!((problem.code, problem.field.as_deref()), (Code::InvalidField, Some(field)), "{text}");
        }
        // A `u0000` after an escaped backslash is ordinary text.
        assert_eq!(parse_here::<Body>(br#"{"name": "a\\u0000"}"#).unwrap().name, r"a\u0000");
    }

    #[test]
    fn json_error_repeats_little_of_input() {
        let long = "expected `a`, `b`, ".repeat(1000);
        for (text, allowed) in [
            (format!(r#"{{"name": "a", "items": "{long}"}}"#), "a sequence"),
            (format!(r#"{{"name": "a", "limit": "{long}"}}"#), "a whole number from 1 to 10"),
            (format!(r#"{{"name": "a", "{long}": 1}}"#), "name"),
        ] {
            let problem = parse_here::<Body>(text.as_bytes()).unwrap_err().into_problem();
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
            let problem = parse_here::<Body>(text.as_bytes()).unwrap_err().into_problem();
            assert_eq!(problem.code, code, "{text}: {}", problem.detail);
            assert_eq!(problem.field.as_deref(), field, "{text}: {}", problem.detail);
            if let Some(allowed) = allowed {
                assert_eq!(problem.allowed.first().map(String::as_str), Some(allowed), "{text}");
            }
        }
    }
}
