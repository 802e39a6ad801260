//! A test site on a loopback port, which returns the configured responses and records the requests.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response as HttpResponse;
use futures::stream::{self, Stream, StreamExt};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

#[derive(Clone, Debug)]
pub(crate) struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Each response consumes one permit. While there are no permits, the client waits.
    gate: Option<Arc<Semaphore>>,
    /// Whether the connection is closed after the body, without the end of the response.
    closes_early: bool,
}

impl Response {
    pub(crate) fn new(content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            headers: vec![("content-type".into(), content_type.into())],
            body: body.into(),
            gate: None,
            closes_early: false,
        }
    }

    pub(crate) fn html(body: &str) -> Self {
        Self::new("text/html; charset=utf-8", format!("<!doctype html><html><body>{body}</body></html>"))
    }

    pub(crate) fn jpeg(body: impl Into<Vec<u8>>) -> Self {
        Self::new("image/jpeg", body)
    }

    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), gate: None, closes_early: false }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds an entity tag. A request with this tag in `If-None-Match` receives 304.
    pub(crate) fn etag(self, tag: &str) -> Self {
        self.header("etag", tag)
    }

    /// Adds a modification date. A request with this date in `If-Modified-Since` receives 304.
    pub(crate) fn modified(self, date: &str) -> Self {
        self.header("last-modified", date)
    }

    /// Closes the connection after the body, without the end of the response.
    pub(crate) fn closing_early(mut self) -> Self {
        self.closes_early = true;
        self
    }

    fn is_current_for(&self, request: &Request) -> bool {
        [("etag", "if-none-match"), ("last-modified", "if-modified-since")].iter().any(
            |(response_header, request_header)| {
                let value = self
                    .headers
                    .iter()
                    .find(|(name, _)| name == response_header)
                    .map(|(_, value)| value.as_bytes());
                value.is_some() && value == request.headers().get(*request_header).map(HeaderValue::as_bytes)
            },
        )
    }

    pub(crate) fn gated(mut self, gate: &Arc<Semaphore>) -> Self {
        self.gate = Some(gate.clone());
        self
    }
}

#[derive(Clone, Default)]
struct Shared {
    /// Responses by path, in order; the last one is repeated.
    responses: Arc<Mutex<HashMap<String, Vec<Response>>>>,
    requests: Arc<Mutex<Vec<String>>>,
    /// The header `Referer` of the last request, by path.
    referers: Arc<Mutex<HashMap<String, Option<String>>>>,
    /// Paths of the requests that received 304.
    unchanged: Arc<Mutex<Vec<String>>>,
    /// Number of body bytes sent.
    sent: Arc<AtomicUsize>,
    /// The response for paths without a configured response; `None` means 404.
    default: Arc<Mutex<Option<Response>>>,
}

pub(crate) struct Site {
    origin: String,
    shared: Shared,
    server: tokio::task::JoinHandle<()>,
}

impl Site {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let shared = Shared::default();
        let router = Router::new().fallback(respond).with_state(shared.clone());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { origin, shared, server }
    }

    pub(crate) fn set(&self, path: &str, response: Response) -> &Self {
        self.set_series(path, vec![response])
    }

    /// Sets a sequence of responses for `path`. The last one is repeated.
    pub(crate) fn set_series(&self, path: &str, responses: Vec<Response>) -> &Self {
        self.shared.responses.lock().unwrap().insert(path.into(), responses);
        self
    }

    /// Sets the response for paths without a configured response, except robots.txt.
    pub(crate) fn set_fallback(&self, response: Response) -> &Self {
        *self.shared.default.lock().unwrap() = Some(response);
        self
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    /// Returns the paths of all requests so far, in order.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Returns the header `Referer` of the last request for `path`.
    pub(crate) fn referer(&self, path: &str) -> Option<String> {
        self.shared.referers.lock().unwrap()[path].clone()
    }

    /// Returns the sorted paths that received 304 and the number of body bytes sent. Resets both.
    pub(crate) fn take_stats(&self) -> (Vec<String>, usize) {
        let mut unchanged = std::mem::take(&mut *self.shared.unchanged.lock().unwrap());
        unchanged.sort();
        (unchanged, self.shared.sent.swap(0, Ordering::SeqCst))
    }

    pub(crate) fn count_requests(&self, path: &str) -> usize {
        self.requests().iter().filter(|requested| *requested == path).count()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn respond(State(shared): State<Shared>, request: Request) -> HttpResponse {
    let path = request.uri().path_and_query().unwrap().as_str().to_owned();
    shared.requests.lock().unwrap().push(path.clone());
    let referer = request.headers().get("referer").map(|value| value.to_str().unwrap().to_owned());
    shared.referers.lock().unwrap().insert(path.clone(), referer);
    let configured = {
        let mut responses = shared.responses.lock().unwrap();
        match responses.get_mut(&path) {
            Some(series) if series.len() > 1 => series.remove(0),
            Some(series) => series[0].clone(),
            None if path == "/robots.txt" => Response::status(404),
            None => shared.default.lock().unwrap().clone().unwrap_or_else(|| Response::status(404)),
        }
    };
    if let Some(gate) = &configured.gate {
        gate.acquire().await.unwrap().forget();
    }
    if configured.is_current_for(&request) {
        shared.unchanged.lock().unwrap().push(path);
        let mut response = HttpResponse::builder().status(StatusCode::NOT_MODIFIED);
        for (name, value) in configured.headers.iter().filter(|(name, _)| name != "content-type") {
            response = response.header(name, value);
        }
        return response.body(Body::empty()).unwrap();
    }
    shared.sent.fetch_add(configured.body.len(), Ordering::SeqCst);
    let mut response = HttpResponse::builder().status(StatusCode::from_u16(configured.status).unwrap());
    for (name, value) in &configured.headers {
        response = response.header(name, value);
    }
    let body = match configured.closes_early {
        false => Body::from(configured.body),
        true => Body::from_stream(failing_body(configured.body)),
    };
    response.body(body).unwrap()
}

/// Returns a body that fails after its bytes.
fn failing_body(bytes: Vec<u8>) -> impl Stream<Item = io::Result<Vec<u8>>> {
    let end = async {
        // Lets the server send the bytes before the error closes the connection.
        tokio::task::yield_now().await;
        Err(io::Error::other("the connection is closed before the end of the response"))
    };
    stream::iter([Ok(bytes)]).chain(stream::once(end))
}
