//! Tests the memory limit for decoded images.
use super::{PICTURE, SIDE, gauge, spawn, until};
use crate::support::pictures::drawn;
use crate::support::{App, json_of, ok, problem};
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use futures::future::{Either, join_all, select};
use inference::Priority;
use reqwest::StatusCode;
use serde_json::json;
use server::Config;
use std::pin::pin;
use std::time::Duration;

const HELD: &str = "decoded_pictures";

/// Returns a file that needs [`PICTURE`] bytes when it is decoded.
fn picture() -> Vec<u8> {
    drawn(SIDE, SIDE)
}

/// Returns a file of the same size with a face.
fn portrait() -> Vec<u8> {
    let mut picture = image::load_from_memory(&picture()).unwrap().into_rgb8();
    testing::draw_face(&mut picture, 5, 5, 3);
    let mut file = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut file, image::ImageFormat::Png).unwrap();
    file.into_inner()
}

/// Acquires the memory of `pictures` images, with the priority of callers or of a crawl.
async fn hold(
    app: &App,
    pictures: usize,
    priority: Priority,
) -> Vec<pipeline::images::analyze::DecodedImage> {
    let analyzer = &app.state.services.analyzer;
    let decoding = (0..pictures).map(|_| analyzer.decode(picture().into(), priority));
    join_all(decoding).await.into_iter().map(Result::unwrap).collect()
}

#[testing::test]
async fn however_many_pictures_come_no_more_are_decoded_than_there_is_room_for() {
    let app = spawn(2, Config::default(), false).await;
    assert_eq!(gauge(&app, "limit_bytes", HELD).await, 2 * PICTURE);
    let path = "/faces/detect?passes=thorough&det_size=320";
    let calls = join_all((0..24).map(|_| app.post_raw(path, "image/png", portrait())));
    let mut calls = pin!(calls);
    let mut most = 0;
    let answers = loop {
        match select(calls, pin!(gauge(&app, "bytes", HELD))).await {
            Either::Left((answers, _)) => break answers,
            Either::Right((held, rest)) => {
                most = most.max(held);
                calls = rest;
            }
        }
    };
    for answer in answers {
        assert_eq!(ok(answer).await["faces"].as_array().unwrap().len(), 1);
    }
    assert!((PICTURE..=2 * PICTURE).contains(&most), "{most}");
    until(&app, "bytes", HELD, 0).await;
}

#[testing::test]
async fn what_takes_several_pictures_needs_room_for_one() {
    let app = spawn(1, Config::default(), false).await;
    let batch: Vec<_> = (0..20).map(|_| ("image", portrait())).collect();
    let compare = [("image", portrait()), ("image", portrait())];
    let small = drawn(300, 300);
    let (batch, compared, searched, enhanced, looked, judged) = tokio::join!(
        app.post_parts("/faces/detect/batch", &batch),
        app.post_parts("/faces/compare", &compare),
        app.post_raw("/faces/search", "image/png", portrait()),
        app.post_raw("/images/enhance", "image/png", small.clone()),
        app.post_raw("/faces/detect?enhance=auto", "image/png", small),
        app.post_raw("/images/quality", "image/png", picture()),
    );
    let batch = ok(batch).await;
    assert!(batch["results"].as_array().unwrap().iter().all(|result| result["faces"][0].is_object()));
    assert_eq!(ok(compared).await["match"], true);
    assert!(enhanced.headers()["x-enhancement-scale"].to_str().unwrap().parse::<f32>().unwrap() > 2.0);
    for answer in [searched, looked, judged] {
        ok(answer).await;
    }
    until(&app, "bytes", HELD, 0).await;
}

/// Starts a site with two images and returns its URL.
async fn site() -> String {
    let file = |height| {
        let bytes = drawn(SIDE, height);
        get(move || async move { ([(CONTENT_TYPE, "image/png")], bytes) })
    };
    let router = Router::new().route("/a.png", file(SIDE)).route("/b.png", file(SIDE - 1));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

#[testing::test]
async fn a_crawl_leaves_room_for_callers_and_goes_on_when_it_has_some() {
    let app = spawn(2, Config::default(), true).await;
    let site = site().await;
    // This lock keeps images from being stored. A job holds its analyzed image until it is stored.
    let store = &app.state.services.store;
    let collection = store.collection("default").await.unwrap().id;
    let mut erasing = store.begin().await.unwrap();
    store.lock_suppressions(erasing.conn(), collection, true).await.unwrap();
    let seeds = [format!("{site}/a.png"), format!("{site}/b.png")];
    let crawl = json!({"seeds": seeds, "delay_ms": 0, "dedupe": "exact"});
    let crawl = json_of(app.post_json("/crawls", &crawl).await, StatusCode::CREATED).await;
    // Background work may use three quarters of the budget, which is one and a half images.
    until(&app, "waiting", HELD, 1).await;

    for _ in 0..5 {
        ok(app.post_raw("/faces/detect", "image/png", picture()).await).await;
    }
    assert_eq!(gauge(&app, "waiting", HELD).await, 1, "the second image of the crawl must still wait");
    drop(erasing);
    let crawl = app.crawl_end(crawl["id"].as_str().unwrap()).await;
    assert_eq!(crawl["counts"]["images"]["processed"], 2, "{crawl:#}");
    until(&app, "bytes", HELD, 0).await;
}

#[testing::test]
async fn a_caller_who_leaves_gives_his_place_to_the_next() {
    let app = spawn(2, Config::default(), false).await;
    let held = hold(&app, 2, Priority::Interactive).await;
    let ask = || {
        let request =
            app.client.post(format!("{}/faces/detect", app.url)).header("content-type", "image/png");
        tokio::spawn(request.body(picture()).send())
    };
    let (first, second) = (ask(), ask());
    until(&app, "waiting", HELD, 2).await;
    first.abort();
    until(&app, "waiting", HELD, 1).await;
    drop(held);
    ok(second.await.unwrap().unwrap()).await;
    drop(hold(&app, 2, Priority::Interactive).await);
    until(&app, "bytes", HELD, 0).await;
}

#[testing::test]
async fn a_caller_for_whom_there_is_no_room_in_time_is_told_to_come_back() {
    let config = Config { request_timeout: Duration::from_secs(6), ..Config::default() };
    let app = spawn(1, config, false).await;
    let held = hold(&app, 1, Priority::Interactive).await;
    let refused = app.post_raw("/faces/detect", "image/png", picture()).await;
    assert_eq!(refused.headers()["retry-after"], "1");
    let problem = problem(refused, 429, "overloaded").await;
    assert!(problem["detail"].as_str().unwrap().contains(HELD), "{problem}");
    drop(held);
    ok(app.post_raw("/faces/detect", "image/png", picture()).await).await;
}
