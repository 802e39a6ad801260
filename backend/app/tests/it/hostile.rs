//! Tests the crawl of a hostile site. The crawl must end within its limits and record reasons, and
//! the service's memory usage must remain small.
#![cfg(target_os = "linux")]

use crate::common::hostile::{drip, gzip, huge, vast};
use crate::common::process::TestFolder;
use crate::common::service::{Service, get};
use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Redirect};
use axum::routing::get as route;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use testing::{MAX_WAIT, TestDatabase};

const MAX_PAGES: i64 = 60;
/// Maximum growth of the service's peak memory, with models, in an unoptimised build.
const MAX_GROWTH: u64 = 200 << 20;

const INDEX: &str = "<a href=/loop/a>1</a> <a href=/huge>2</a> <a href=/drip>3</a> <a href=/bomb>4</a> <a href=/many>5</a>
    <a href=/calendar/0>6</a> <a href=/announced>7</a> <a href=/map.xml>8</a> <img src=/good.jpg> <img src=/huge.jpg> <img src=/drip.jpg> <img src=/vast.png>";

/// Returns a gigabyte compressed to a few megabytes.
fn bomb() -> Vec<u8> {
    gzip(&vec![b' '; 8 << 20]).repeat(128)
}

fn html(body: impl Into<Body>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/html")], body.into())
}

async fn site(good: Vec<u8>) -> String {
    let many: String = (0..100_000).map(|i| format!("<a href=/p/{i}>x</a>")).collect();
    // A sitemap that decompresses to more than the protocol allows.
    let map = [gzip(b"<urlset><url><loc>/from-map</loc></url>"), bomb()].concat();
    let packed = bomb();
    let router = Router::new()
        .route("/", route(|| async { Html(INDEX) }))
        .route("/loop/a", route(|| async { Redirect::to("/loop/b") }))
        .route("/loop/b", route(|| async { Redirect::to("/loop/a") }))
        .route("/huge", route(|| async { html(huge()) }))
        .route(
            "/announced",
            route(|| async {
                ([(CONTENT_TYPE, "text/html"), ("content-length".parse().unwrap(), "10737418240")], huge())
            }),
        )
        .route("/drip", route(|| async { html(drip()) }))
        .route(
            "/bomb",
            route(|| async move { ([(CONTENT_TYPE, "text/html"), (CONTENT_ENCODING, "gzip")], packed) }),
        )
        .route("/map.xml", route(|| async move { ([(CONTENT_TYPE, "application/xml")], map) }))
        .route("/many", route(|| async move { Html(many) }))
        .route(
            "/calendar/{month}",
            route(|Path(month): Path<u64>| async move {
                Html(format!("<a href=/calendar/{}>next</a>", month + 1))
            }),
        )
        .route("/good.jpg", route(|| async move { good }))
        .route("/huge.jpg", route(|| async { huge() }))
        .route("/drip.jpg", route(|| async { drip() }))
        .route("/vast.png", route(|| async { vast() }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

/// Returns the peak of the process's memory in bytes.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn a_hostile_site_ends_within_the_limits() {
    let good = testing::picture("ada.jpg");
    let seed = site(good).await;
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    let mut command = place.facecrawl(&["up", "--port", "0"]);
    command.env("DATABASE_URL", database.url());
    command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("CRAWL_DELAY_MS", "0");
    let service = Service::start(&mut command);
    assert_eq!(get(&format!("{}/health/live", service.base)).await.0, 200);
    // This is the memory for the models, including the memory used to load them.
    let before = peak(service.child.id());
    let created = reqwest::Client::builder()
        .no_proxy()
        .build()
        .unwrap()
        .post(format!("{}/crawls", service.base))
        .json(&json!({ "seeds": [seed], "max_pages": MAX_PAGES, "max_depth": 50, "delay_ms": 0 }))
        .send()
        .await
        .unwrap();
    let created: Value = created.json().await.unwrap();
    let url = format!("{}/crawls/{}", service.base, created["id"].as_str().unwrap());

    let deadline = Instant::now() + MAX_WAIT;
    let answer = loop {
        let answer: Value = serde_json::from_str(&get(&url).await.1).unwrap();
        if answer["state"] != "running" {
            break answer;
        }
        assert!(Instant::now() < deadline, "{answer:#}");
        // Timed-out pages are retried. The test does not wait for the scheduled time.
        database.execute("update jobs set scheduled_at = now() where state = 'retryable'").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(answer["state"], "completed", "{answer:#}");
    let count = |ledger: &str, state: &str| answer["counts"][ledger][state].as_i64().unwrap();
    let pages: i64 = ["fetched", "skipped", "failed"].iter().map(|state| count("pages", state)).sum();
    assert_eq!((pages, count("pages", "queued")), (MAX_PAGES, 0), "{answer:#}");
    assert_eq!(
        (count("images", "processed"), answer["counts"]["faces"].as_i64()),
        (1, Some(1)),
        "{answer:#}"
    );
    let reasons = &answer["reasons"];
    // These are the pages `huge`, `announced` and `bomb`, and the image `huge`.
    assert_eq!(reasons["too_many_bytes"], 4, "{answer:#}");
    assert_eq!(reasons["too_many_redirects"], 1, "{answer:#}");
    assert_eq!(reasons["timeout"], 2, "{answer:#}");
    assert_eq!(count("images", "skipped"), 2, "the huge and the vast image: {answer:#}");
    assert_eq!(count("images", "failed"), 1, "the slow image: {answer:#}");
    let peak = peak(service.child.id());
    println!("peak resident memory: {} MiB before, {} MiB after", before >> 20, peak >> 20);
    assert!(peak < before + MAX_GROWTH, "{} MiB before, {} MiB after", before >> 20, peak >> 20);
}
