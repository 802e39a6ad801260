//! Tests that no caller can hold all of a shared resource. The resources are analyses, connections
//! to the database, event streams, and the memory of unread responses.
use crate::support::images::{noise, png};
use crate::support::site::Site;
use crate::support::{App, Json, Models, Options, key_options, other_client, problem};
use crate::videos::clip;
use axum::body::Body;
use axum::http::Request;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use reqwest::{Method, Response, StatusCode};
use serde_json::json;
use server::{Compat, Config};
use std::time::{Duration, Instant};
use store::keys::Scope;
use testing::TableLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tower::ServiceExt;

async fn spawn_idle(options: Options) -> App {
    App::spawn_with(Options { worker: false, models: Models::Fixture, ..options }).await
}

/// Sends a batch of images by URL from a host that never responds. Returns after the service has
/// connected, with the request and the host's side of the first connection.
async fn fetch_slowly(app: &App, images: usize) -> (tokio::task::JoinHandle<u16>, TcpStream) {
    let host = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/a.jpg", host.local_addr().unwrap());
    let body = json!({"images": vec![json!({"url": url}); images]});
    let request = app.client.post(format!("{}/faces/detect/batch", app.url)).json(&body);
    let sent = tokio::spawn(async move { request.send().await.unwrap().status().as_u16() });
    let (connection, _) = host.accept().await.unwrap();
    (sent, connection)
}

#[testing::test]
async fn slow_urls_of_one_caller_leave_analyses_for_others() {
    let config = Config { max_analyses: 8, ..Config::default() };
    let app = spawn_idle(Options { config, ..Options::default() }).await;
    // These are three quarters of the analyses that may wait.
    let held = [fetch_slowly(&app, 3).await, fetch_slowly(&app, 3).await];
    problem(app.post_raw("/faces/detect", "image/png", png(64, 64)).await, 429, "overloaded").await;
    let request =
        other_client().post(format!("{}/faces/detect", app.url)).header("content-type", "image/png");
    assert_eq!(request.body(png(64, 64)).send().await.unwrap().status(), StatusCode::OK);
    for (sent, connection) in held {
        sent.abort();
        drop(connection);
    }
    // The aborted requests release their permits, so the caller's next request is admitted.
    let start = Instant::now();
    while app.post_raw("/faces/detect", "image/png", png(64, 64)).await.status() != StatusCode::OK {
        assert!(start.elapsed() < testing::MAX_WAIT, "the permits are not released");
    }
}

fn max_connections(app: &App) -> u32 {
    app.state.services.store.pool().options().get_max_connections()
}

/// Sends requests that need a locked table, until as many statements wait as a caller may have
/// connections. Returns this share.
async fn wait_for_share<F: Future>(app: &App, lock: &mut TableLock, slow: &mut FuturesUnordered<F>) -> i64 {
    let share = i64::from(max_connections(app) - max_connections(app) / 4);
    let start = Instant::now();
    while lock.count_waiting().await < share {
        // Polling sends the requests. The lock prevents the service from responding to any of them.
        assert!(slow.next().now_or_never().is_none());
        assert!(start.elapsed() < testing::MAX_WAIT, "{} statements wait", lock.count_waiting().await);
        tokio::task::yield_now().await;
    }
    share
}

/// Sends more requests than the share of a caller. Each of them needs the locked table. Requires
/// that only the share waits for it, and that another caller receives a response.
async fn assert_connections_left<F: Future<Output = Response>>(
    app: &App,
    mut lock: TableLock,
    send: impl Fn(u32) -> F,
    expected: StatusCode,
) {
    let mut slow: FuturesUnordered<_> = (0..max_connections(app) + 4).map(send).collect();
    let share = wait_for_share(app, &mut lock, &mut slow).await;
    let other_response = other_client().get(format!("{}/audit?limit=1", app.url)).send().await.unwrap();
    assert_eq!(other_response.status(), StatusCode::OK);
    assert_eq!(lock.count_waiting().await, share, "the other requests of the caller wait");
    lock.release().await;
    while let Some(response) = slow.next().await {
        assert_eq!(response.status(), expected);
    }
}

#[testing::test]
async fn slow_statements_of_one_caller_leave_connections_for_others() {
    let app = spawn_idle(Options::default()).await;
    let lock = app.database.lock_faces().await;
    assert_connections_left(&app, lock, |_| app.get("/faces?limit=1"), StatusCode::OK).await;
}

