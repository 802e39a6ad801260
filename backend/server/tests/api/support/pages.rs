//! Serves a web site. A test sets the response of each path, with validators and redirects.
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

type Answers = Arc<Mutex<HashMap<String, Answer>>>;

#[derive(Clone)]
enum Answer {
    /// A content type, a body, and the `ETag` of the body.
    Content(&'static str, Vec<u8>, String),
    Redirect(String),
}

/// A site on 127.0.0.1 that runs as long as the value exists.
pub(crate) struct Pages {
    origin: String,
    answers: Answers,
    task: tokio::task::JoinHandle<()>,
}

impl Pages {
    pub(crate) async fn start() -> Self {
        let answers = Answers::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(answers.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { origin, answers, task }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    pub(crate) fn page(&self, path: &str, title: &str, body: &str) -> &Self {
        let html = format!("<!doctype html><title>{title}</title><body>{body}</body>");
        self.content(path, "text/html", html.into_bytes())
    }

    pub(crate) fn picture(&self, path: &str, jpeg: Vec<u8>) -> &Self {
        self.content(path, "image/jpeg", jpeg)
    }

    pub(crate) fn redirect(&self, path: &str, target: &str) -> &Self {
        self.set(path, Answer::Redirect(target.to_owned()))
    }

    fn content(&self, path: &str, kind: &'static str, body: Vec<u8>) -> &Self {
        let tag = format!("\"{}-{}\"", body.len(), path.len());
        self.set(path, Answer::Content(kind, body, tag))
    }

    fn set(&self, path: &str, answer: Answer) -> &Self {
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
        self
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(answers): State<Answers>, request: Request) -> Response {
    let answer = answers.lock().unwrap().get(request.uri().path()).cloned();
    let response = Response::builder();
    match answer {
        None => response.status(StatusCode::NOT_FOUND).body(Body::empty()),
        Some(Answer::Redirect(target)) => {
            response.status(StatusCode::FOUND).header("location", target).body(Body::empty())
        }
        Some(Answer::Content(kind, body, tag)) => {
            let same = request.headers().get("if-none-match").is_some_and(|known| known == tag.as_str());
            let (status, body) = if same { (304, Body::empty()) } else { (200, Body::from(body)) };
            response.status(status).header("content-type", kind).header("etag", tag).body(body)
        }
    }
    .unwrap()
}
