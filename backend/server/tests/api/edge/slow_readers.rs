//! Tests that the memory and the connection of a caller who does not read the response are
//! released.
use crate::support::pictures::noise;
use crate::support::site::Site;
use crate::support::{App, Options, problem};
use crate::videos::film;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use futures::StreamExt;
use reqwest::StatusCode;
use server::Config;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tower::ServiceExt;

const HELD: &str = "answers";
/// Side of the test image in pixels. Its file is larger than the socket buffers of the kernel.
const SIDE: u32 = 1600;

async fn gauge(app: &App, name: &str) -> f64 {
    gauge_of(app, name, HELD).await
}

async fn gauge_of(app: &App, name: &str, what: &str) -> f64 {
    let text = app.get("/metrics").await.text().await.unwrap();
    let line = format!("{name}{{what=\"{what}\"}} ");
    let value = text.lines().find_map(|shown| shown.strip_prefix(&line));
    value.unwrap_or_else(|| panic!("{line} is not in\n{text}")).parse().unwrap()
}

async fn until(app: &App, wanted: impl Fn(f64) -> bool) {
    let start = Instant::now();
    while !wanted(gauge(app, "facecrawl_held_bytes").await) {
        assert!(start.elapsed() < Duration::from_secs(60), "the memory is not released");
        tokio::task::yield_now().await;
    }
}

async fn spawn(config: Config) -> App {
    App::spawn_with(Options { own_gauges: true, ..Options::bare(config) }).await
}

