//! Builds the router of the service from all operations, the pages and the middleware. The
//! operations are in `routes`.
use crate::middleware::{access, again, bodies, headers, hosts, observe, panic, places, request_id, timeout};
use crate::openapi::{Frame, complete};
use crate::operation::Routes;
use crate::{ApiError, AppState, Code, routes};
use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, Uri, header};
use axum::middleware::{from_fn, from_fn_with_state};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa::OpenApi as _;

pub(crate) fn operations() -> Routes {
    Routes::with_openapi(Frame::openapi())
        .merge(routes::faces::router())
        .merge(routes::images::router())
        .merge(routes::crawls::router())
        .merge(routes::collections::router())
        .merge(routes::erasures::router())
        .merge(routes::keys::router())
        .merge(routes::audit::router())
        .merge(routes::jobs::router())
        .merge(routes::subjects::router())
        .merge(routes::system::router())
}

/// Returns the OpenAPI description of the API. It needs no running service.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = operations().router.into_openapi();
    complete(&mut document);
    document
}

/// Returns the router of the HTTP service.
pub fn router(state: AppState) -> Router {
    let router = guarded(operations(), &state)
        .merge(routes::system::docs_router())
        .merge(routes::system::page_router())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method);
    surround(router, state)
}

/// Adds the key check to every operation. Pages are merged later, because pages and unknown paths
/// need no key.
fn guarded(operations: Routes, state: &AppState) -> Router<AppState> {
    let (router, _) = operations.router.split_for_parts();
    router
        .route_layer(from_fn_with_state(state.clone(), places::layer))
        .route_layer(from_fn_with_state(state.clone(), bodies::layer))
        .route_layer(from_fn(again::layer))
        .route_layer(from_fn_with_state(state.clone(), access::layer))
}

/// Adds the middleware that surrounds every handler, page and fallback.
fn surround(router: Router<AppState>, state: AppState) -> Router {
    let mut router = router
        .layer(from_fn_with_state(state.clone(), hosts::layer))
        .layer(from_fn_with_state(state.clone(), timeout::layer))
        .layer(CatchPanicLayer::custom(panic::answer))
        .layer(from_fn(headers::layer));
    if let Some(cors) = cors(&state.config.allow_origins) {
        router = router.layer(cors);
    }
    router.layer(from_fn(observe::layer)).layer(from_fn(request_id::layer)).with_state(state)
}

/// Returns the router of a process without an API, with health checks and metrics.
pub fn status_router(state: AppState) -> Router {
    let router = guarded(routes::system::status_router(), &state)
        .fallback(no_status_route)
        .method_not_allowed_fallback(no_method);
    surround(router, state)
}

/// Returns the CORS layer, or `None` if the operator allows no other origins.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    let origins: Vec<HeaderValue> =
        origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
    (!origins.is_empty()).then(|| {
        CorsLayer::new()
            .allow_origin(AllowOrigin::list(origins))
            .allow_methods([Method::GET, Method::POST, Method::PATCH, Method::DELETE])
            .allow_headers([
                header::CONTENT_TYPE,
                header::AUTHORIZATION,
                HeaderName::from_static("x-api-key"),
                HeaderName::from_static("x-request-id"),
            ])
            .expose_headers([
                HeaderName::from_static("x-request-id"),
                HeaderName::from_static("ratelimit"),
                HeaderName::from_static("ratelimit-policy"),
                header::RETRY_AFTER,
                header::LOCATION,
                header::WWW_AUTHENTICATE,
            ])
    })
}

pub(crate) async fn no_route(uri: Uri) -> ApiError {
    ApiError::new(Code::RouteNotFound, format!("there is nothing at {}; see /docs", uri.path()))
}

async fn no_status_route(uri: Uri) -> ApiError {
    let detail = format!(
        "there is nothing at {}; a worker answers /health/live, /health/ready and /metrics",
        uri.path()
    );
    ApiError::new(Code::RouteNotFound, detail)
}

async fn no_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(Code::MethodNotAllowed, format!("{method} is not allowed at {}", uri.path()))
}
