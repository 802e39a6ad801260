//! A site on a loopback port that answers what it was told, and remembers what it was asked.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// One permit is taken for every answer; without permits the client waits.
    gate: Option<Arc<Semaphore>>,
}

impl Answer {
    pub(crate) fn new(content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            headers: vec![("content-type".into(), content_type.into())],
            body: body.into(),
            gate: None,
        }
    }

    pub(crate) fn html(body: &str) -> Self {
        Self::new("text/html; charset=utf-8", format!("<!doctype html><html><body>{body}</body></html>"))
    }

    pub(crate) fn jpeg(body: impl Into<Vec<u8>>) -> Self {
        Self::new("image/jpeg", body)
    }

    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), gate: None }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With a validator; a request that names it is answered 304.
    pub(crate) fn etag(self, tag: &str) -> Self {
        self.header("etag", tag)
    }

    /// The same by date.
    pub(crate) fn modified(self, date: &str) -> Self {
        self.header("last-modified", date)
    }

    fn holds_for(&self, request: &Request) -> bool {
        [("etag", "if-none-match"), ("last-modified", "if-modified-since")].iter().any(|(ours, theirs)| {
            let own = self.headers.iter().find(|(name, _)| name == ours).map(|(_, value)| value.as_bytes());
            own.is_some() && own == request.headers().get(*theirs).map(HeaderValue::as_bytes)
        })
    }

    pub(crate) fn gated(mut self, gate: &Arc<Semaphore>) -> Self {
        self.gate = Some(gate.clone());
        self
    }
}

#[derive(Clone, Default)]
struct Shared {
    /// Answers in turn; the last one stays.
    answers: Arc<Mutex<HashMap<String, Vec<Answer>>>>,
    requests: Arc<Mutex<Vec<String>>>,
    /// Paths answered 304.
    unchanged: Arc<Mutex<Vec<String>>>,
    /// Bytes of bodies sent.
    sent: Arc<AtomicUsize>,
    /// For paths that nothing was said about; without it, 404.
    default: Arc<Mutex<Option<Answer>>>,
}

/// The running site.
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
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { origin, shared, server }
    }

    /// Answers `path` so from now on.
    pub(crate) fn set(&self, path: &str, answer: Answer) -> &Self {
        self.set_series(path, vec![answer])
    }

    /// Answers `path` with each in turn, and then with the last for ever.
    pub(crate) fn set_series(&self, path: &str, answers: Vec<Answer>) -> &Self {
        self.shared.answers.lock().unwrap().insert(path.into(), answers);
        self
    }

    /// Answers so to everything that nothing was said about, robots.txt excepted.
    pub(crate) fn set_default(&self, answer: Answer) -> &Self {
        *self.shared.default.lock().unwrap() = Some(answer);
        self
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    /// Paths asked for so far, in order.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Paths answered 304 so far, sorted, and bytes of all bodies; both begin anew.
    pub(crate) fn take_answers(&self) -> (Vec<String>, usize) {
        let mut unchanged = std::mem::take(&mut *self.shared.unchanged.lock().unwrap());
        unchanged.sort();
        (unchanged, self.shared.sent.swap(0, Ordering::SeqCst))
    }

    pub(crate) fn asked(&self, path: &str) -> usize {
        self.requests().iter().filter(|asked| *asked == path).count()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let path = request.uri().path_and_query().unwrap().as_str().to_owned();
    shared.requests.lock().unwrap().push(path.clone());
    let answer = {
        let mut answers = shared.answers.lock().unwrap();
        match answers.get_mut(&path) {
            Some(series) if series.len() > 1 => series.remove(0),
            Some(series) => series[0].clone(),
            None if path == "/robots.txt" => Answer::status(404),
            None => shared.default.lock().unwrap().clone().unwrap_or_else(|| Answer::status(404)),
        }
    };
    if let Some(gate) = &answer.gate {
        gate.acquire().await.unwrap().forget();
    }
    if answer.holds_for(&request) {
        shared.unchanged.lock().unwrap().push(path);
        return Response::builder().status(StatusCode::NOT_MODIFIED).body(Body::empty()).unwrap();
    }
    shared.sent.fetch_add(answer.body.len(), Ordering::SeqCst);
    let mut response = Response::builder().status(StatusCode::from_u16(answer.status).unwrap());
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    response.body(Body::from(answer.body)).unwrap()
}
