//! Assigns one id to each request. The id appears in the log, in the response header and in every
//! problem document.
use crate::request;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Uses the caller's id if it is valid, so that a request can be followed through several services.
/// Otherwise creates a UUIDv7.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(&HEADER)
        .and_then(|value| value.to_str().ok())
        .filter(|text| is_sane(text))
        .map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    let header = HeaderValue::from_str(&id).expect("an id has only letters, digits and - _ . :");
    let mut response = request::with_id(id, next.run(request)).await;
    response.headers_mut().insert(HEADER, header);
    response
}

/// Returns whether an id is short and contains no character that could forge a log line or break a
/// header.
fn is_sane(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_plain_ids_are_taken_over() {
        assert!(is_sane("abc-123_x.y:z"));
        for bad in ["", "a b", "a\nb", "ä", "<x>", &"a".repeat(129)] {
            assert!(!is_sane(bad), "{bad:?}");
        }
    }
}
