//! Headers that keep answers where they belong.
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

/// An answer of the API is data: nothing in it may run or be framed.
const API_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox");
/// The page and the API browser load only what this server serves. Swagger UI writes style attributes.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; \
     font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// Sets what the handler did not set itself. Faces are personal data: nothing is stored by caches unless a handler allows it.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let page = path == "/" || path.starts_with("/assets/") || path == "/docs" || path.starts_with("/docs/");
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    );
    headers.insert(header::CONTENT_SECURITY_POLICY, if page { PAGE_POLICY } else { API_POLICY });
    headers.entry(header::CACHE_CONTROL).or_insert(if page {
        HeaderValue::from_static("no-cache")
    } else {
        HeaderValue::from_static("no-store")
    });
    response
}
