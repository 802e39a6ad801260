//! Serves the web page at `GET /`. The page uses only this API.
use crate::AppState;
use crate::routes::fallback::no_route;
use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rust_embed::{EmbeddedFile, RustEmbed};

/// The files of the page, which are served without a build step. They are embedded in the binary;
/// debug builds read the folder at each request.
#[derive(RustEmbed)]
#[folder = "assets/"]
struct Assets;

/// Returns the routes of the page and of the files that it loads.
pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/", get(index)).route("/assets/{*path}", get(asset))
}

async fn index(headers: HeaderMap) -> Response {
    file("index.html", &headers).unwrap_or_else(|| StatusCode::NOT_FOUND.into_response())
}

async fn asset(Path(path): Path<String>, uri: Uri, headers: HeaderMap) -> Response {
    match file(&path, &headers) {
        Some(answer) => answer,
        None => no_route(uri).await.into_response(),
    }
}

/// Returns a file of the page. Browsers revalidate every file each time (`no-cache`, entity tag),
/// so a new version of the service never uses files of an old one.
fn file(path: &str, request: &HeaderMap) -> Option<Response> {
    let content_type = HeaderValue::from_static(content_type(path)?);
    let EmbeddedFile { data, metadata } = Assets::get(path)?;
    let tag = format!("\"{}\"", hex::encode(&metadata.sha256_hash()[..16]));
    let known = request.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == tag.as_bytes());
    let headers = [(header::CONTENT_TYPE, content_type), (header::ETAG, HeaderValue::from_str(&tag).ok()?)];
    Some(if known {
        (StatusCode::NOT_MODIFIED, headers).into_response()
    } else {
        (headers, data).into_response()
    })
}

/// Returns the content type of a file of the page. Other kinds of files are not served.
fn content_type(path: &str) -> Option<&'static str> {
    Some(match path.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        "jpg" => "image/jpeg",
        "png" => "image/png",
        _ => return None,
    })
}