#[testing::test]
async fn keys_in_forms_of_one_collection_leave_connections_for_others() {
    let config = Config { compat: vec![Compat::DeepStack], ..key_options().config };
    let app = spawn_idle(Options { config, ..key_options() }).await;
    let (_, key) = app.create_key(Some("press"), &[Scope::Read]).await;
    let list = |client: &reqwest::Client| {
        let request = client.post(format!("{}/v1/vision/face/list", app.url));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        request.body(format!("api_key={key}")).send()
    };
    assert_eq!(list(&app.client).await.unwrap().status(), StatusCode::OK);
    let mut lock = app.database.lock_subjects().await;
    // The requests of each address have their own share until their key is known.
    let other = other_client();
    let mut slow: FuturesUnordered<_> =
        (0..max_connections(&app)).flat_map(|_| [list(&app.client), list(&other)]).collect();
    let share = wait_for_share(&app, &mut lock, &mut slow).await;
    let (_, others_key) = app.create_key(Some("others"), &[Scope::Read]).await;
    let ready = app.call(&others_key, Method::GET, "/collections", None).await;
    assert_eq!(ready.status(), StatusCode::OK);
    assert_eq!(lock.count_waiting().await, share, "the other requests of the collection wait");
    lock.release().await;
    while let Some(response) = slow.next().await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
}

#[testing::needs(video)]
#[testing::test]
async fn video_urls_of_one_caller_leave_connections_for_others() {
    let app = spawn_idle(Options { videos: true, ..Options::default() }).await;
    let lock = app.database.lock_videos().await;
    let (app, address) = (&app, |n| json!({"url": format!("http://127.0.0.1:9/{n}.mp4")}));
    let add = |n| async move { app.post_json("/videos", &address(n)).await };
    assert_connections_left(app, lock, add, StatusCode::ACCEPTED).await;
}

#[testing::test]
async fn keys_of_one_collection_share_one_stream_limit() {
    let config = Config { max_streams: 1, ..key_options().config };
    let app = spawn_idle(Options { config, ..key_options() }).await;
    let scopes = [Scope::Read, Scope::Crawl];
    let ((_, first), (_, second)) =
        (app.create_key(Some("press"), &scopes).await, app.create_key(Some("press"), &scopes).await);
    let created = app.create_as(&first, "/crawls", &json!({"seeds": ["http://127.0.0.1:9/"]})).await;
    let path = format!("/crawls/{}/events", created.text("id"));
    let _first = app.call(&first, Method::GET, &path, None).await;
    problem(app.call(&second, Method::GET, &path, None).await, 429, "overloaded").await;
    let (_, unbound) = app.create_key(None, &scopes).await;
    assert_eq!(app.call(&unbound, Method::GET, &path, None).await.status(), StatusCode::OK);
}

/// Waits for the next chunk of the stream and returns its text.
async fn next_chunk(stream: &mut Response) -> String {
    let chunk = stream.chunk().await.unwrap().expect("the stream must not end");
    String::from_utf8(chunk.to_vec()).unwrap()
}

#[testing::test]
async fn streams_of_one_crawl_share_one_query() {
    let app =
        spawn_measured(Config { events_interval: Duration::from_millis(50), ..Config::default() }).await;
    let (first, second) = (app.idle_crawl().await, app.idle_crawl().await);
    let mut streams = Vec::new();
    for path in [&first, &first, &first, &second] {
        let mut stream = app.get(&format!("{path}/events")).await;
        assert!(next_chunk(&mut stream).await.starts_with("event: progress"));
        streams.push(stream);
    }
    assert_eq!(app.gauge("facecrawl_event_streams").await, 4.0);
    assert_eq!(app.gauge("facecrawl_crawls_followed").await, 2.0);
    app.post_json(&format!("{first}/pause"), &json!({})).await;
    for stream in &mut streams[..3] {
        let event = next_chunk(stream).await;
        assert!(event.contains("\"state\":\"paused\""), "{event}");
    }
    // A later stream starts with the current state.
    let mut later = app.get(&format!("{first}/events")).await;
    assert!(next_chunk(&mut later).await.contains("\"state\":\"paused\""));
    drop((streams, later));
    app.poll_gauge("facecrawl_event_streams", |value| value == 0.0).await;
    app.poll_gauge("facecrawl_crawls_followed", |value| value == 0.0).await;
}

