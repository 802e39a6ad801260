//! Parses JSON bodies. Malformed text fails with `bad_json`. Well-formed text with an invalid field
//! fails with `invalid_field`, which names the field.
use super::{body, query::allowed_of, structure};
use crate::{ApiError, AppState, Code};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
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
    structure::check(bytes)?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::extract::values::Bounded;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        name: String,
        limit: Option<Bounded<1, 10>>,
        items: Option<Vec<Body>>,
    }

    #[test]
    fn a_good_body_is_read() {
        let body: Body = parse_here(br#"{"name": "a", "limit": 3, "items": [{"name": "b"}]}"#).unwrap();
        assert_eq!((body.name.as_str(), body.limit.unwrap().get(), body.items.unwrap().len()), ("a", 3, 1));
    }

    #[test]
    fn an_array_is_no_object() {
        for text in [r#"["a", 3]"#, r#" ["a"]"#, r#"["a", null, null]"#] {
            assert_eq!(parse_here::<Body>(text.as_bytes()).unwrap_err().code(), Code::InvalidField, "{text}");
        }
    }

    #[test]
    fn a_whole_number_may_be_written_as_a_fraction() {
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
    fn a_nul_character_is_refused_wherever_it_stands() {
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
    fn an_answer_repeats_little_of_what_was_sent() {
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
    fn text_that_is_not_json_is_told_from_wrong_fields() {
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
