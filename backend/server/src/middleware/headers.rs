//! Sets the security and caching headers of responses. CORS headers are set by the router.
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

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