#[testing::test]
async fn streams_per_caller_are_limited() {
    let app = spawn_measured(Config { max_streams: 2, ..Config::default() }).await;
    let path = format!("{}/events", app.idle_crawl().await);
    let (first, _second) = (app.get(&path).await, app.get(&path).await);
    let response = app.get(&path).await;
    assert!(response.headers().contains_key("retry-after"));
    problem(response, 429, "overloaded").await;
    // A caller from another address has its own limit.
    let response = other_client().get(format!("{}{path}", app.url)).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    drop(first);
    let start = Instant::now();
    while app.get(&path).await.status() != StatusCode::OK {
        assert!(start.elapsed() < testing::MAX_WAIT, "a closed stream still counts");
    }
}

#[testing::test]
async fn each_unbound_key_has_own_stream_limit() {
    let config = Config { max_streams: 1, ..key_options().config };
    let app = spawn_idle(Options { config, ..key_options() }).await;
    let scopes = [Scope::Read, Scope::Crawl];
    let ((_, first_key), (_, second_key)) =
        (app.create_key(None, &scopes).await, app.create_key(None, &scopes).await);
    let created = app.create_as(&first_key, "/crawls", &json!({"seeds": ["http://127.0.0.1:9/"]})).await;
    let path = format!("/crawls/{}/events", created.text("id"));
    let follow = async |key: &str| app.call(key, Method::GET, &path, None).await;
    let _stream = follow(&first_key).await;
    problem(follow(&first_key).await, 429, "overloaded").await;
    assert_eq!(follow(&second_key).await.status(), StatusCode::OK);
}

/// Name of the budget of unread responses.
const RESPONSE_BUDGET: &str = "answers";
/// Side of the test image in pixels. Its file is larger than the socket buffers of the kernel.
const SIDE: u32 = 1600;

async fn spawn_measured(config: Config) -> App {
    App::spawn_with(Options { own_gauges: true, ..Options::bare(config) }).await
}

/// Returns the number of bytes that count against a budget.
async fn held_bytes(app: &App, budget: &str) -> f64 {
    app.gauge(&format!("facecrawl_held_bytes{{what=\"{budget}\"}}")).await
}

async fn wait_until_released(app: &App) {
    app.poll_gauge("facecrawl_held_bytes{what=\"answers\"}", |held| held == 0.0).await;
}

