//! Runs a web server with files in memory. Tests can make it return faulty responses.
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode, Uri, header};
use futures::stream;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

/// Returns the sha256 in hex.
pub fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
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
        Self::with(files.into_iter().map(|(path, content)| (path.to_owned(), content)).collect()).await
    }
    pub async fn with(files: Vec<(String, Vec<u8>)>) -> Self {
        // In the program, the command line installs the provider. A test has no command line.
        let _already = rustls::crypto::ring::default_provider().install_default();
        let files = files.into_iter().map(|(path, content)| (path, content.into())).collect();
        let shared = Arc::new(Shared { files, ..Shared::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(shared.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
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

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Response<Body> {
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
            let torn = [Ok(rest.slice(..bytes)), Err(io::Error::other("torn on purpose"))];
            Body::from_stream(stream::iter(torn))
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
