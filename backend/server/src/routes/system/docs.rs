//! `GET /openapi.json`, and `/docs` where it can be read and tried.
use crate::AppState;
use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use std::sync::LazyLock;
use utoipa_swagger_ui::{Config, SwaggerUi};

/// The document never changes while the process runs.
static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| crate::openapi().to_json().expect("the document is plain data"));

/// This API as an OpenAPI 3.1 document.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "get_openapi", tag = "system",
    responses((status = 200, description = "The document", body = Object, content_type = "application/json")),
)]
pub(super) async fn get_openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// Swagger UI, served from the binary; it asks nobody else for anything (no validator badge).
pub(crate) fn router() -> Router<AppState> {
    let config = Config::new(["/openapi.json"]).validator_url("none").try_it_out_enabled(true);
    SwaggerUi::new("/docs").config(config).into()
}
