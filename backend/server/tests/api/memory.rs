//! Tests the memory limits of request bodies, of images that are fetched for callers, and of
//! decoded images.
use crate::support::images::png;
use crate::support::site::Site;
use crate::support::{App, Json, Models, Options, ok, other_client, problem};
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use futures::future::{Either, join_all, select};
use inference::Priority;
use serde_json::json;
use server::Config;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Side of the test images in pixels.
const SIDE: u32 = 640;
/// Size of one decoded test image, in bytes.
const IMAGE_BYTES: u64 = 640 * 640 * 3;

/// Starts a service with room for `images` decoded images and with its own gauges.
async fn spawn(images: u64, config: Config, worker: bool) -> App {
    let limits = vision::Limits { max_pixels: IMAGE_BYTES / 3, ..vision::Limits::default() };
    let decoded_bytes = images * IMAGE_BYTES;
    let pipeline = pipeline::Config { limits, decoded_bytes, ..pipeline::Config::default() };
    let options =
        Options { config, pipeline, worker, models: Models::Fixture, own_gauges: true, ..Options::default() };
    App::spawn_with(options).await
}

/// Returns the value of a memory gauge.
async fn gauge(app: &App, name: &str, budget: &str) -> u64 {
    app.gauge(&format!("facecrawl_held_{name}{{what=\"{budget}\"}}")).await as u64
}

async fn wait_for(app: &App, name: &str, budget: &str, expected: u64) {
    let name = format!("facecrawl_held_{name}{{what=\"{budget}\"}}");
    app.poll_gauge(&name, |value| value == expected as f64).await;
}

const BODY_BUDGET: &str = "request_bodies";
const BUDGET_BYTES: u64 = 1 << 20;
/// Bodies with at most this number of bytes are not counted.
const UNCOUNTED_BYTES: usize = 64 << 10;
/// Size of a body in bytes. The budget suffices for one such body but not for two.
const BODY_BYTES: usize = 700 << 10;
const INTERIM: &str = "HTTP/1.1 100 Continue\r\n\r\n";

async fn app_with_budget(request_timeout: Duration) -> App {
    spawn(4, Config { body_budget: BUDGET_BYTES, request_timeout, ..Config::default() }, false).await
}

