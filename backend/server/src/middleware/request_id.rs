//! One id per request: in the log, in the answer's header, in every problem document.
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

tokio::task_local! {
    static CURRENT: String;
}

/// The id of the request that this task serves; empty outside of one.
pub(crate) fn current() -> String {
    CURRENT.try_with(Clone::clone).unwrap_or_default()
}

/// Takes the caller's id when it is sane (so that it can be followed through several services), else a new UUIDv7.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(&HEADER)
        .and_then(|value| value.to_str().ok())
        .filter(|text| is_sane(text))
        .map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    let header = HeaderValue::from_str(&id).expect("letters, digits and a few marks");
    let mut response = CURRENT.scope(id, next.run(request)).await;
    response.headers_mut().insert(HEADER, header);
    response
}

/// Short, and of characters that can neither forge a log line nor break a header.
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
