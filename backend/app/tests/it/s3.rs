//! Tests crops, chips and thumbnails in a bucket of an S3 server that checks signatures.
#![cfg(unix)]

use crate::common::bucket::{Bucket, URL};
use crate::common::process::{Finished, TestFolder};
use crate::common::service::Service;
use axum::Router;
use axum::response::Html;
use axum::routing::get as route;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::TryStreamExt;
use pipeline::Maintenance;
use reqwest::Method;
use serde_json::json;
use std::process::Command;
use std::time::Duration;
use testing::server::programs;
use testing::{TestDatabase, files_below};

fn on(place: &TestFolder, database: &TestDatabase, bucket: &Bucket, args: &[&str]) -> Command {
    let mut command = place.facecrawl(args);
    command.env("DATABASE_URL", database.url()).env("POSTGRES_BIN_DIR", programs());
    command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("CRAWL_DELAY_MS", "0").envs(bucket.variables());
    command
}

async fn objects(bucket: &Bucket) -> Vec<String> {
    bucket.blobs().list().map_ok(|blob| blob.key).try_collect().await.unwrap()
}

#[testing::needs(s3)]
#[testing::test(flavor = "multi_thread")]
async fn pictures_go_into_a_bucket_and_what_is_erased_leaves_it() {
    let ada = testing::picture("ada.jpg");
    let bucket = Bucket::start().await;
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    place.put("album/ada.jpg", &ada);
    place.put("album/ben.jpg", testing::picture("ben.jpg"));
    Finished::of(&mut on(&place, &database, &bucket, &["scan", "album"])).expect(0);
    assert_eq!(objects(&bucket).await.len(), 6, "a thumbnail, a crop and a chip per image");
    assert!(!place.path().join("data/blobs").exists());

    let service = Service::start(&mut on(&place, &database, &bucket, &["up", "--port", "0"]));
    let caller = service.caller();
    let faces = caller.get("/faces").await;
    for face in faces["faces"].as_array().unwrap() {
        let id = face["id"].as_str().unwrap();
        let crop = caller.bytes(&format!("/faces/{id}/crop")).await;
        let chip = caller.bytes(&format!("/faces/{id}/crop?kind=chip")).await;
        assert!(crop.starts_with(b"\xff\xd8") && chip.starts_with(b"\x89PNG"));
        let thumbnail = format!("/images/{}/thumbnail", face["image_id"].as_str().unwrap());
        assert!(caller.bytes(&thumbnail).await.starts_with(b"\xff\xd8"));
    }

    // The backup of a bucket is an ordinary folder.
    let report =
        Finished::of(&mut on(&place, &database, &bucket, &["backup", "kept", "--json"])).expect(0).json();
    assert_eq!(report["blobs"]["copied"], 6, "{report}");
    assert_eq!(files_below(&place.path().join("kept/blobs")).len(), 6);

    // The sweep removes only blobs that no row references.
    let (store, blobs) = (database.store(), bucket.blobs());
    let maintenance = Maintenance::new(store, blobs.clone());
    let orphan = blobs.put("crops", "jpg", bytes::Bytes::from_static(b"nobody's")).await.unwrap();
    let swept = maintenance.sweep(Duration::from_secs(3600), true, false).await.unwrap();
    assert_eq!(
        (swept.blobs, swept.orphans, swept.missing),
        (7, 0, Some(0)),
        "a new blob may still get its row"
    );
    // The server reports the age of a blob in whole seconds.
    let swept = loop {
        let swept = maintenance.sweep(Duration::ZERO, true, false).await.unwrap();
        if swept.orphans > 0 {
            break swept;
        }
    };
    assert_eq!((swept.removed, swept.missing), (1, Some(0)));
    assert_eq!(blobs.get(&orphan).await.unwrap(), None);

    let likeness = json!({"image_base64": BASE64_STANDARD.encode(&ada)});
    let done = caller.ask(201, Method::POST, "/erasures", Some(&likeness)).await;
    assert_eq!(done["images"], 1, "{done}");
    assert_eq!(objects(&bucket).await.len(), 3);
    let pruned =
        Finished::of(&mut on(&place, &database, &bucket, &["backup", "kept", "--json"])).expect(0).json();
    assert_eq!((&pruned["blobs"]["removed"], &pruned["blobs"]["there"]), (&json!(3), &json!(3)), "{pruned}");
}