/// Requests an enhanced image and reads only the status of the response. The receive buffer is as
/// small as the kernel allows.
async fn request_without_reading(app: &App) -> TcpStream {
    let address = app.url.strip_prefix("http://").unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let image = noise(SIDE, SIDE);
    let head = format!(
        "POST /images/enhance HTTP/1.1\r\nhost: {address}\r\ncontent-type: image/png\r\ncontent-length: {}\r\n\r\n",
        image.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&image).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

#[testing::test]
async fn response_counts_against_budget_until_read() {
    let app = spawn_measured(Config::default()).await;
    let stream = request_without_reading(&app).await;
    let held = held_bytes(&app, RESPONSE_BUDGET).await;
    assert!(held >= f64::from(SIDE * SIDE) && held < f64::from(SIDE * SIDE * 4), "{held}");
    drop(stream);
    wait_until_released(&app).await;
}

#[testing::test]
async fn response_over_budget_is_rejected() {
    // The budget holds one decoded image of this size.
    let config = Config {
        response_budget: u64::from(SIDE * SIDE * 4),
        request_timeout: Duration::from_secs(20),
        ..Config::default()
    };
    let app = spawn_measured(config).await;
    let first = request_without_reading(&app).await;
    let response = app.post_raw("/images/enhance", "image/png", noise(SIDE, SIDE)).await;
    let error = problem(response, 429, "overloaded").await;
    assert!(error.text("detail").contains(RESPONSE_BUDGET), "{error}");
    drop(first);
    wait_until_released(&app).await;
    let response = app.post_raw("/images/enhance", "image/png", noise(SIDE, SIDE)).await;
    assert_eq!(response.status(), StatusCode::OK);
}

#[testing::test]
async fn connection_of_non_reading_caller_is_closed() {
    let app = spawn_measured(Config { write_stall: Duration::from_millis(300), ..Config::default() }).await;
    let stream = request_without_reading(&app).await;
    // The caller keeps the connection open and reads nothing, so only the server can end it.
    wait_until_released(&app).await;
    drop(stream);
}

/// Sends a request to the router without a connection. The body of the response is read only when
/// the test reads it.
async fn dispatch(app: &App, request: axum::http::request::Builder, body: Body) -> axum::response::Response {
    let request = request.header("host", "127.0.0.1").body(body).unwrap();
    server::router(app.state.clone()).oneshot(request).await.unwrap()
}

#[testing::test]
async fn list_response_counts_against_budget_until_read() {
    let app = spawn_measured(Config { response_budget: 300 << 10, ..Config::default() }).await;
    let alias = "x".repeat(190);
    for number in 0..400 {
        let person = json!({"name": format!("{number} {alias}")});
        assert_eq!(app.post_json("/subjects", &person).await.status(), StatusCode::CREATED);
    }
    let list = || dispatch(&app, Request::get("/subjects?limit=1000"), Body::empty());
    let unread = list().await;
    assert_eq!(unread.status(), StatusCode::OK);
    let length: f64 = unread.headers()["content-length"].to_str().unwrap().parse().unwrap();
    let held = held_bytes(&app, RESPONSE_BUDGET).await;
    assert!(length > 65_536.0 && (length..length + 1_024.0).contains(&held), "{held} of {length}");
    // A second response of this size exceeds the share of one caller.
    assert_eq!(list().await.status(), StatusCode::TOO_MANY_REQUESTS);
    // The connection drops the body before the last piece has been sent.
    let piece = unread.into_body().into_data_stream().next().await.unwrap().unwrap();
    assert_eq!(held_bytes(&app, RESPONSE_BUDGET).await, held);
    drop(piece);
    assert_eq!(held_bytes(&app, RESPONSE_BUDGET).await, 0.0);
    assert_eq!(list().await.status(), StatusCode::OK);
}

#[testing::test]
async fn export_chunk_counts_against_budget_until_read() {
    let config = Config { response_budget: 300 << 10, ..Options::default().config };
    let app = App::spawn_with(Options { own_gauges: true, config, ..Options::default() }).await;
    let site = Site::new(&["ada.jpg", "ben.jpg"]).await;
    let crawl = app.crawl(&[site.page()]).await;
    let path = format!("/crawls/{}/export?embeddings=true", crawl.text("id"));
    let unread = dispatch(&app, Request::get(path.as_str()), Body::empty()).await;
    assert_eq!(unread.status(), StatusCode::OK);
    assert!(held_bytes(&app, RESPONSE_BUDGET).await > 0.0);
    let mut body = unread.into_body().into_data_stream();
    let mut held = Vec::new();
    while let Some(piece) = body.next().await {
        held.push(piece.unwrap());
        assert!(
            held_bytes(&app, RESPONSE_BUDGET).await
                >= held.iter().map(|piece| piece.len()).sum::<usize>() as f64
        );
    }
    drop(body);
    assert!(held_bytes(&app, RESPONSE_BUDGET).await > 0.0, "the pieces have not been sent");
    drop(held);
    assert_eq!(held_bytes(&app, RESPONSE_BUDGET).await, 0.0);
}

#[testing::needs(video)]
#[testing::test]
async fn unread_video_response_holds_no_decoded_frames() {
    let app =
        App::spawn_with(Options { own_gauges: true, videos: true, ..Options::bare(Config::default()) }).await;
    let request = || Request::post("/videos/detect?sampling=fps=5").header("content-type", "video/mp4");
    let response = dispatch(&app, request(), clip().into()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let start = Instant::now();
    while held_bytes(&app, "decoded_pictures").await > 0.0 || held_bytes(&app, "video_decoders").await > 0.0 {
        assert!(start.elapsed() < testing::MAX_WAIT, "the frames are not released");
        tokio::task::yield_now().await;
    }
    assert!(held_bytes(&app, RESPONSE_BUDGET).await > 0.0, "memory for the unread lines");
    let pieces: Vec<_> = response.into_body().into_data_stream().collect().await;
    assert_eq!(pieces.len(), 127);
    assert!(pieces.iter().all(Result::is_ok));
    assert_eq!(held_bytes(&app, RESPONSE_BUDGET).await, 0.0);
    // While frames are read, the memory of their decoder counts.
    let decoding = Instant::now();
    let request = dispatch(&app, request(), clip().into());
    let decoder_is_counted = async {
        while held_bytes(&app, "video_decoders").await < f64::from(48 << 20) {
            assert!(decoding.elapsed() < testing::MAX_WAIT, "the memory of the decoder is not counted");
            tokio::task::yield_now().await;
        }
    };
    let (response, ()) = tokio::join!(request, decoder_is_counted);
    assert_eq!(response.status(), StatusCode::OK);
}
