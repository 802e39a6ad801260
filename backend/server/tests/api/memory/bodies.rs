//! Tests the memory limits of request bodies and of images that are fetched for callers.
use super::{gauge, spawn, until};
use crate::support::pictures::drawn;
use crate::support::{App, elsewhere, problem};
use inference::Priority;
use serde_json::json;
use server::Config;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const HELD: &str = "request_bodies";
const BUDGET: u64 = 1 << 20;
/// Bodies with at most this number of bytes are not counted.
const UNCOUNTED: usize = 64 << 10;
/// Size of a body in bytes. The budget suffices for one such body but not for two.
const BODY: usize = 700 << 10;
const INTERIM: &str = "HTTP/1.1 100 Continue\r\n\r\n";

async fn service(request_timeout: Duration) -> App {
    spawn(4, Config { body_budget: BUDGET, request_timeout, ..Config::default() }, false).await
}

/// Sends the head of a request with `Expect: 100-continue` and returns the connection.
async fn announce(app: &App, framing: &str) -> TcpStream {
    announce_from(app, "127.0.0.1", "image/png", framing).await
}

/// Works like [`announce`], with a given loopback address and content type.
async fn announce_from(app: &App, from: &str, media: &str, framing: &str) -> TcpStream {
    let address = app.url.strip_prefix("http://").unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let head = format!(
        "POST /faces/detect HTTP/1.1\r\nhost: {address}\r\ncontent-type: {media}\r\n{framing}\r\nconnection: close\r\n\
         expect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Waits for `100 Continue`, which the server sends when it starts to read the body.
async fn wait_for_continue(stream: &mut TcpStream) {
    let mut interim = [0; INTERIM.len()];
    stream.read_exact(&mut interim).await.unwrap();
    assert_eq!(interim, INTERIM.as_bytes());
}

async fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Waits until at least `least` bytes are held, and returns the number of held bytes.
async fn held(app: &App, least: u64) -> u64 {
    let start = Instant::now();
    loop {
        let held = gauge(app, "bytes", HELD).await;
        if held >= least {
            return held;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{held} bytes are held, not {least}");
        tokio::task::yield_now().await;
    }
}

async fn send(stream: &mut TcpStream, bytes: usize) {
    stream.write_all(&vec![0; bytes]).await.unwrap();
}

#[testing::test]
async fn bodies_that_come_a_byte_at_a_time_hold_up_nobody() {
    let app = service(Duration::from_secs(60)).await;
    let framing = format!("content-length: {BODY}");
    // A JSON body is counted three times, so each of these bodies alone exceeds the budget.
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut stream = announce_from(&app, "127.0.0.1", "application/json", &framing).await;
        wait_for_continue(&mut stream).await;
        send(&mut stream, 1).await;
        slow.push(stream);
    }
    assert_eq!(gauge(&app, "bytes", HELD).await, 0);
    problem(app.post_raw("/faces/detect", "image/png", vec![0; BODY]).await, 415, "not_an_image").await;
    drop(slow);
}

#[testing::test]
async fn a_body_holds_what_has_arrived_of_it_and_little_more() {
    let app = service(Duration::from_secs(60)).await;
    let mut stream = announce(&app, &format!("content-length: {BODY}")).await;
    wait_for_continue(&mut stream).await;
    send(&mut stream, UNCOUNTED).await;
    send(&mut stream, 300 << 10).await;
    let arrived = (UNCOUNTED + (300 << 10)) as u64;
    let held = held(&app, arrived).await;
    assert!(held <= arrived + arrived / 2 + UNCOUNTED as u64, "{held} for {arrived}");
    send(&mut stream, BODY - UNCOUNTED - (300 << 10)).await;
    assert!(answer(stream).await.contains("not_an_image"));
    until(&app, "bytes", HELD, 0).await;
}

#[testing::test]
async fn of_two_bodies_for_which_there_is_no_room_the_first_to_come_goes_on() {
    let app = service(Duration::from_secs(60)).await;
    let framing = format!("content-length: {BODY}");
    let mut first = announce_from(&app, "127.0.0.1", "image/png", &framing).await;
    wait_for_continue(&mut first).await;
    let mut second = announce_from(&app, "127.0.0.2", "image/png", &framing).await;
    wait_for_continue(&mut second).await;
    let half = 400 << 10;
    send(&mut first, half).await;
    held(&app, half as u64).await;
    send(&mut second, BODY).await;
    until(&app, "waiting", HELD, 1).await;
    // Now the first body also needs more memory. Its last byte is sent after the second body was
    // rejected.
    send(&mut first, BODY - half - 1).await;
    let second = answer(second).await;
    assert!(second.contains(" 429 "), "{second}");
    assert!(second.contains("retry-after: 1") && second.contains(HELD), "{second}");
    send(&mut first, 1).await;
    assert!(answer(first).await.contains("not_an_image"));
    until(&app, "bytes", HELD, 0).await;
}

#[testing::test]
async fn a_body_waits_for_one_that_is_being_read() {
    let app = service(Duration::from_secs(60)).await;
    let framing = format!("content-length: {BODY}");
    let mut first = announce_from(&app, "127.0.0.1", "image/png", &framing).await;
    wait_for_continue(&mut first).await;
    send(&mut first, BODY - 1).await;
    held(&app, BODY as u64 - 1024).await;
    let mut second = announce_from(&app, "127.0.0.2", "image/png", &framing).await;
    wait_for_continue(&mut second).await;
    send(&mut second, BODY).await;
    until(&app, "waiting", HELD, 1).await;
    // Small control requests are not counted.
    problem(app.post_json("/faces/search", &json!({"embedding": [1.0]})).await, 422, "invalid_field").await;
    send(&mut first, 1).await;
    for stream in [first, second] {
        assert!(answer(stream).await.contains("not_an_image"));
    }
    until(&app, "waiting", HELD, 0).await;
    until(&app, "bytes", HELD, 0).await;
}

#[testing::test]
async fn one_address_leaves_room_for_the_others() {
    let app = service(Duration::from_secs(8)).await;
    let framing = format!("content-length: {BODY}");
    // A caller's share is three quarters of the budget, which is 768 KiB.
    let mut large = announce_from(&app, "127.0.0.1", "image/png", &framing).await;
    wait_for_continue(&mut large).await;
    send(&mut large, BODY - 1).await;
    held(&app, BODY as u64 - 1024).await;
    let more = app.post_raw("/faces/detect", "image/png", vec![0; 300 << 10]).await;
    let more = problem(more, 429, "overloaded").await;
    assert!(more["detail"].as_str().unwrap().contains("share"), "{more}");
    problem(app.post_raw("/faces/detect", "image/png", vec![0; UNCOUNTED]).await, 415, "not_an_image").await;
    let mut other =
        announce_from(&app, "127.0.0.2", "image/png", &format!("content-length: {}", 300 << 10)).await;
    wait_for_continue(&mut other).await;
    send(&mut other, 300 << 10).await;
    assert!(answer(other).await.contains("not_an_image"));
    assert!(gauge(&app, "bytes", HELD).await >= BODY as u64 - 1024, "the large body must still be held");
    drop(large);
}

#[testing::test]
async fn a_body_for_which_there_is_no_room_in_time_is_refused() {
    let app = service(Duration::from_secs(8)).await;
    let mut first = announce_from(&app, "127.0.0.2", "image/png", &format!("content-length: {BODY}")).await;
    wait_for_continue(&mut first).await;
    send(&mut first, BODY - 1).await;
    held(&app, BODY as u64 - 1024).await;
    // A JSON body is counted three times, so this one needs the whole budget.
    let image = json!({"image_base64": "A".repeat(400 << 10)});
    let refused = app.post_json("/faces/detect", &image).await;
    assert_eq!(refused.headers()["retry-after"], "1");
    let problem = problem(refused, 429, "overloaded").await;
    assert!(problem["detail"].as_str().unwrap().contains(HELD), "{problem}");
}

#[testing::test]
async fn a_body_that_is_larger_than_all_there_is_comes_in_alone() {
    let app = service(Duration::from_secs(60)).await;
    let image = json!({"image_base64": "A".repeat(900 << 10)});
    problem(app.post_json("/faces/detect", &image).await, 415, "not_an_image").await;
    until(&app, "bytes", HELD, 0).await;
}

#[testing::test]
async fn a_body_that_does_not_say_how_long_it_is_is_counted_by_what_came() {
    let app = service(Duration::from_secs(60)).await;
    let analyzer = &app.state.services.analyzer;
    let all: Vec<_> = futures::future::join_all(
        (0..4).map(|_| analyzer.decode(drawn(640, 640).into(), Priority::Interactive)),
    )
    .await;
    let mut stream = announce(&app, "transfer-encoding: chunked").await;
    wait_for_continue(&mut stream).await;
    // The decoder ignores the padding after the image. It makes the body large enough to be
    // counted.
    let mut picture = drawn(640, 640);
    picture.resize(picture.len().max(UNCOUNTED + 1), 0);
    stream.write_all(format!("{:x}\r\n", picture.len()).as_bytes()).await.unwrap();
    stream.write_all(&picture).await.unwrap();
    stream.write_all(b"\r\n0\r\n\r\n").await.unwrap();
    // The body has been read and now waits for memory for its pixels.
    until(&app, "bytes", HELD, (picture.len() as u64).next_multiple_of(1024)).await;
    drop(all);
    assert!(answer(stream).await.starts_with("HTTP/1.1 200"));
    until(&app, "bytes", HELD, 0).await;
}

#[testing::test]
async fn images_that_are_fetched_have_room_of_their_own() {
    let config = Config { body_budget: BUDGET, image_limit: 600 << 10, ..Config::default() };
    let app = spawn(4, config, false).await;
    let site = crate::support::site::Site::with(&[]).await;
    let image = |path: &str| json!({"url": format!("{}{path}", site.url)});
    let (client, url) = (app.client.clone(), format!("{}/faces/detect", app.url));
    let held = image("/held.jpg");
    let first = tokio::spawn(async move { client.post(url).json(&held).send().await.unwrap() });
    site.asked.notified().await;
    // Two images need more than the free part of the budget. They are fetched after the response to
    // the first request.
    let body = json!({"a": image("/text"), "b": image("/text")});
    let (client, url) = (elsewhere(), format!("{}/faces/compare", app.url));
    let second = tokio::spawn(async move { client.post(url).json(&body).send().await.unwrap() });
    until(&app, "waiting", "fetched_images", 1).await;
    assert_eq!(gauge(&app, "bytes", "fetched_images").await, 600 << 10);
    site.release.notify_one();
    problem(first.await.unwrap(), 422, "url_unreachable").await;
    problem(second.await.unwrap(), 415, "not_an_image").await;
    until(&app, "bytes", "fetched_images", 0).await;
}
