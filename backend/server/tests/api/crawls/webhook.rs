//! Tests the field `webhook` of `POST /crawls`. A receiver on the loopback interface receives
//! signed messages.
use crate::support::site::Site;
use crate::support::{App, Options, field, json_of, ok, problem};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode as Status, Uri};
use axum::response::{IntoResponse, Response};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::mpsc;

pub(super) const SECRET: &str = "correct horse battery staple";

pub(super) struct Message {
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Message {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Checks the message as a receiver does. One of its signatures must be valid.
    pub(super) fn is_signed_with(&self, secret: &str) -> bool {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(self.header("x-facecrawl-timestamp").as_bytes());
        mac.update(b".");
        mac.update(&self.body);
        self.header("x-facecrawl-signature").split(',').any(|claimed| {
            let digits = claimed.strip_prefix("sha256=").unwrap();
            mac.clone().verify_slice(&hex::decode(digits).unwrap()).is_ok()
        })
    }
}

/// Receives messages. Returns 503 for the first request to `/busy`, a redirect for `/moved`, 410
/// for `/gone`, and 204 for all other requests.
pub(super) struct Receiver {
    pub(super) url: String,
    messages: mpsc::UnboundedReceiver<Message>,
}

async fn take(
    State(sender): State<mpsc::UnboundedSender<Message>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path().to_owned();
    sender.send(Message { path: path.clone(), headers, body }).unwrap();
    static BUSY: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(true);
    match path.as_str() {
        "/busy" if BUSY.swap(false, std::sync::atomic::Ordering::SeqCst) => {
            Status::SERVICE_UNAVAILABLE.into_response()
        }
        "/moved" => (Status::TEMPORARY_REDIRECT, [("location", "/elsewhere")]).into_response(),
        "/gone" => Status::GONE.into_response(),
        _ => Status::NO_CONTENT.into_response(),
    }
}

impl Receiver {
    pub(super) async fn start() -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(take).with_state(sender);
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, messages }
    }

    pub(super) async fn next(&mut self) -> Message {
        let wait = tokio::time::timeout(testing::MAX_WAIT, self.messages.recv());
        wait.await.expect("no message arrived").unwrap()
    }
}

async fn app() -> App {
    App::spawn_with(Options { webhook_secret: Some(SECRET), ..Options::default() }).await
}

async fn create(app: &App, seed: String, webhook: String) -> String {
    let body = json!({"seeds": [seed], "delay_ms": 0, "webhook": webhook});
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    created["id"].as_str().unwrap().to_owned()
}

#[testing::test]
async fn the_end_of_a_crawl_is_told_signed_until_it_is_taken() {
    let app = app().await;
    let (site, mut receiver) = (Site::with(&["ada_small.jpg"]).await, Receiver::start().await);
    let id = create(&app, site.page(), format!("{}/busy", receiver.url)).await;
    let (first, second) = (receiver.next().await, receiver.next().await);
    for message in [&first, &second] {
        assert_eq!(message.header("x-facecrawl-event"), "crawl.completed");
        assert_eq!(message.header("content-type"), "application/json");
        assert!(message.is_signed_with(SECRET));
        assert!(!message.is_signed_with("another secret of some length"));
    }
    assert_eq!(first.body, second.body);
    assert_eq!(first.header("x-facecrawl-delivery"), second.header("x-facecrawl-delivery"));

    let payload = second.json();
    assert_eq!(
        (&payload["event"], payload["delivery"].as_str()),
        (&json!("crawl.completed"), Some(second.header("x-facecrawl-delivery")))
    );
    let mut crawl = app.get_ok(&format!("/crawls/{id}")).await;
    assert_eq!((&crawl["id"], &crawl["counts"]["images"]["processed"]), (&json!(id), &json!(1)));
    for left_out in ["seeds", "seed_count", "options"] {
        crawl.as_object_mut().unwrap().remove(left_out);
    }
    assert_eq!(payload["crawl"], crawl, "the crawl as the API shows it");
}

#[testing::test]
async fn a_cancelled_and_a_failed_crawl_are_told_too() {
    let app = app().await;
    let (site, mut receiver) = (Site::with(&[]).await, Receiver::start().await);
    let id = create(&app, format!("{}/held.jpg", site.url), receiver.url.clone()).await;
    site.asked.notified().await;
    ok(app.post_json(&format!("/crawls/{id}/cancel"), &json!({})).await).await;
    let payload = receiver.next().await.json();
    assert_eq!((&payload["event"], &payload["crawl"]["id"]), (&json!("crawl.cancelled"), &json!(id)));

    let id = create(&app, format!("{}/text.jpg", site.url), receiver.url.clone()).await;
    let payload = receiver.next().await.json();
    assert_eq!((&payload["event"], &payload["crawl"]["id"]), (&json!("crawl.failed"), &json!(id)));
}

#[testing::test]
async fn redirects_are_not_followed_and_gone_is_gone() {
    let app = app().await;
    let (site, mut receiver) = (Site::with(&[]).await, Receiver::start().await);
    let missing = format!("{}/nowhere.jpg", site.url);
    create(&app, missing.clone(), format!("{}/moved", receiver.url)).await;
    for _ in 0..3 {
        assert_eq!(receiver.next().await.path, "/moved", "/elsewhere must not be requested");
    }
    create(&app, missing, format!("{}/gone", receiver.url)).await;
    while receiver.next().await.path != "/gone" {}
    let given_up = |jobs: &Value| {
        let jobs = jobs["jobs"].as_array().unwrap();
        jobs.iter().any(|job| job["last_error"].as_str().is_some_and(|error| error.contains("410")))
    };
    let jobs = app.until("/jobs?kind=deliver_webhook&state=discarded", given_up).await;
    assert!(!jobs.to_string().contains(&receiver.url), "the URL may hold a secret: {jobs}");
}

#[testing::test]
async fn a_webhook_needs_a_secret_and_an_address_that_is_open() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let create = async |app: &App, webhook: &str| {
        app.post_json("/crawls", &json!({"seeds": ["http://127.0.0.1:9/"], "webhook": webhook})).await
    };
    let wrong = problem(create(&app, "http://127.0.0.1:9/hook").await, 422, "invalid_field").await;
    assert_eq!(field(&wrong), "webhook");
    assert!(wrong["detail"].as_str().unwrap().contains("WEBHOOK_SECRET"), "{wrong}");
    for webhook in
        ["http://169.254.169.254/latest", "http://10.0.0.1/hook", "http://user:password@127.0.0.1/hook"]
    {
        let wrong = problem(create(&app, webhook).await, 422, "forbidden_url").await;
        assert_eq!(field(&wrong), "webhook");
        assert!(!wrong.to_string().contains("password@"), "{wrong}");
    }
    for webhook in ["hook", "ftp://127.0.0.1/hook"] {
        let wrong = problem(create(&app, webhook).await, 422, "invalid_field").await;
        assert_eq!(field(&wrong), "webhook");
    }
}
