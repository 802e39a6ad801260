//! Tests event streams. All streams of a crawl share one query.
use crate::support::keys::guarded;
use crate::support::{App, Models, Options, elsewhere, json_of, problem};
use reqwest::{Response, StatusCode};
use serde_json::json;
use server::Config;
use std::time::{Duration, Instant};
use store::keys::Scope;

async fn spawn(config: Config) -> App {
    App::spawn_with(Options { own_gauges: true, ..Options::bare(config) }).await
}

async fn crawl(app: &App) -> String {
    let body = json!({"seeds": ["http://127.0.0.1:9/"]});
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    created["id"].as_str().unwrap().to_owned()
}

async fn gauge(app: &App, name: &str) -> f64 {
    let text = app.get("/metrics").await.text().await.unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
}

async fn until(app: &App, name: &str, wanted: f64) {
    let start = Instant::now();
    while gauge(app, name).await != wanted {
        assert!(start.elapsed() < Duration::from_secs(60), "{name} does not become {wanted}");
        tokio::task::yield_now().await;
    }
}

/// Waits for the next chunk of the stream and returns its text.
async fn next(stream: &mut Response) -> String {
    let chunk = stream.chunk().await.unwrap().expect("the stream must not end");
    String::from_utf8(chunk.to_vec()).unwrap()
}

#[testing::test]
async fn streams_of_one_crawl_share_one_look_at_it() {
    let app = spawn(Config { events_interval: Duration::from_millis(50), ..Config::default() }).await;
    let (one, other) = (crawl(&app).await, crawl(&app).await);
    let mut streams = Vec::new();
    for id in [&one, &one, &one, &other] {
        let mut stream = app.get(&format!("/crawls/{id}/events")).await;
        assert!(next(&mut stream).await.starts_with("event: progress"));
        streams.push(stream);
    }
    assert_eq!(gauge(&app, "facecrawl_event_streams").await, 4.0);
    assert_eq!(gauge(&app, "facecrawl_crawls_followed").await, 2.0);
    app.post_json(&format!("/crawls/{one}/pause"), &json!({})).await;
    for stream in &mut streams[..3] {
        let event = next(stream).await;
        assert!(event.contains("\"state\":\"paused\""), "{event}");
    }
    // A later stream starts with the current state.
    let mut late = app.get(&format!("/crawls/{one}/events")).await;
    assert!(next(&mut late).await.contains("\"state\":\"paused\""));
    drop((streams, late));
    until(&app, "facecrawl_event_streams", 0.0).await;
    until(&app, "facecrawl_crawls_followed", 0.0).await;
}

#[testing::test]
async fn a_caller_has_so_many_streams_and_not_one_more() {
    let app = spawn(Config { max_streams: 2, ..Config::default() }).await;
    let path = format!("/crawls/{}/events", crawl(&app).await);
    let (first, _second) = (app.get(&path).await, app.get(&path).await);
    let refused = app.get(&path).await;
    assert!(refused.headers().contains_key("retry-after"));
    problem(refused, 429, "overloaded").await;
    // A caller from another address has its own limit.
    let answer = elsewhere().get(format!("{}{path}", app.url)).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    drop(first);
    let start = Instant::now();
    while app.get(&path).await.status() != StatusCode::OK {
        assert!(start.elapsed() < Duration::from_secs(60), "a closed stream still counts");
    }
}

#[testing::test]
async fn with_keys_each_key_has_its_streams() {
    let config = Config { max_streams: 1, ..guarded().config };
    let app = App::spawn_with(Options { config, worker: false, models: Models::Fixture, ..guarded() }).await;
    let scopes = [Scope::Read, Scope::Crawl];
    let ((_, one), (_, other)) = (app.key(None, &scopes).await, app.key(None, &scopes).await);
    let body = json!({"seeds": ["http://127.0.0.1:9/"]});
    let created = app.ask(&one, reqwest::Method::POST, "/crawls", Some(&body)).await;
    let created = json_of(created, StatusCode::CREATED).await;
    let path = format!("/crawls/{}/events", created["id"].as_str().unwrap());
    let follow = async |key: &str| app.ask(key, reqwest::Method::GET, &path, None).await;
    let _first = follow(&one).await;
    problem(follow(&one).await, 429, "overloaded").await;
    assert_eq!(follow(&other).await.status(), StatusCode::OK);
}
