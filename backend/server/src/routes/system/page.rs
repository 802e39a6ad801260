//! Serves the web page at `GET /`, which uses only this API, and responds to unknown paths.
use crate::{ApiError, AppState, Code};
use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use domain::Reason;
use rust_embed::{EmbeddedFile, RustEmbed};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The files of the web page, which are served without a build step. They are embedded in the
/// binary; debug builds read the folder at each request.
#[derive(RustEmbed)]
#[folder = "assets/"]
struct Assets;

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/", get(index))
        .route("/assets/js/reasons.js", get(reasons))
        .route("/assets/{*path}", get(asset))
}

async fn index(headers: HeaderMap) -> Response {
    file("index.html", &headers).unwrap_or_else(|| StatusCode::NOT_FOUND.into_response())
}

async fn asset(Path(path): Path<String>, uri: Uri, headers: HeaderMap) -> Response {
    match file(&path, &headers) {
        Some(response) => response,
        None => no_route(uri).await.into_response(),
    }
}

/// Returns a module with the explanation of each [`Reason`], so that the web page needs no separate
/// table.
async fn reasons(headers: HeaderMap) -> Response {
    static MODULE: LazyLock<(String, HeaderValue)> = LazyLock::new(|| {
        let table: BTreeMap<_, _> = Reason::ALL.iter().map(|reason| (reason, reason.explanation())).collect();
        let module = format!("export const REASONS = {};\n", serde_json::json!(table));
        let tag = entity_tag(&Sha256::digest(&module).into());
        (module, tag)
    });
    let (module, tag) = &*MODULE;
    respond(module.as_str(), HeaderValue::from_static(JAVASCRIPT), tag.clone(), &headers)
}

/// Returns a file of the web page. Browsers revalidate every file each time (`no-cache`, entity
/// tag), so a new version of the service never uses files of an old one.
fn file(path: &str, request: &HeaderMap) -> Option<Response> {
    let content_type = HeaderValue::from_static(content_type(path)?);
    let EmbeddedFile { data, metadata } = Assets::get(path)?;
    Some(respond(data, content_type, entity_tag(&metadata.sha256_hash()), request))
}

fn entity_tag(sha256: &[u8; 32]) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{}\"", hex::encode(&sha256[..16])))
        .expect("hexadecimal digits are visible")
}

/// Returns the content, or status 304 if the client already has the content.
fn respond(
    content: impl IntoResponse,
    content_type: HeaderValue,
    tag: HeaderValue,
    request: &HeaderMap,
) -> Response {
    let is_current = request.get(header::IF_NONE_MATCH) == Some(&tag);
    let headers = [(header::CONTENT_TYPE, content_type), (header::ETAG, tag)];
    match is_current {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, content).into_response(),
    }
}

/// Returns the content type of a file of the web page. Other kinds of files are not served.
fn content_type(path: &str) -> Option<&'static str> {
    Some(match path.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => JAVASCRIPT,
        "svg" => "image/svg+xml",
        "jpg" => "image/jpeg",
        "png" => "image/png",
        _ => return None,
    })
}

pub(crate) async fn no_route(uri: Uri) -> ApiError {
    ApiError::new(Code::RouteNotFound, format!("the path {} does not exist; see /docs", uri.path()))
}

/// Responds to a request for an unknown path of a process without an API.
pub(crate) async fn no_status_route(uri: Uri) -> ApiError {
    let detail = format!(
        "the path {} does not exist; a worker serves only /health/live, /health/ready and /metrics",
        uri.path()
    );
    ApiError::new(Code::RouteNotFound, detail)
}

pub(crate) async fn no_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(Code::MethodNotAllowed, format!("{method} is not allowed at {}", uri.path()))
}
