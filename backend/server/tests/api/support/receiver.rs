//! Receives the signed messages of webhooks.
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode as Status, Uri};
use axum::response::{IntoResponse, Response};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use tokio::sync::mpsc;

pub(crate) const SECRET: &str = "correct horse battery staple";

pub(crate) struct Message {
    pub(crate) path: String,
    headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Message {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Checks the message as a receiver does. One of its signatures must be valid.
    pub(crate) fn is_signed_with(&self, secret: &str) -> bool {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(self.header("x-facecrawl-timestamp").as_bytes());
        mac.update(b".");
        mac.update(&self.body);
        self.header("x-facecrawl-signature").split(',').any(|signature| {
            let digits = signature.strip_prefix("sha256=").unwrap();
            mac.clone().verify_slice(&hex::decode(digits).unwrap()).is_ok()
        })
    }
}

/// Receives messages. Returns 503 for the first request to `/busy`, a redirect for `/moved`, 410
/// for `/gone`, and 204 for all other requests. Never responds to requests to `/silent`, and
/// returns 500 for requests to `/broken` until it is repaired.
pub(crate) struct Receiver {
    pub(crate) url: String,
    messages: mpsc::UnboundedReceiver<Message>,
    is_repaired: Arc<AtomicBool>,
}

#[derive(Clone)]
struct Shared {
    sender: mpsc::UnboundedSender<Message>,
    is_repaired: Arc<AtomicBool>,
}

async fn receive(
    State(Shared { sender, is_repaired }): State<Shared>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path().to_owned();
    sender.send(Message { path: path.clone(), headers, body }).unwrap();
    static BUSY: AtomicBool = AtomicBool::new(true);
    match path.as_str() {
        "/busy" if BUSY.swap(false, SeqCst) => Status::SERVICE_UNAVAILABLE.into_response(),
        "/moved" => (Status::TEMPORARY_REDIRECT, [("location", "/elsewhere")]).into_response(),
        "/gone" => Status::GONE.into_response(),
        "/silent" => std::future::pending().await,
        "/broken" if !is_repaired.load(SeqCst) => Status::INTERNAL_SERVER_ERROR.into_response(),
        _ => Status::NO_CONTENT.into_response(),
    }
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let is_repaired = Arc::new(AtomicBool::new(false));
        let shared = Shared { sender, is_repaired: is_repaired.clone() };
        let router = Router::new().fallback(receive).with_state(shared);
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, messages, is_repaired }
    }

    pub(crate) async fn next(&mut self) -> Message {
        let wait = tokio::time::timeout(testing::MAX_WAIT, self.messages.recv());
        wait.await.expect("no message arrived").unwrap()
    }

    pub(crate) fn repair(&self) {
        self.is_repaired.store(true, SeqCst);
    }

    /// Returns whether a message has arrived that was not read.
    pub(crate) fn has_message(&self) -> bool {
        !self.messages.is_empty()
    }
}