/// Requests an enhanced image and reads only the status of the response. The receive buffer is as
/// small as the kernel allows.
async fn ask(app: &App) -> TcpStream {
    let address = app.url.strip_prefix("http://").unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let picture = noise(SIDE, SIDE);
    let head = format!(
        "POST /images/enhance HTTP/1.1\r\nhost: {address}\r\ncontent-type: image/png\r\ncontent-length: {}\r\n\r\n",
        picture.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&picture).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

#[testing::test]
async fn an_answer_counts_until_it_has_been_read() {
    let app = spawn(Config::default()).await;
    let stream = ask(&app).await;
    let held = gauge(&app, "facecrawl_held_bytes").await;
    assert!(held >= f64::from(SIDE * SIDE) && held < f64::from(SIDE * SIDE * 4), "{held}");
    drop(stream);
    until(&app, |held| held == 0.0).await;
}

#[testing::test]
async fn one_answer_too_many_is_refused() {
    // The budget holds one decoded image of this size.
    let config = Config {
        answer_budget: u64::from(SIDE * SIDE * 4),
        request_timeout: Duration::from_secs(20),
        ..Config::default()
    };
    let app = spawn(config).await;
    let first = ask(&app).await;
    let refused = app.post_raw("/images/enhance", "image/png", noise(SIDE, SIDE)).await;
    let refused = problem(refused, 429, "overloaded").await;
    assert!(refused["detail"].as_str().unwrap().contains(HELD), "{refused}");
    drop(first);
    until(&app, |held| held == 0.0).await;
    let answer = app.post_raw("/images/enhance", "image/png", noise(SIDE, SIDE)).await;
    assert_eq!(answer.status(), StatusCode::OK);
}

#[testing::test]
async fn the_connection_of_a_caller_who_reads_nothing_ends() {
    let app = spawn(Config { write_stall: Duration::from_millis(300), ..Config::default() }).await;
    let stream = ask(&app).await;
    // The caller keeps the connection open and reads nothing, so only the server can end it.
    until(&app, |held| held == 0.0).await;
    drop(stream);
}

/// Sends a request to the router without a connection. The body of the response is read only when
/// the test reads it.
async fn directly(app: &App, request: axum::http::request::Builder, body: Body) -> Response {
    let request = request.header("host", "127.0.0.1").body(body).unwrap();
    server::router(app.state.clone()).oneshot(request).await.unwrap()
}

#[testing::test]
async fn the_answer_of_a_list_counts_until_it_has_been_read() {
    let app = spawn(Config { answer_budget: 300 << 10, ..Config::default() }).await;
    let alias = "x".repeat(190);
    for number in 0..400 {
        let person = serde_json::json!({"name": format!("{number} {alias}")});
        assert_eq!(app.post_json("/subjects", &person).await.status(), StatusCode::CREATED);
    }
    let list = || directly(&app, Request::get("/subjects?limit=1000"), Body::empty());
    let unread = list().await;
    assert_eq!(unread.status(), StatusCode::OK);
    let length: f64 = unread.headers()["content-length"].to_str().unwrap().parse().unwrap();
    let held = gauge(&app, "facecrawl_held_bytes").await;
    assert!(length > 65_536.0 && (length..length + 1_024.0).contains(&held), "{held} of {length}");
    // A second answer of this size exceeds the share of one caller.
    assert_eq!(list().await.status(), StatusCode::TOO_MANY_REQUESTS);
    // The connection drops the body before the last piece has been sent.
    let piece = unread.into_body().into_data_stream().next().await.unwrap().unwrap();
    assert_eq!(gauge(&app, "facecrawl_held_bytes").await, held);
    drop(piece);
    assert_eq!(gauge(&app, "facecrawl_held_bytes").await, 0.0);
    assert_eq!(list().await.status(), StatusCode::OK);
}

#[testing::test]
async fn a_piece_of_an_export_counts_until_it_has_been_read() {
    let config = Config { answer_budget: 300 << 10, ..Options::default().config };
    let app = App::spawn_with(Options { own_gauges: true, config, ..Options::default() }).await;
    let site = Site::with(&["ada.jpg", "ben.jpg"]).await;
    let crawl = app.crawl(&[site.page()]).await;
    let path = format!("/crawls/{}/export?embeddings=true", crawl["id"].as_str().unwrap());
    let unread = directly(&app, Request::get(path.as_str()), Body::empty()).await;
    assert_eq!(unread.status(), StatusCode::OK);
    assert!(gauge(&app, "facecrawl_held_bytes").await > 0.0);
    let mut body = unread.into_body().into_data_stream();
    let mut held = Vec::new();
    while let Some(piece) = body.next().await {
        held.push(piece.unwrap());
        assert!(
            gauge(&app, "facecrawl_held_bytes").await
                >= held.iter().map(|piece| piece.len()).sum::<usize>() as f64
        );
    }
    drop(body);
    assert!(gauge(&app, "facecrawl_held_bytes").await > 0.0, "the pieces have not been sent");
    drop(held);
    assert_eq!(gauge(&app, "facecrawl_held_bytes").await, 0.0);
}

#[testing::needs(video)]
#[testing::test]
async fn a_clip_whose_answer_is_not_read_holds_no_frames() {
    let app =
        App::spawn_with(Options { own_gauges: true, videos: true, ..Options::bare(Config::default()) }).await;
    let request = || Request::post("/videos/detect?sampling=fps=5").header("content-type", "video/mp4");
    let response = directly(&app, request(), film().into()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let start = Instant::now();
    let held = async |what| gauge_of(&app, "facecrawl_held_bytes", what).await;
    while held("decoded_pictures").await > 0.0 || held("video_decoders").await > 0.0 {
        assert!(start.elapsed() < testing::MAX_WAIT, "the frames are not released");
        tokio::task::yield_now().await;
    }
    assert!(held(HELD).await > 0.0, "memory for the unread lines");
    let pieces: Vec<_> = response.into_body().into_data_stream().collect().await;
    assert_eq!(pieces.len(), 127);
    assert!(pieces.iter().all(Result::is_ok));
    assert_eq!(held(HELD).await, 0.0);
    // While frames are read, the memory of their decoder counts.
    let decoding = Instant::now();
    let request = directly(&app, request(), film().into());
    let seen = async {
        while held("video_decoders").await < f64::from(48 << 20) {
            assert!(decoding.elapsed() < testing::MAX_WAIT, "the decoder does not count");
            tokio::task::yield_now().await;
        }
    };
    let (response, ()) = tokio::join!(request, seen);
    assert_eq!(response.status(), StatusCode::OK);
}