/// Sends the head of a request with `Expect: 100-continue` from a loopback address. Returns the
/// connection after the server has sent `100 Continue`, that is, when it starts to read the body.
async fn start_request(app: &App, from: &str, media: &str, framing: &str) -> TcpStream {
    let address = app.url.strip_prefix("http://").unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let head = format!(
        "POST /faces/detect HTTP/1.1\r\nhost: {address}\r\ncontent-type: {media}\r\n{framing}\r\nconnection: close\r\n\
         expect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut interim = [0; INTERIM.len()];
    stream.read_exact(&mut interim).await.unwrap();
    assert_eq!(interim, INTERIM.as_bytes());
    stream
}

/// Starts a request with an image of `bytes` bytes.
async fn start_image_request(app: &App, from: &str, bytes: usize) -> TcpStream {
    start_request(app, from, "image/png", &format!("content-length: {bytes}")).await
}

async fn read_response(mut stream: TcpStream) -> String {
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

/// Waits until at least `minimum` bytes are held, and returns the number of held bytes.
async fn wait_for_bytes(app: &App, minimum: u64) -> u64 {
    let name = format!("facecrawl_held_bytes{{what=\"{BODY_BUDGET}\"}}");
    app.poll_gauge(&name, |held| held >= minimum as f64).await as u64
}

async fn send(stream: &mut TcpStream, bytes: usize) {
    stream.write_all(&vec![0; bytes]).await.unwrap();
}

#[testing::test]
async fn slow_bodies_do_not_block_others() {
    let app = app_with_budget(Duration::from_secs(60)).await;
    let framing = format!("content-length: {BODY_BYTES}");
    // A JSON body is counted three times, so each of these bodies alone exceeds the budget.
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut stream = start_request(&app, "127.0.0.1", "application/json", &framing).await;
        send(&mut stream, 1).await;
        slow.push(stream);
    }
    assert_eq!(gauge(&app, "bytes", BODY_BUDGET).await, 0);
    problem(app.post_raw("/faces/detect", "image/png", vec![0; BODY_BYTES]).await, 415, "not_an_image").await;
    drop(slow);
}

#[testing::test]
async fn body_holds_little_more_memory_than_received() {
    let app = app_with_budget(Duration::from_secs(60)).await;
    let mut stream = start_image_request(&app, "127.0.0.1", BODY_BYTES).await;
    send(&mut stream, UNCOUNTED_BYTES).await;
    send(&mut stream, 300 << 10).await;
    let received = (UNCOUNTED_BYTES + (300 << 10)) as u64;
    let held = wait_for_bytes(&app, received).await;
    assert!(
        held <= received + received / 2 + UNCOUNTED_BYTES as u64,
        "{held} held bytes for {received} received bytes"
    );
    send(&mut stream, BODY_BYTES - UNCOUNTED_BYTES - (300 << 10)).await;
    assert!(read_response(stream).await.contains("not_an_image"));
    wait_for(&app, "bytes", BODY_BUDGET, 0).await;
}

#[testing::test]
async fn earlier_body_continues_when_memory_is_insufficient() {
    let app = app_with_budget(Duration::from_secs(60)).await;
    let mut first = start_image_request(&app, "127.0.0.1", BODY_BYTES).await;
    let mut second = start_image_request(&app, "127.0.0.2", BODY_BYTES).await;
    let half = 400 << 10;
    send(&mut first, half).await;
    wait_for_bytes(&app, half as u64).await;
    send(&mut second, BODY_BYTES).await;
    wait_for(&app, "waiting", BODY_BUDGET, 1).await;
    // Now the first body also needs more memory. Its last byte is sent after the second body was
    // rejected.
    send(&mut first, BODY_BYTES - half - 1).await;
    let second = read_response(second).await;
    assert!(second.contains(" 429 "), "{second}");
    assert!(second.contains("retry-after: 1") && second.contains(BODY_BUDGET), "{second}");
    send(&mut first, 1).await;
    assert!(read_response(first).await.contains("not_an_image"));
    wait_for(&app, "bytes", BODY_BUDGET, 0).await;
}

#[testing::test]
async fn body_waits_for_memory_of_body_being_read() {
    let app = app_with_budget(Duration::from_secs(60)).await;
    let mut first = start_image_request(&app, "127.0.0.1", BODY_BYTES).await;
    send(&mut first, BODY_BYTES - 1).await;
    wait_for_bytes(&app, BODY_BYTES as u64 - 1024).await;
    let mut second = start_image_request(&app, "127.0.0.2", BODY_BYTES).await;
    send(&mut second, BODY_BYTES).await;
    wait_for(&app, "waiting", BODY_BUDGET, 1).await;
    // Small control requests are not counted.
    problem(app.post_json("/faces/search", &json!({"embedding": [1.0]})).await, 422, "invalid_field").await;
    send(&mut first, 1).await;
    for stream in [first, second] {
        assert!(read_response(stream).await.contains("not_an_image"));
    }
    wait_for(&app, "waiting", BODY_BUDGET, 0).await;
    wait_for(&app, "bytes", BODY_BUDGET, 0).await;
}

#[testing::test]
async fn one_address_leaves_body_memory_for_others() {
    let app = app_with_budget(Duration::from_secs(8)).await;
    // A caller's share is three quarters of the budget, which is 768 KiB.
    let mut large = start_image_request(&app, "127.0.0.1", BODY_BYTES).await;
    send(&mut large, BODY_BYTES - 1).await;
    wait_for_bytes(&app, BODY_BYTES as u64 - 1024).await;
    let response = app.post_raw("/faces/detect", "image/png", vec![0; 300 << 10]).await;
    let response = problem(response, 429, "overloaded").await;
    assert!(response.text("detail").contains("share"), "{response}");
    problem(app.post_raw("/faces/detect", "image/png", vec![0; UNCOUNTED_BYTES]).await, 415, "not_an_image")
        .await;
    let mut small = start_image_request(&app, "127.0.0.2", 300 << 10).await;
    send(&mut small, 300 << 10).await;
    assert!(read_response(small).await.contains("not_an_image"));
    assert!(
        gauge(&app, "bytes", BODY_BUDGET).await >= BODY_BYTES as u64 - 1024,
        "the large body must still be held"
    );
    drop(large);
}

#[testing::test]
async fn body_is_rejected_if_memory_stays_unavailable() {
    let app = app_with_budget(Duration::from_secs(8)).await;
    let mut first = start_image_request(&app, "127.0.0.2", BODY_BYTES).await;
    send(&mut first, BODY_BYTES - 1).await;
    wait_for_bytes(&app, BODY_BYTES as u64 - 1024).await;
    // A JSON body is counted three times, so this one needs the whole budget.
    let response = app.post_json("/faces/detect", &json!({"image_base64": "A".repeat(400 << 10)})).await;
    assert_eq!(response.headers()["retry-after"], "1");
    let problem = problem(response, 429, "overloaded").await;
    assert!(problem.text("detail").contains(BODY_BUDGET), "{problem}");
}

#[testing::test]
async fn body_larger_than_budget_is_read_alone() {
    let app = app_with_budget(Duration::from_secs(60)).await;
    let image = json!({"image_base64": "A".repeat(900 << 10)});
    problem(app.post_json("/faces/detect", &image).await, 415, "not_an_image").await;
    wait_for(&app, "bytes", BODY_BUDGET, 0).await;
}

#[testing::test]
async fn chunked_body_is_counted_by_received_bytes() {
    let app = app_with_budget(Duration::from_secs(60)).await;
    let analyzer = &app.state.services.analyzer;
    let images: Vec<_> = futures::future::join_all(
        (0..4).map(|_| analyzer.decode(png(640, 640).into(), Priority::Interactive)),
    )
    .await;
    let mut stream = start_request(&app, "127.0.0.1", "image/png", "transfer-encoding: chunked").await;
    // The decoder ignores the padding after the image. It makes the body large enough to be
    // counted.
    let mut image = png(640, 640);
    image.resize(image.len().max(UNCOUNTED_BYTES + 1), 0);
    stream.write_all(format!("{:x}\r\n", image.len()).as_bytes()).await.unwrap();
    stream.write_all(&image).await.unwrap();
    stream.write_all(b"\r\n0\r\n\r\n").await.unwrap();
    // The body has been read and now waits for memory for its pixels.
    wait_for(&app, "bytes", BODY_BUDGET, (image.len() as u64).next_multiple_of(1024)).await;
    drop(images);
    assert!(read_response(stream).await.starts_with("HTTP/1.1 200"));
    wait_for(&app, "bytes", BODY_BUDGET, 0).await;
}

#[testing::test]
async fn fetched_images_have_separate_budget() {
    let config = Config { body_budget: BUDGET_BYTES, image_limit: 600 << 10, ..Config::default() };
    let app = spawn(4, config, false).await;
    let site = Site::new(&[]).await;
    let image = |path: &str| json!({"url": format!("{}{path}", site.url)});
    let (client, url) = (app.client.clone(), format!("{}/faces/detect", app.url));
    let held = image("/held.jpg");
    let first = tokio::spawn(async move { client.post(url).json(&held).send().await.unwrap() });
    site.request_arrived.notified().await;
    // Two images need more than the free part of the budget. They are fetched after the response to
    // the first request.
    let body = json!({"a": image("/text"), "b": image("/text")});
    let (client, url) = (other_client(), format!("{}/faces/compare", app.url));
    let second = tokio::spawn(async move { client.post(url).json(&body).send().await.unwrap() });
    wait_for(&app, "waiting", "fetched_images", 1).await;
    assert_eq!(gauge(&app, "bytes", "fetched_images").await, 600 << 10);
    site.release.notify_one();
    problem(first.await.unwrap(), 422, "url_unreachable").await;
    problem(second.await.unwrap(), 415, "not_an_image").await;
    wait_for(&app, "bytes", "fetched_images", 0).await;
}

const PIXEL_BUDGET: &str = "decoded_pictures";

/// Returns a file that needs [`IMAGE_BYTES`] bytes when it is decoded.
fn drawing() -> Vec<u8> {
    png(SIDE, SIDE)
}

/// Returns a file of the same size with a face.
fn portrait() -> Vec<u8> {
    let mut image = image::load_from_memory(&drawing()).unwrap().into_rgb8();
    testing::draw_face(&mut image, 5, 5, 3);
    let mut file = std::io::Cursor::new(Vec::new());
    image.write_to(&mut file, image::ImageFormat::Png).unwrap();
    file.into_inner()
}

/// Acquires the memory of `images` images, with the priority of callers or of a crawl.
async fn hold(app: &App, images: usize, priority: Priority) -> Vec<pipeline::images::analyze::DecodedImage> {
    let analyzer = &app.state.services.analyzer;
    let decoding = (0..images).map(|_| analyzer.decode(drawing().into(), priority));
    join_all(decoding).await.into_iter().map(Result::unwrap).collect()
}

#[testing::test]
async fn decoded_images_never_exceed_memory_budget() {
    let app = spawn(2, Config::default(), false).await;
    assert_eq!(gauge(&app, "limit_bytes", PIXEL_BUDGET).await, 2 * IMAGE_BYTES);
    let path = "/faces/detect?passes=thorough&det_size=320";
    let calls = join_all((0..24).map(|_| app.post_raw(path, "image/png", portrait())));
    let mut calls = pin!(calls);
    let mut peak = 0;
    let responses = loop {
        match select(calls, pin!(gauge(&app, "bytes", PIXEL_BUDGET))).await {
            Either::Left((responses, _)) => break responses,
            Either::Right((held, remaining_calls)) => {
                peak = peak.max(held);
                calls = remaining_calls;
            }
        }
    };
    for response in responses {
        assert_eq!(ok(response).await.list("faces").len(), 1);
    }
    assert!((IMAGE_BYTES..=2 * IMAGE_BYTES).contains(&peak), "{peak}");
    wait_for(&app, "bytes", PIXEL_BUDGET, 0).await;
}

#[testing::test]
async fn multi_image_requests_need_memory_for_one_image() {
    let app = spawn(1, Config::default(), false).await;
    let batch: Vec<_> = (0..20).map(|_| ("image", portrait())).collect();
    let compare = [("image", portrait()), ("image", portrait())];
    let small = png(300, 300);
    let (batch, compared, searched, enhanced, detected, assessed) = tokio::join!(
        app.post_parts("/faces/detect/batch", &batch),
        app.post_parts("/faces/compare", &compare),
        app.post_raw("/faces/search", "image/png", portrait()),
        app.post_raw("/images/enhance", "image/png", small.clone()),
        app.post_raw("/faces/detect?enhance=auto", "image/png", small),
        app.post_raw("/images/quality", "image/png", drawing()),
    );
    let batch = ok(batch).await;
    assert!(batch.list("results").iter().all(|result| result["faces"][0].is_object()));
    assert_eq!(ok(compared).await["match"], true);
    assert!(enhanced.headers()["x-enhancement-scale"].to_str().unwrap().parse::<f32>().unwrap() > 2.0);
    for response in [searched, detected, assessed] {
        ok(response).await;
    }
    wait_for(&app, "bytes", PIXEL_BUDGET, 0).await;
}

/// Starts a site with two images.
async fn site() -> Site {
    let file = |height| {
        let bytes = png(SIDE, height);
        get(move || async move { ([(CONTENT_TYPE, "image/png")], bytes) })
    };
    Site::start(Router::new().route("/a.png", file(SIDE)).route("/b.png", file(SIDE - 1))).await
}

#[testing::test]
async fn crawl_leaves_memory_for_callers_and_continues_later() {
    let app = spawn(2, Config::default(), true).await;
    let site = site().await;
    // This lock keeps images from being stored. A job holds its analyzed image until it is stored.
    let store = &app.state.services.store;
    let collection = store.collections().get("default").await.unwrap().id;
    let mut lock_tx = store.begin().await.unwrap();
    store.suppressions().lock(lock_tx.conn(), collection, true).await.unwrap();
    let seeds = ["/a.png", "/b.png"].map(|path| format!("{}{path}", site.url));
    let crawl = json!({"seeds": seeds, "delay_ms": 0, "dedupe": "exact"});
    let crawl = app.create("/crawls", &crawl).await;
    // Background work may use three quarters of the budget, which is one and a half images.
    wait_for(&app, "waiting", PIXEL_BUDGET, 1).await;

    for _ in 0..5 {
        ok(app.post_raw("/faces/detect", "image/png", drawing()).await).await;
    }
    assert_eq!(
        gauge(&app, "waiting", PIXEL_BUDGET).await,
        1,
        "the second image of the crawl must still wait"
    );
    drop(lock_tx);
    let crawl = app.wait_for_crawl(crawl.text("id")).await;
    assert_eq!(crawl["counts"]["images"]["processed"], 2, "{crawl:#}");
    wait_for(&app, "bytes", PIXEL_BUDGET, 0).await;
}

#[testing::test]
async fn aborted_request_frees_place_in_memory_queue() {
    let app = spawn(2, Config::default(), false).await;
    let held = hold(&app, 2, Priority::Interactive).await;
    let send_image = || {
        let request =
            app.client.post(format!("{}/faces/detect", app.url)).header("content-type", "image/png");
        tokio::spawn(request.body(drawing()).send())
    };
    let (first, second) = (send_image(), send_image());
    wait_for(&app, "waiting", PIXEL_BUDGET, 2).await;
    first.abort();
    wait_for(&app, "waiting", PIXEL_BUDGET, 1).await;
    drop(held);
    ok(second.await.unwrap().unwrap()).await;
    drop(hold(&app, 2, Priority::Interactive).await);
    wait_for(&app, "bytes", PIXEL_BUDGET, 0).await;
}

#[testing::test]
async fn request_without_memory_in_time_receives_retry_after() {
    let config = Config { request_timeout: Duration::from_secs(6), ..Config::default() };
    let app = spawn(1, config, false).await;
    let held = hold(&app, 1, Priority::Interactive).await;
    let response = app.post_raw("/faces/detect", "image/png", drawing()).await;
    assert_eq!(response.headers()["retry-after"], "1");
    let problem = problem(response, 429, "overloaded").await;
    assert!(problem.text("detail").contains(PIXEL_BUDGET), "{problem}");
    drop(held);
    ok(app.post_raw("/faces/detect", "image/png", drawing()).await).await;
}
