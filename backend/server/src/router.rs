//! Builds the router of the service from all operations, the web page, the API browser and the
//! middleware. The operations are in `routes`.
use crate::compat::translate_errors;
use crate::config::{Auth, Compat};
use crate::middleware::{Api, access, limits, responses};
use crate::openapi::{BaseDocument, complete, require_keys};
use crate::operation::{Operations, Routes};
use crate::routes::system::{no_method, no_route, no_status_route};
use crate::{AppState, Spec, routes};
use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use std::sync::{Arc, LazyLock};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes as paths;
use utoipa_swagger_ui::{Config, SwaggerUi};

fn operations() -> Routes {
    let router = OpenApiRouter::with_openapi(BaseDocument::openapi());
    Routes { router, ..Routes::default() }
        .merge(routes::faces::router())
        .merge(routes::images::router())
        .merge(routes::videos::router())
        .merge(routes::crawls::router())
        .merge(routes::collections::router())
        .merge(routes::erasures::router())
        .merge(routes::keys::router())
        .merge(routes::audit::router())
        .merge(routes::jobs::router())
        .merge(routes::people::router())
        .merge(routes::watch::router())
        .merge(routes::streams::router())
        .merge(routes::system::router())
        .add(SPEC, paths!(get_openapi))
}

/// Returns the OpenAPI description of the API. The function needs no running service.
pub fn openapi() -> OpenApi {
    describe_api().0
}

pub(crate) fn describe_api() -> (OpenApi, Operations) {
    let Routes { router, operations } = operations();
    let mut document = router.into_openapi();
    complete(&mut document, &operations);
    (document, operations)
}

pub fn router(state: AppState) -> Router {
    let (mut router, api) = add_key_check(operations(), state.clone());
    for compat in Compat::ALL.into_iter().filter(|compat| state.config.compat.contains(compat)) {
        let (routes, _) = add_key_check(compat.routes(), state.clone());
        router = router.merge(routes);
    }
    let router = router
        .merge(api_browser())
        .merge(routes::system::page_router())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method);
    add_outer_layers(router, api)
}

/// Adds the key check to every operation. The web page and the API browser are merged later,
/// because they and unknown paths need no key.
fn add_key_check(routes: Routes, state: AppState) -> (Router<AppState>, Api) {
    let Routes { router, operations } = routes;
    let api = Api { state, operations: Arc::new(operations) };
    let (router, _) = router.split_for_parts();
    let router = router
        .route_layer(from_fn_with_state(api.clone(), limits::share_connections))
        .route_layer(from_fn_with_state(api.clone(), limits::reserve_body))
        .route_layer(from_fn(limits::retry_reads))
        .route_layer(from_fn_with_state(api.clone(), limits::reserve_response))
        .route_layer(from_fn_with_state(api.clone(), access::authenticate));
    (router, api)
}

/// Adds the middleware that surrounds every handler, page and fallback.
fn add_outer_layers(router: Router<AppState>, api: Api) -> Router {
    let state = api.state.clone();
    let mut router = router
        .layer(from_fn_with_state(api.clone(), access::check_host))
        .layer(from_fn_with_state(api, limits::limit_time))
        .layer(CatchPanicLayer::custom(responses::panic_response))
        .layer(from_fn(responses::set_headers));
    if let Some(cors) = cors(&state.config.allow_origins) {
        router = router.layer(cors);
    }
    // The errors of all layers above get the form of the API to which the path belongs.
    router = router.layer(from_fn_with_state(state.clone(), translate_errors));
    router.layer(from_fn(responses::observe)).layer(from_fn(responses::assign_id)).with_state(state)
}

/// Returns the router of a process without an API, with health checks and metrics.
pub fn status_router(state: AppState) -> Router {
    let (router, api) = add_key_check(routes::system::status_router(), state);
    add_outer_layers(router.fallback(no_status_route).method_not_allowed_fallback(no_method), api)
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

/// The OpenAPI document, which never changes while the process runs.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| to_json_text(&openapi()));
/// The document of a service that requires keys.
static WITH_KEYS: LazyLock<String> = LazyLock::new(|| {
    let mut document = openapi();
    require_keys(&mut document);
    to_json_text(&document)
});

fn to_json_text(document: &OpenApi) -> String {
    document.to_json().expect("the document is plain data")
}

const SPEC: Spec = Spec::open();

/// Return this API as an OpenAPI 3.1 document.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "get_openapi", tag = "system",
    responses((status = 200, description = "The document", body = Object, content_type = "application/json",
        example = json!({"openapi": "3.1.0", "info": {"title": "facecrawl", "version": "0.1.0"}, "paths": {}}))),
)]
async fn get_openapi(state: AppState) -> impl IntoResponse {
    let document = match state.config.auth {
        Auth::None => &DOCUMENT,
        Auth::Keys | Auth::Proxy => &WITH_KEYS,
    };
    ([(header::CONTENT_TYPE, "application/json")], document.as_str())
}

/// Returns Swagger UI, served from the binary. It contacts no other server (no validator badge).
fn api_browser() -> Router<AppState> {
    let config = Config::new(["/openapi.json"]).validator_url("none").try_it_out_enabled(true);
    SwaggerUi::new("/docs").config(config).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scope;
    use crate::operation::Access;

    #[test]
    fn routes_are_found_by_method_and_template() {
        let operations = operations().operations;
        let access = |method, path| operations.find(&method, path).map(|operation| operation.spec.access);
        assert_eq!(access(Method::GET, "/faces/{id}"), Some(Access::Needs(Scope::Read)));
        assert_eq!(access(Method::HEAD, "/faces/{id}"), Some(Access::Needs(Scope::Read)));
        assert_eq!(access(Method::DELETE, "/faces/{id}"), Some(Access::Needs(Scope::Erase)));
        assert_eq!(access(Method::GET, "/health/live"), Some(Access::Open));
        assert_eq!(access(Method::PUT, "/faces/{id}"), None);
        assert_eq!(access(Method::GET, "/elsewhere"), None);
    }
}
