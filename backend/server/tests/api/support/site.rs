//! Serves web sites: a small one with images of people, and one whose responses a test sets.
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// A site on 127.0.0.1 that stops when the value is dropped.
pub(crate) struct Site {
    pub(crate) url: String,
    /// Signals that a request for `/held.jpg` arrived.
    pub(crate) request_arrived: Arc<Notify>,
    /// Lets `/held.jpg` respond.
    pub(crate) release: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Site {
    /// Starts a site. The page `/` contains these images of the gallery. The page `/held` contains
    /// `/held.jpg`, which responds only after `release` is notified.
    pub(crate) async fn new(images: &[&str]) -> Self {
        Self::with_video(images, Vec::new()).await
    }

    /// Starts a site that also serves a video at `/film.mp4`.
    pub(crate) async fn with_video(images: &[&str], file: Vec<u8>) -> Self {
        let page: String =
            images.iter().map(|name| format!("<img src='/pictures/{name}' alt='{name}'>")).collect();
        let page = format!("<!doctype html><title>Pictures</title><body>{page}</body>");
        let release = Arc::new(Notify::new());
        let request_arrived = Arc::new(Notify::new());
        let (release_signal, arrival_signal) = (release.clone(), request_arrived.clone());
        let mut router = Router::new()
            .route("/", get(move || async move { Html(page) }))
            .route("/held", get(|| async { Html("<img src='/held.jpg'>") }))
            .route(
                "/held.jpg",
                get(move || async move {
                    arrival_signal.notify_one();
                    release_signal.notified().await;
                    StatusCode::NOT_FOUND
                }),
            )
            .route(
                "/film.mp4",
                get(move || async move { ([(header::CONTENT_TYPE, "video/mp4")], file.clone()) }),
            )
            .route("/to-film", get(|| async { Redirect::temporary("/film.mp4") }))
            .route("/text", get(|| async { "not an image" }))
            .route("/broken", get(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
            .route("/to-metadata", get(|| async { Redirect::temporary("http://169.254.169.254/latest/") }));
        for name in images {
            let bytes = testing::drawing(name);
            router = router.route(
                &format!("/pictures/{name}"),
                get(move || async move {
                    ([(header::CONTENT_TYPE, "image/jpeg")], bytes.clone()).into_response()
                }),
            );
        }
        let mut site = Self::start(router).await;
        (site.request_arrived, site.release) = (request_arrived, release);
        site
    }

    pub(crate) async fn start(router: Router) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, request_arrived: Arc::default(), release: Arc::default(), task }
    }

    pub(crate) fn page(&self) -> String {
        format!("{}/", self.url)
    }

    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/pictures/{name}", self.url)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type PageResponses = Arc<Mutex<HashMap<String, PageResponse>>>;

#[derive(Clone)]
enum PageResponse {
    /// A content type, a body, and the `ETag` of the body.
    Content(&'static str, Vec<u8>, String),
    Redirect(String),
}

/// A site on 127.0.0.1 that stops when the value is dropped.
pub(crate) struct Pages {
    origin: String,
    responses: PageResponses,
    task: tokio::task::JoinHandle<()>,
}

impl Pages {
    pub(crate) async fn start() -> Self {
        let responses = PageResponses::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(respond).with_state(responses.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { origin, responses, task }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    pub(crate) fn page(&self, path: &str, title: &str, body: &str) -> &Self {
        let html = format!("<!doctype html><title>{title}</title><body>{body}</body>");
        self.content(path, "text/html", html.into_bytes())
    }

    pub(crate) fn image(&self, path: &str, jpeg: Vec<u8>) -> &Self {
        self.content(path, "image/jpeg", jpeg)
    }

    pub(crate) fn redirect(&self, path: &str, target: &str) -> &Self {
        self.set(path, PageResponse::Redirect(target.to_owned()))
    }

    fn content(&self, path: &str, kind: &'static str, body: Vec<u8>) -> &Self {
        let tag = format!("\"{}-{}\"", body.len(), path.len());
        self.set(path, PageResponse::Content(kind, body, tag))
    }

    fn set(&self, path: &str, page_response: PageResponse) -> &Self {
        self.responses.lock().unwrap().insert(path.to_owned(), page_response);
        self
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn respond(State(responses): State<PageResponses>, request: Request) -> Response {
    let page_response = responses.lock().unwrap().get(request.uri().path()).cloned();
    let response = Response::builder();
    match page_response {
        None => response.status(StatusCode::NOT_FOUND).body(Body::empty()),
        Some(PageResponse::Redirect(target)) => {
            response.status(StatusCode::FOUND).header("location", target).body(Body::empty())
        }
        Some(PageResponse::Content(kind, body, tag)) => {
            let is_same = request.headers().get("if-none-match").is_some_and(|value| value == tag.as_str());
            let (status, body) = if is_same { (304, Body::empty()) } else { (200, Body::from(body)) };
            response.status(status).header("content-type", kind).header("etag", tag).body(body)
        }
    }
    .unwrap()
}
