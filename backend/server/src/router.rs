//! Builds the router of the service from all operations, the web page, the API browser and the
//! middleware. The operations are in `routes`.
mod docs;

use crate::middleware::{
    Api, access, answers, bodies, connection_shares, headers, hosts, observe, panic, request_id, retry,
    timeout,
};
use crate::openapi::{BaseDocument, complete};
use crate::operation::{Operations, Routes};
use crate::routes::fallback::{no_method, no_route, no_status_route};
use crate::{AppState, routes};
use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{from_fn, from_fn_with_state};
use std::sync::Arc;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa::OpenApi as _;

fn operations() -> Routes {
    Routes::with_openapi(BaseDocument::openapi())
        .merge(routes::faces::router())
        .merge(routes::images::router())
        .merge(routes::videos::router())
        .merge(routes::crawls::router())
        .merge(routes::collections::router())
        .merge(routes::erasures::router())
        .merge(routes::keys::router())
        .merge(routes::audit::router())
        .merge(routes::jobs::router())
        .merge(routes::subjects::router())
        .merge(routes::system::router())
        .merge(docs::operation())
}

/// Returns the OpenAPI description of the API. The function needs no running service.
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().0
}

pub(crate) fn described() -> (utoipa::openapi::OpenApi, Operations) {
    let Routes { router, operations } = operations();
    let mut document = router.into_openapi();
    complete(&mut document, &operations);
    (document, operations)
}

pub fn router(state: AppState) -> Router {
    let (router, api) = guarded(operations(), state);
    let router = router
        .merge(docs::browser())
        .merge(routes::system::page_router())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method);
    surround(router, api)
}

/// Adds the key check to every operation. The web page and the API browser are merged later,
/// because they and unknown paths need no key.
fn guarded(routes: Routes, state: AppState) -> (Router<AppState>, Api) {
    let Routes { router, operations } = routes;
    let api = Api { state, operations: Arc::new(operations) };
    let (router, _) = router.split_for_parts();
    let router = router
        .route_layer(from_fn_with_state(api.clone(), connection_shares::layer))
        .route_layer(from_fn_with_state(api.clone(), bodies::layer))
        .route_layer(from_fn(retry::layer))
        .route_layer(from_fn_with_state(api.clone(), answers::layer))
        .route_layer(from_fn_with_state(api.clone(), access::layer));
    (router, api)
}

/// Adds the middleware that surrounds every handler, page and fallback.
fn surround(router: Router<AppState>, api: Api) -> Router {
    let state = api.state.clone();
    let mut router = router
        .layer(from_fn_with_state(api.clone(), hosts::layer))
        .layer(from_fn_with_state(api, timeout::layer))
        .layer(CatchPanicLayer::custom(panic::answer))
        .layer(from_fn(headers::layer));
    if let Some(cors) = cors(&state.config.allow_origins) {
        router = router.layer(cors);
    }
    router.layer(from_fn(observe::layer)).layer(from_fn(request_id::layer)).with_state(state)
}

/// Returns the router of a process without an API, with health checks and metrics.
pub fn status_router(state: AppState) -> Router {
    let (router, api) = guarded(routes::system::status_router(), state);
    surround(router.fallback(no_status_route).method_not_allowed_fallback(no_method), api)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scope;
    use crate::operation::Access;

    #[test]
    fn a_route_is_found_by_method_and_template() {
        let operations = operations().operations;
        let needs = |method, path| operations.find(&method, path).map(|found| found.spec.access);
        assert_eq!(needs(Method::GET, "/faces/{id}"), Some(Access::Needs(Scope::Read)));
        assert_eq!(needs(Method::HEAD, "/faces/{id}"), Some(Access::Needs(Scope::Read)));
        assert_eq!(needs(Method::DELETE, "/faces/{id}"), Some(Access::Needs(Scope::Erase)));
        assert_eq!(needs(Method::GET, "/health/live"), Some(Access::Open));
        assert_eq!(needs(Method::PUT, "/faces/{id}"), None);
        assert_eq!(needs(Method::GET, "/elsewhere"), None);
    }
}
