//! `GET /openapi.json`, and the API browser at `/docs`.
use crate::config::Auth;
use crate::openapi::require_keys;
use crate::operation::Routes;
use crate::{AppState, Spec};
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use std::sync::LazyLock;
use utoipa::openapi::OpenApi;
use utoipa_axum::routes;
use utoipa_swagger_ui::{Config, SwaggerUi};

/// The OpenAPI document, which never changes while the process runs.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| text(&super::openapi()));
/// The document of a service that requires keys.
static WITH_KEYS: LazyLock<String> = LazyLock::new(|| {
    let mut document = super::openapi();
    require_keys(&mut document);
    text(&document)
});

pub(super) fn operation() -> Routes {
    Routes::default().add(SPEC, routes!(get_openapi))
}

fn text(document: &OpenApi) -> String {
    document.to_json().expect("the document is plain data")
}

const SPEC: Spec = Spec::open();

/// Return this API as an OpenAPI 3.1 document.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "get_openapi", tag = "system",
    responses((status = 200, description = "The document", body = Object, content_type = "application/json",
        example = json!({"openapi": "3.1.0", "info": {"title": "facecrawl", "version": "0.1.0"}, "paths": {}}))),
)]
async fn get_openapi(State(state): State<AppState>) -> impl IntoResponse {
    let document = match state.config.auth {
        Auth::None => &DOCUMENT,
        Auth::Keys => &WITH_KEYS,
    };
    ([(header::CONTENT_TYPE, "application/json")], document.as_str())
}

/// Returns Swagger UI, served from the binary. It contacts no other server (no validator badge).
pub(super) fn browser() -> Router<AppState> {
    let config = Config::new(["/openapi.json"]).validator_url("none").try_it_out_enabled(true);
    SwaggerUi::new("/docs").config(config).into()
}
