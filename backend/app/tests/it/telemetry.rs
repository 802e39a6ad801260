//! Tests the service's log lines with their ids, and its traces for a collector.
#![cfg(unix)]

use crate::common::process::{Finished, TestFolder};
use crate::common::service::{Service, client};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Html;
use axum::routing::get as route;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testing::{MAX_WAIT, TestDatabase};

/// Serves a page with one image.
async fn site(picture: Vec<u8>) -> String {
    let router = Router::new()
        .route("/", route(|| async { Html("<img src=/ada.jpg>") }))
        .route("/ada.jpg", route(|| async move { picture.clone() }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

async fn crawl(base: &str, seed: &str) {
    let body = json!({"seeds": [seed], "delay_ms": 0});
    let created: Value =
        client().post(format!("{base}/crawls")).json(&body).send().await.unwrap().json().await.unwrap();
    let url = format!("{base}/crawls/{}", created["id"].as_str().unwrap());
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let crawl: Value = client().get(&url).send().await.unwrap().json().await.unwrap();
        if crawl["state"] == "completed" {
            assert_eq!(crawl["counts"]["images"]["processed"], 1, "{crawl:#}");
            return;
        }
        assert!(Instant::now() < deadline, "{crawl:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the fields of the spans around a line, outermost first.
fn spans(line: &Value) -> Vec<&Value> {
    line["spans"].as_array().into_iter().flatten().collect()
}

#[testing::test(flavor = "multi_thread")]
async fn json_lines_of_requests_and_jobs_carry_their_ids() {
    let ada = testing::picture("ada.jpg");
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    let mut command = place.facecrawl(&["up", "--port", "0", "--log-format", "json"]);
    command
        .env("DATABASE_URL", database.url())
        .env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8")
        .env("LOG_LEVEL", "info,server=debug,pipeline=debug");
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let stderr = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    // A thread reads the log, because a full pipe would block the service.
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || stderr.map_while(Result::ok).for_each(|line| drop(sender.send(line))));
    let mut log: Vec<Value> = Vec::new();
    let base = loop {
        // Every line is one JSON object, including the first.
        let line = lines.recv_timeout(MAX_WAIT).expect("the service logs that it is ready");
        log.push(serde_json::from_str(&line).unwrap());
        let last = log.last().unwrap();
        if last["message"] == "ready" {
            break format!("http://{}", last["address"].as_str().unwrap());
        }
    };
    let detect = client().post(format!("{base}/faces/detect")).header("x-request-id", "from-the-caller");
    let answer = detect.header("content-type", "image/jpeg").body(ada.clone()).send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "from-the-caller");
    crawl(&base, &site(ada).await).await;
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    log.extend(lines.iter().map(|line| serde_json::from_str::<Value>(&line).expect("JSON")));
    assert!(child.wait().unwrap().success());

    let with =
        |message: &str| -> Vec<&Value> { log.iter().filter(|line| line["message"] == message).collect() };
    let answered = with("request completed");
    assert!(answered.len() > 2, "{log:#?}");
    for line in &answered {
        let request = spans(line)
            .iter()
            .any(|span| span["name"] == "http" && !span["request_id"].as_str().unwrap().is_empty());
        assert!(request, "{line:#}");
    }
    assert!(answered.iter().any(|line| line["span"]["request_id"] == "from-the-caller"), "{answered:#?}");
    // These are all lines between the claim of a job and the end of that job.
    let of_jobs: Vec<&Value> = log
        .iter()
        .filter(|line| line["target"].as_str().is_some_and(|target| target.starts_with("pipeline::worker")))
        .collect();
    assert!(with("page read").len() == 1 && with("image done").len() == 1, "{log:#?}");
    for line in of_jobs {
        let job = spans(line)
            .iter()
            .any(|span| span["name"] == "job" && span["job_id"].is_string() && span["kind"].is_string());
        assert!(job, "{line:#}");
    }
    for line in &log {
        assert!(
            line["timestamp"].is_string() && line["level"].is_string() && line["target"].is_string(),
            "{line:#}"
        );
    }
}

/// The requests to a collector: path, headers, body.
type Sent = Arc<Mutex<Vec<(String, HeaderMap, Bytes)>>>;

async fn collector() -> (String, Sent) {
    let sent = Sent::default();
    let take = |State(sent): State<Sent>, uri: Uri, headers: HeaderMap, body: Bytes| async move {
        sent.lock().unwrap().push((uri.path().to_owned(), headers, body));
    };
    let router = Router::new().fallback(take).with_state(sent.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, sent)
}

#[testing::test(flavor = "multi_thread")]
async fn a_collector_gets_the_spans_of_requests_and_jobs_and_none_of_the_log() {
    let ada = testing::picture("ada.jpg");
    let database = TestDatabase::create().await;
    let (endpoint, sent) = collector().await;
    let place = TestFolder::new();
    let mut command = place.facecrawl(&["up", "--port", "0"]);
    command
        .env("DATABASE_URL", database.url())
        .env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=archive")
        .env("OTEL_SERVICE_NAME", "faces-of-the-archive");
    let mut service = Service::start(&mut command);
    let detect = client().post(format!("{}/faces/detect", service.base)).header("x-request-id", "followed");
    detect.header("content-type", "image/jpeg").body(ada.clone()).send().await.unwrap();
    crawl(&service.base, &site(ada).await).await;
    service.signal(Signal::TERM);
    let (status, log) = tokio::task::spawn_blocking(move || service.ended()).await.unwrap();
    assert_eq!(status, Some(0), "{log}");

    let sent = sent.lock().unwrap();
    assert!(!sent.is_empty(), "{log}");
    for (path, headers, _) in sent.iter() {
        assert_eq!(path, "/v1/traces");
        assert_eq!(headers["content-type"], "application/x-protobuf");
        assert_eq!(headers["x-team"], "archive");
    }
    // Protobuf encodes strings as plain bytes.
    let bodies: Vec<u8> = sent.iter().flat_map(|(_, _, body)| body.iter().copied()).collect();
    let has = |text: &str| testing::holds(&bodies, text.as_bytes());
    for text in [
        "faces-of-the-archive",
        "followed",
        "/faces/detect",
        "scan_page",
        "scan_image",
        "analyze",
        "detect",
        "embed",
    ] {
        assert!(has(text), "{text} was not sent");
    }
    assert!(!has("request completed") && !has("ada.jpg"), "log lines and their details are not exported");
}

#[testing::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_there_changes_nothing_but_a_warning() {
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    let mut command = place.facecrawl(&["serve", "--port", "0"]);
    command.env("DATABASE_URL", database.url()).env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    let mut service = Service::start(&mut command);
    assert_eq!(crate::common::service::get(&format!("{}/health/ready", service.base)).await.0, 200);
    service.signal(Signal::TERM);
    let (status, log) = tokio::task::spawn_blocking(move || service.ended()).await.unwrap();
    assert_eq!(status, Some(0), "{log}");
}

#[test]
fn a_protocol_that_is_not_built_in_is_wrong_configuration() {
    let place = TestFolder::new();
    let mut command = place.facecrawl(&["serve"]);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let said = Finished::of(&mut command).expect(2).stderr;
    assert!(said.contains("OTEL_EXPORTER_OTLP_PROTOCOL") && said.contains("http/protobuf"), "{said}");
}

#[testing::test(flavor = "multi_thread")]
async fn a_worker_shows_health_and_metrics_on_a_port_of_its_own() {
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    // The port was free when it was selected. If it is now in use, the worker reports that
    // immediately.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut command = place.facecrawl(&["worker", "-s"]);
    let mut service =
        Service::start(command.arg(format!("WORKER_PORT={port}")).env("DATABASE_URL", database.url()));
    assert_eq!(service.base, format!("http://127.0.0.1:{port}"));
    place.run(&["health", "--timeout", "60", "--url", &service.base]).expect(0);
    let (status, metrics) = crate::common::service::get(&format!("{}/metrics", service.base)).await;
    assert!(status == 200 && metrics.contains("facecrawl_queue_oldest_due_seconds"), "{metrics}");
    let (status, body) = crate::common::service::get(&format!("{}/faces", service.base)).await;
    assert!(status == 404 && body.contains("/health/ready"), "a worker is no API: {body}");
    service.signal(Signal::TERM);
    assert_eq!(service.ended().0, Some(0));
}
