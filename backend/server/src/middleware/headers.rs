//! Headers that keep answers where they belong.
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

/// An answer of the API is data: nothing in it may run or be framed.
const API_POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox");
/// The page loads only what this server serves, and nothing that is written into it can become a script (trusted types without a policy: no
/// `innerHTML`). Pictures that were chosen, and those fetched with a key, are shown from blobs.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);
/// The API browser as well. Swagger UI writes style attributes.
const DOCS_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; \
     font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
/// The page may ask for the camera; nothing here needs more.
const PERMISSIONS: HeaderValue = HeaderValue::from_static(
    "camera=(self), microphone=(), geolocation=(), display-capture=(), payment=(), usb=()",
);

/// Sets what the handler did not set itself. Faces are personal data: nothing is stored by caches unless a handler allows it.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let (policy, page) = match path {
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
    headers.entry(header::CACHE_CONTROL).or_insert(if page {
        HeaderValue::from_static("no-cache")
    } else {
        HeaderValue::from_static("no-store")
    });
    response
}
