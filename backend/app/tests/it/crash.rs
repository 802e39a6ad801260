//! Tests that accepted work is neither lost nor done twice when the service is killed.
#![cfg(unix)]

use crate::common::process::{Finished, TestFolder};
use crate::common::service::{Service, get, until};
use axum::Router;
use axum::extract::{Path, State};
use axum::response::{Html, IntoResponse};
use axum::routing::get as route;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use testing::{TestDatabase, files_below};
use tokio::sync::watch;

/// Number of images sent before the gate closes.
const BEFORE_THE_GATE: usize = 6;

/// A page with images. After `BEFORE_THE_GATE` images, the remaining ones are not sent until the
/// gate opens.
struct Site {
    images: BTreeMap<String, Vec<u8>>,
    asked: AtomicUsize,
    open: watch::Sender<bool>,
}

async fn page(State(site): State<Arc<Site>>) -> Html<String> {
    Html(site.images.keys().map(|name| format!("<img src=\"/i/{name}\">")).collect())
}

async fn image(State(site): State<Arc<Site>>, Path(name): Path<String>) -> impl IntoResponse {
    if site.asked.fetch_add(1, Ordering::SeqCst) >= BEFORE_THE_GATE {
        let _ = site.open.subscribe().wait_for(|open| *open).await;
    }
    site.images[&name].clone()
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn a_service_killed_in_mid_crawl_loses_nothing_and_stores_nothing_twice() {
    let images: BTreeMap<String, Vec<u8>> =
        (testing::gallery::names().take(24)).map(|name| (name.to_owned(), testing::picture(name))).collect();
    let total = images.len() as i64;
    let site = Arc::new(Site { images, asked: AtomicUsize::new(0), open: watch::Sender::new(false) });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let seed = format!("http://{}/", listener.local_addr().unwrap());
    let router =
        Router::new().route("/", route(page)).route("/i/{name}", route(image)).with_state(site.clone());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });

    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    let start = || {
        let mut command = place.facecrawl(&["up", "--port", "0"]);
        command.env("DATABASE_URL", database.url());
        command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("CRAWL_DELAY_MS", "0");
        Service::start(&mut command)
    };
    let mut service = start();
    assert_eq!(get(&format!("{}/health/live", service.base)).await.0, 200);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let created = client
        .post(format!("{}/crawls", service.base))
        .json(&json!({ "seeds": [seed] }))
        .send()
        .await
        .unwrap();
    let created: Value = created.json().await.unwrap();
    let id = created["id"].as_str().unwrap().to_owned();

    // Some images are stored, others are being processed. Kill the service now.
    let crawl = |base: &str| format!("{base}/crawls/{id}");
    let stored = |answer: &Value| {
        let images = &answer["counts"]["images"];
        images["processed"].as_i64().unwrap() + images["duplicate"].as_i64().unwrap()
    };
    until(&crawl(&service.base), |answer| stored(answer) == BEFORE_THE_GATE as i64).await;
    service.signal(Signal::KILL);
    let _ = service.ended();

    // The test does not wait until the leases expire.
    database
        .execute("update jobs set lease_until = now() - interval '1 second' where state = 'running'")
        .await;
    site.open.send_replace(true);
    let service = start();
    let answer = until(&crawl(&service.base), |answer| answer["state"] != "running").await;
    assert_eq!(answer["state"], "completed", "{answer:#}");
    assert_eq!(answer["counts"]["images"]["failed"], 0, "{answer:#}");
    assert_eq!(stored(&answer), total, "every image is accounted for: {answer:#}");

    let (_, listed) = get(&format!("{}/images?limit=1000", service.base)).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let listed = listed["images"].as_array().unwrap();
    let different: HashSet<&str> = listed.iter().map(|image| image["sha256"].as_str().unwrap()).collect();
    assert_eq!(different.len(), listed.len(), "no image is stored twice");
    assert_eq!(listed.len() as i64, answer["counts"]["images"]["processed"].as_i64().unwrap());
}

#[testing::test(flavor = "multi_thread")]
async fn a_collection_that_was_deleted_is_erased_also_when_the_service_was_killed() {
    let ada = testing::picture("ada.jpg");
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    place.put("album/ada.jpg", ada);
    let facecrawl = |args: &[&str]| {
        let mut command = place.facecrawl(args);
        command.env("DATABASE_URL", database.url());
        command
    };
    Finished::of(&mut facecrawl(&["scan", "album", "--collection", "press"])).expect(0);
    let blobs = place.path().join("data/blobs");
    assert!(!files_below(&blobs).is_empty());
    let mut service = Service::start(&mut facecrawl(&["up", "--port", "0"]));
    assert_eq!(get(&format!("{}/collections/press", service.base)).await.0, 200);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let deleted = client.delete(format!("{}/collections/press", service.base)).send().await.unwrap();
    service.signal(Signal::KILL);
    assert_eq!(deleted.status(), 202);
    let _ = service.ended();
    database
        .execute("update jobs set lease_until = now() - interval '1 second' where state = 'running'")
        .await;

    let service = Service::start(&mut facecrawl(&["up", "--port", "0"]));
    assert_eq!(get(&format!("{}/collections/press", service.base)).await.0, 404);
    let log = format!("{}/audit?action=collection.erased", service.base);
    until(&log, |log| !log["records"].as_array().unwrap().is_empty()).await;
    assert_eq!(files_below(&blobs), [] as [std::path::PathBuf; 0]);
    let (_, images) = get(&format!("{}/jobs?state=discarded", service.base)).await;
    assert!(images.contains("\"jobs\":[]"), "{images}");
}
