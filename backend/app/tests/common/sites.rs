//! Runs web servers of tests: files in memory, with faulty responses on request, and the bodies of
//! a hostile site.
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode, Uri, header};
use axum::response::Html;
use axum::routing::get;
use futures::{StreamExt, stream};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns the sha256 in hex.
pub fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

/// Serves a site until the end of the test. Returns its origin.
pub async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    origin
}

/// Serves a page with one image, and returns its address.
pub async fn serve_image(image: Vec<u8>) -> String {
    let router = Router::new()
        .route("/", get(async || Html("<img src=/ada.jpg>")))
        .route("/ada.jpg", get(async move || image));
    serve(router).await
}

#[derive(Default)]
struct Shared {
    files: HashMap<String, Bytes>,
    /// Path and `Range` header of every request.
    requests: Mutex<Vec<(String, Option<String>)>>,
    break_after: Mutex<Option<usize>>,
    ignore_ranges: Mutex<bool>,
}

/// A server that stops with the test's runtime.
pub struct FileServer {
    base: String,
    shared: Arc<Shared>,
}

impl FileServer {
    pub async fn start<const N: usize>(files: [(&str, Vec<u8>); N]) -> Self {
        Self::with_files(files.into_iter().map(|(path, content)| (path.to_owned(), content)).collect()).await
    }
    pub async fn with_files(files: Vec<(String, Vec<u8>)>) -> Self {
        // In the program, the command line installs the provider. A test has no command line.
        let _result = rustls::crypto::ring::default_provider().install_default();
        let files = files.into_iter().map(|(path, content)| (path, content.into())).collect();
        let shared = Arc::new(Shared { files, ..Shared::default() });
        let base = serve(Router::new().fallback(serve_file).with_state(shared.clone())).await;
        Self { base, shared }
    }
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
    pub fn requests(&self) -> Vec<(String, Option<String>)> {
        self.shared.requests.lock().unwrap().clone()
    }
    /// Makes the next response end after `bytes` bytes.
    pub fn break_after(&self, bytes: usize) {
        *self.shared.break_after.lock().unwrap() = Some(bytes);
    }
    /// Makes the server respond with 200 and the whole file, even to range requests.
    pub fn ignore_ranges(&self) {
        *self.shared.ignore_ranges.lock().unwrap() = true;
    }
}

async fn serve_file(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Response<Body> {
    let range = headers.get(header::RANGE).map(|range| range.to_str().unwrap().to_owned());
    shared.requests.lock().unwrap().push((uri.path().to_owned(), range.clone()));
    let Some(content) = shared.files.get(uri.path()).cloned() else {
        return Response::builder().status(StatusCode::NOT_FOUND).body(Body::empty()).unwrap();
    };
    let offset = range.filter(|_| !*shared.ignore_ranges.lock().unwrap()).map(|range| {
        range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse::<usize>().unwrap()
    });
    let (mut response, rest) = match offset {
        Some(offset) if offset >= content.len() => {
            return Response::builder()
                .status(StatusCode::RANGE_NOT_SATISFIABLE)
                .body(Body::empty())
                .unwrap();
        }
        Some(offset) => {
            let range = format!("bytes {offset}-{}/{}", content.len() - 1, content.len());
            let builder = Response::builder().status(StatusCode::PARTIAL_CONTENT);
            (builder.header(header::CONTENT_RANGE, range), content.slice(offset..))
        }
        None => (Response::builder(), content),
    };
    response = response.header(header::CONTENT_LENGTH, rest.len());
    if let Some(kind) = content_type(uri.path()) {
        response = response.header(header::CONTENT_TYPE, kind);
    }
    let body = match shared.break_after.lock().unwrap().take() {
        Some(bytes) => {
            let broken_body = [Ok(rest.slice(..bytes)), Err(io::Error::other("broken on purpose"))];
            Body::from_stream(stream::iter(broken_body))
        }
        None => Body::from(rest),
    };
    response.body(body).unwrap()
}

/// Returns the content type for the file types of web sites. Model files have no content type.
fn content_type(path: &str) -> Option<&'static str> {
    match path.rsplit_once('.').map_or(path, |(_, extension)| extension) {
        "html" => Some("text/html; charset=utf-8"),
        "jpg" => Some("image/jpeg"),
        "txt" => Some("text/plain"),
        _ if path.ends_with('/') => Some("text/html; charset=utf-8"),
        _ => None,
    }
}

/// Returns routes with slow, endless and very large bodies, and a page with the gzip body `bomb`.
pub fn hostile_routes(bomb: Vec<u8>) -> Router {
    let html_headers = || [(header::CONTENT_TYPE, "text/html")];
    let gzip_headers = || [(header::CONTENT_TYPE, "text/html"), (header::CONTENT_ENCODING, "gzip")];
    Router::new()
        .route("/huge", get(async move || (html_headers(), huge_body())))
        .route("/drip", get(async move || (html_headers(), slow_body())))
        .route("/bomb", get(async move || (gzip_headers(), bomb)))
        .route("/huge.jpg", get(async || huge_body()))
        .route("/drip.jpg", get(async || slow_body()))
        .route("/vast.png", get(async || vast_png()))
}

pub fn gzip(data: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(data).unwrap();
    out.finish().unwrap()
}

/// Returns an endless body of single bytes with pauses.
pub fn slow_body() -> Body {
    let interval = tokio::time::interval(Duration::from_millis(300));
    Body::from_stream(stream::unfold(interval, async |mut interval| {
        interval.tick().await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b"<")), interval))
    }))
}

/// Returns a body of ten gigabytes, generated as it is read.
pub fn huge_body() -> Body {
    let chunk = Bytes::from_static(&[b'a'; 1 << 16]);
    Body::from_stream(stream::repeat(chunk).take(160 << 10).map(Ok::<_, Infallible>))
}

/// Returns the header of a PNG of 900 megapixels.
pub fn vast_png() -> Vec<u8> {
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    png.extend([30_000_u32.to_be_bytes(), 30_000_u32.to_be_bytes()].concat());
    png.extend(b"\x08\x02\0\0\0\0\0\0\0");
    png
}
