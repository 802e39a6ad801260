//! Bodies of requests, and images that are fetched for callers.
use super::{gauge, spawn, until};
use crate::support::pictures::drawn;
use crate::support::{App, problem};
use inference::Lane;
use serde_json::json;
use server::Config;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HELD: &str = "request_bodies";
const ROOM: u64 = 1 << 20;
/// There is room for one of these, and not for two.
const BODY: usize = 700 << 10;
const INTERIM: &str = "HTTP/1.1 100 Continue\r\n\r\n";

async fn service(request_timeout: Duration) -> App {
    spawn(4, Config { body_budget: ROOM, request_timeout, ..Config::default() }, false).await
}

/// A caller who has sent the head of a request and waits for leave to send its body.
async fn announce(app: &App, framing: &str) -> TcpStream {
    let address = app.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /faces/detect HTTP/1.1\r\nhost: {address}\r\ncontent-type: image/png\r\n{framing}\r\nconnection: close\r\n\
         expect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Waits for the leave, which is given when the body is read.
async fn leave(stream: &mut TcpStream) {
    let mut interim = [0; INTERIM.len()];
    stream.read_exact(&mut interim).await.unwrap();
    assert_eq!(interim, INTERIM.as_bytes());
}

async fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_body_is_read_when_there_is_room_for_all_of_it() {
    let app = service(Duration::from_secs(60)).await;
    let framing = format!("content-length: {BODY}");
    let mut first = announce(&app, &framing).await;
    leave(&mut first).await;
    assert_eq!(gauge(&app, "bytes", HELD).await, BODY as u64);
    let (mut second, third) = (announce(&app, &framing).await, announce(&app, &framing).await);
    until(&app, "waiting", HELD, 2).await;
    // What steers the service is not counted.
    problem(app.post_json("/faces/search", &json!({"embedding": [1.0]})).await, 422, "invalid_field").await;
    // One goes while he waits, which is seen when it is his turn, and one while he sends.
    drop(third);
    first.write_all(&vec![0; BODY / 2]).await.unwrap();
    drop(first);
    leave(&mut second).await;
    second.write_all(&vec![0; BODY]).await.unwrap();
    assert!(answer(second).await.contains("not_an_image"));
    until(&app, "waiting", HELD, 0).await;
    until(&app, "bytes", HELD, 0).await;
}

#[tokio::test]
async fn a_body_for_which_there_is_no_room_in_time_is_refused() {
    let app = service(Duration::from_secs(2)).await;
    let mut held = announce(&app, &format!("content-length: {BODY}")).await;
    leave(&mut held).await;
    // As JSON it would be held three times over, which is all there is.
    let image = json!({"image_base64": "A".repeat(400 << 10)});
    let refused = app.post_json("/faces/detect", &image).await;
    assert_eq!(refused.headers()["retry-after"], "1");
    let problem = problem(refused, 429, "overloaded").await;
    assert!(problem["detail"].as_str().unwrap().contains(HELD), "{problem}");
}

#[tokio::test]
async fn a_body_that_does_not_say_how_long_it_is_is_counted_by_what_came() {
    let app = service(Duration::from_secs(60)).await;
    let analyzer = &app.state.services.analyzer;
    let all: Vec<_> =
        futures::future::join_all((0..4).map(|_| analyzer.decode(drawn(640, 640).into(), Lane::Interactive)))
            .await;
    let mut stream = announce(&app, "transfer-encoding: chunked").await;
    leave(&mut stream).await;
    assert_eq!(gauge(&app, "bytes", HELD).await, ROOM, "it may become longer than there is room for");
    let picture = drawn(640, 640);
    stream.write_all(format!("{:x}\r\n", picture.len()).as_bytes()).await.unwrap();
    stream.write_all(&picture).await.unwrap();
    stream.write_all(b"\r\n0\r\n\r\n").await.unwrap();
    // It has been read, and waits for the memory of its pixels.
    until(&app, "bytes", HELD, (picture.len() as u64).next_multiple_of(1024)).await;
    drop(all);
    assert!(answer(stream).await.starts_with("HTTP/1.1 200"));
    until(&app, "bytes", HELD, 0).await;
}

#[tokio::test]
async fn images_that_are_fetched_have_room_of_their_own() {
    let config = Config { body_budget: ROOM, image_limit: 600 << 10, ..Config::default() };
    let app = spawn(4, config, false).await;
    let site = crate::support::site::Site::with(&[]).await;
    let image = |path: &str| json!({"url": format!("{}{path}", site.url)});
    let (client, url) = (app.client.clone(), format!("{}/faces/detect", app.url));
    let held = image("/held.jpg");
    let first = tokio::spawn(async move { client.post(url).json(&held).send().await.unwrap() });
    site.asked.notified().await;
    // Two images need more than there is, and come when the first is answered.
    let body = json!({"a": image("/text"), "b": image("/text")});
    let (client, url) = (app.client.clone(), format!("{}/faces/compare", app.url));
    let second = tokio::spawn(async move { client.post(url).json(&body).send().await.unwrap() });
    until(&app, "waiting", "fetched_images", 1).await;
    assert_eq!(gauge(&app, "bytes", "fetched_images").await, 600 << 10);
    site.release.notify_one();
    problem(first.await.unwrap(), 422, "url_unreachable").await;
    problem(second.await.unwrap(), 415, "not_an_image").await;
    until(&app, "bytes", "fetched_images", 0).await;
}
