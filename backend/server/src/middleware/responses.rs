//! The layers that complete every response: the request id, the log line and the metrics, security
//! headers, and a problem document instead of a panic. CORS headers are set by the router.
use crate::telemetry::GaugeGuard;
use crate::{ApiError, request};
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::any::Any;
use std::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Uses the caller's id if it is valid, so that a request can be followed through several services.
/// Otherwise creates a UUIDv7.
pub(crate) async fn assign_id(request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(&REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|text| is_valid_id(text))
        .map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    let header = HeaderValue::from_str(&id).expect("an id has only letters, digits and - _ . :");
    let mut response = request::with_id(id, next.run(request)).await;
    response.headers_mut().insert(REQUEST_ID, header);
    response
}

/// Returns whether an id is short and contains no character that could forge a log line or break a
/// header.
fn is_valid_id(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':'))
}

/// Records one request. The labels are the route's template and a known method, so callers cannot
/// cause new time series.
pub(crate) async fn observe(request: Request, next: Next) -> Response {
    let method = method_label(request.method());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    let span = tracing::info_span!(
        "http",
        request_id = request::id(),
        method,
        route,
        key_id = tracing::field::Empty
    );
    // If the caller disconnects, this future is dropped, and the gauge is decremented too.
    let in_flight = GaugeGuard::new(metrics::gauge!("facecrawl_http_requests_in_flight"));
    let start = Instant::now();
    let response = next.run(request).instrument(span.clone()).await;
    drop(in_flight);

    let elapsed = start.elapsed();
    let status = response.status();
    metrics::counter!("facecrawl_http_requests_total",
        "method" => method, "route" => route.clone(), "status" => status.as_str().to_owned())
    .increment(1);
    metrics::histogram!("facecrawl_http_request_duration_seconds", "method" => method, "route" => route.clone())
        .record(elapsed.as_secs_f64());

    let _entered = span.enter();
    let (status, latency_ms) = (status.as_u16(), elapsed.as_secs_f64() * 1e3);
    if status >= 500 {
        tracing::warn!(status, latency_ms, "request completed");
    } else if route.starts_with("/health/") || route == "/metrics" {
        tracing::debug!(status, latency_ms, "request completed");
    } else {
        tracing::info!(status, latency_ms, "request completed");
    }
    response
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}

/// Policy for responses of the API, which are data. Nothing in them may be executed or framed.
const API_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox");
/// Policy for the web page, which loads only files of this server. Trusted types without a policy
/// forbid `innerHTML`, so no text on the web page can become a script. The web page shows selected
/// images, videos that the user plays, and images fetched with a key, as blob URLs.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);
/// Policy for the API browser. Swagger UI writes style attributes.
const DOCS_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; \
     font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
/// The web page may use the camera. It needs no other device.
const PERMISSIONS: HeaderValue = HeaderValue::from_static(
    "camera=(self), microphone=(), geolocation=(), display-capture=(), payment=(), usb=()",
);

/// Sets the headers that the handler did not set. Faces are personal data, so caches may store
/// nothing unless a handler allows it.
pub(crate) async fn set_headers(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let (policy, is_page) = match path {
        "/docs" => (DOCS_POLICY, true),
        _ if path.starts_with("/docs/") => (DOCS_POLICY, true),
        "/" => (PAGE_POLICY, true),
        _ if path.starts_with("/assets/") => (PAGE_POLICY, true),
        _ => (API_POLICY, false),
    };
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    );
    headers.insert(HeaderName::from_static("permissions-policy"), PERMISSIONS);
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    headers.entry(header::CACHE_CONTROL).or_insert(if is_page {
        HeaderValue::from_static("no-cache")
    } else {
        HeaderValue::from_static("no-store")
    });
    response
}

/// Converts the payload of a panic to a problem. The payload is logged and not sent.
pub(crate) fn panic_response(payload: Box<dyn Any + Send + 'static>) -> Response {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    ApiError::internal(format!("panic: {text}")).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::http::StatusCode;
    use axum::routing::get;
    use tower::ServiceExt;
    use tower_http::catch_panic::CatchPanicLayer;

    #[tokio::test]
    async fn panic_response_reveals_only_request_id() {
        async fn broken() -> StatusCode {
            panic!("the secret is 42")
        }
        let router = Router::new()
            .route("/", get(broken))
            .layer(CatchPanicLayer::custom(panic_response))
            .layer(axum::middleware::from_fn(assign_id));
        let request = Request::get("/").header("x-request-id", "abc").body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()["x-request-id"], "abc");
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&problem["code"], &problem["request_id"]), (&"internal".into(), &"abc".into()));
        assert!(!String::from_utf8_lossy(&body).contains("42"));
    }

    #[test]
    fn only_short_plain_request_ids_are_accepted() {
        assert!(is_valid_id("abc-123_x.y:z"));
        for id in ["", "a b", "a\nb", "ä", "<x>", &"a".repeat(129)] {
            assert!(!is_valid_id(id), "{id:?}");
        }
    }
}