#[testing::needs(s3)]
#[testing::test(flavor = "multi_thread")]
async fn a_bucket_that_does_not_do_is_said_at_the_start() {
    let mut bucket = Bucket::start().await;
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let refused = |bucket: &Bucket, name: &str, value: &str, words: &[&str]| {
        let mut command = on(&place, &database, bucket, &["serve", "--port", "0"]);
        let refused = Finished::of(command.env(name, value)).expect(1);
        for word in words {
            assert!(refused.stderr.contains(word), "{name}={value}: {}", refused.stderr);
        }
        assert!(!refused.stderr.contains("not the secret"), "{}", refused.stderr);
    };
    refused(
        &bucket,
        "AWS_SECRET_ACCESS_KEY",
        "not the secret",
        &[&format!("BLOB_STORE_URL={URL}"), "AWS_ENDPOINT_URL=http://127.0.0.1:", "SignatureDoesNotMatch"],
    );
    refused(&bucket, "AWS_ACCESS_KEY_ID", "AKIANOBODY", &["InvalidAccessKeyId"]);
    refused(&bucket, "BLOB_STORE_URL", "s3://elsewhere", &["BLOB_STORE_URL=s3://elsewhere", "NoSuchBucket"]);
    refused(&bucket, "BLOB_STORE_URL", "/proc/nowhere", &["BLOB_STORE_URL=/proc/nowhere"]);
    bucket.stop();
    refused(
        &bucket,
        "AWS_REGION",
        "us-east-1",
        &["AWS_ENDPOINT_URL=http://127.0.0.1:", "error sending request"],
    );
}

#[testing::needs(s3)]
#[testing::test(flavor = "multi_thread")]
async fn while_the_bucket_is_away_jobs_wait_and_no_row_is_without_its_blobs() {
    let ada = testing::picture("ada.jpg");
    let mut bucket = Bucket::start().await;
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let service = Service::start(&mut on(&place, &database, &bucket, &["up", "--port", "0"]));
    let caller = service.caller();
    let router = Router::new()
        .route("/", route(async || Html("<img src=/ada.jpg>")))
        .route("/ada.jpg", route(async move || ada));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let seed = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });

    bucket.stop();
    let crawl =
        caller.ask(201, Method::POST, "/crawls", Some(&json!({"seeds": [seed], "delay_ms": 0}))).await;
    let waiting = |jobs: &serde_json::Value| !jobs["jobs"].as_array().unwrap().is_empty();
    let jobs = caller.until("/jobs?state=retryable&kind=scan_image", waiting).await;
    let error = jobs["jobs"][0]["last_error"].as_str().unwrap();
    assert!(error.contains("blob store"), "{jobs}");
    assert_eq!(caller.get("/faces").await["faces"], json!([]));
    assert_eq!(caller.get("/images").await["images"], json!([]));

    // The server restarts with different credentials. The bucket is new, so the service is
    // restarted too. It stops first, because its requests would count among the first four, which
    // the server does not authenticate.
    drop(service);
    bucket.start_again().await;
    database
        .execute("update jobs set lease_until = now() - interval '1 second' where state = 'running'")
        .await;
    database.execute("update jobs set scheduled_at = now() where state = 'retryable'").await;
    let service = Service::start(&mut on(&place, &database, &bucket, &["up", "--port", "0"]));
    let caller = service.caller();
    let path = format!("/crawls/{}", crawl["id"].as_str().unwrap());
    let crawl = caller.until(&path, |crawl| crawl["state"] != "running").await;
    assert_eq!((&crawl["state"], &crawl["counts"]["faces"]), (&json!("completed"), &json!(1)), "{crawl}");
    let maintenance = Maintenance::new(database.store(), bucket.blobs());
    let swept = maintenance.sweep(Duration::ZERO, true, true).await.unwrap();
    assert_eq!((swept.blobs, swept.missing), (3, Some(0)), "{swept:?}");
}
