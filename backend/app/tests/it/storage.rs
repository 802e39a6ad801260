//! Tests backup and restore, and blobs in a bucket of an S3 server. A restored service has the same
//! faces and images, except those of people who were erased after the backup.
use crate::common::bucket::{Bucket, URL};
use crate::common::service::{
    Caller, Output, Service, TestFolder, assert_contains, expire_leases, image_json, psql, through_shell,
};
use crate::common::sites::{serve, serve_image};
use axum::Router;
use axum::response::Html;
use axum::routing::get as route;
use futures::TryStreamExt;
use pipeline::Maintenance;
use reqwest::Method;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use testing::database::programs;
use testing::{TestDatabase, files_below};
use tokio::sync::{Notify, watch};

const SCOPES: &str = "analyze,read,search,crawl,write,erase,admin";

/// Returns a command that uses a database and requires keys, with a suppression secret.
fn service_command(folder: &TestFolder, database: &TestDatabase, args: &[&str]) -> Command {
    let mut command = folder.facecrawl_with(database, args);
    command
        .env("POSTGRES_BIN_DIR", programs())
        .env("AUTH", "keys")
        .env("SUPPRESSION_SECRET", "thirty-two characters, kept apart.");
    command
}

/// Serves a page with one image. The image is sent when the gate opens. The `Notify` is notified
/// when the image is requested.
async fn gated_site(image: Vec<u8>) -> (String, Arc<Notify>, watch::Sender<bool>) {
    let (image_requested, gate) = (Arc::new(Notify::new()), watch::Sender::new(false));
    let (notify_requested, gate_opened) = (image_requested.clone(), gate.clone());
    let send = move || async move {
        notify_requested.notify_one();
        let _ = gate_opened.subscribe().wait_for(|is_open| *is_open).await;
        image
    };
    let router =
        Router::new().route("/", route(async || Html("<img src=/held.jpg>"))).route("/held.jpg", route(send));
    (serve(router).await, image_requested, gate)
}

/// Returns every face and image of the service, with the bytes of its image.
async fn stored_images(caller: &Caller) -> BTreeMap<String, Vec<u8>> {
    let mut images = BTreeMap::new();
    for face in caller.get("/faces?limit=1000").await["faces"].as_array().unwrap() {
        let id = face["id"].as_str().unwrap();
        images.insert(format!("{id} crop"), caller.bytes(&format!("/faces/{id}/crop")).await);
        images.insert(format!("{id} chip"), caller.bytes(&format!("/faces/{id}/crop?kind=chip")).await);
    }
    for image in caller.get("/images?limit=1000").await["images"].as_array().unwrap() {
        let id = image["id"].as_str().unwrap();
        images.insert(format!("{id} thumbnail"), caller.bytes(&format!("/images/{id}/thumbnail")).await);
    }
    images
}

/// Returns the faces that a search finds, with their similarity.
async fn search_faces(caller: &Caller, file: &str) -> Vec<(String, f64)> {
    let response = caller.request(200, Method::POST, "/faces/search", Some(&image_json(file))).await;
    let matches = response["matches"].as_array().unwrap().clone();
    matches
        .iter()
        .map(|hit| (hit["face_id"].as_str().unwrap().to_owned(), hit["similarity"].as_f64().unwrap()))
        .collect()
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn restore_keeps_faces_and_repeats_later_erasures() {
    let (old_folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let run = |args: &[&str]| Output::run(&mut service_command(&old_folder, &database, args));
    for file in ["ben.jpg", "cora.jpg", "cora_2.jpg", "dan.jpg"] {
        old_folder.put(&format!("album/{file}"), testing::drawing(file));
    }
    old_folder.put("album/ada.jpg", testing::drawing("ada.jpg"));
    run(&["scan", "album"]).success();
    run(&["scan", "album/ben.jpg", "--collection", "closed"]).success();
    run(&["index", "rebuild"]).success();
    let key = |name: &str| {
        let created = run(&["keys", "create", "--all", "--scope", SCOPES, "--name", name]);
        created.success().stdout.trim().to_owned()
    };
    let (key, lost_key) = (key("kept"), key("lost"));
    let mut service = Service::start(&mut service_command(&old_folder, &database, &["up", "--port", "0"]));
    let caller = Caller { base: service.base.clone(), key: key.clone() };

    // A person is enrolled, and a worker holds a job.
    let subject = caller.request(201, Method::POST, "/subjects", Some(&json!({"name": "Ada"}))).await;
    let ada_faces = search_faces(&caller, "ada_2.jpg").await;
    let enrol = json!({"face_ids": [ada_faces[0].0], "force": true});
    let faces_of = format!("/subjects/{}/faces", subject["id"].as_str().unwrap());
    caller.request(200, Method::POST, &faces_of, Some(&enrol)).await;
    let (site, image_requested, gate) = gated_site(testing::drawing("ada_3.jpg")).await;
    let path = caller.crawl(&json!({"seeds": [site], "delay_ms": 0})).await;
    image_requested.notified().await;

    let before = stored_images(&caller).await;
    let backup = old_folder.path().join("kept");
    let backup_folder = backup.to_str().unwrap();
    let report = run(&["backup", backup_folder, "--json"]).success().json();
    let blobs = files_below(&backup.join("blobs")).len();
    assert_eq!((&report["blobs"]["copied"], &report["blobs"]["missing"]), (&json!(blobs), &json!(0)));
    let rerun = run(&["backup", backup_folder, "--json"]).success().json();
    assert_eq!((&rerun["blobs"]["copied"], &rerun["blobs"]["there"]), (&json!(0), &json!(blobs)), "{rerun}");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&backup), mode(&backup.join("faces.dump"))), (0o700, 0o600));

    // A person, an image, a collection and a key are deleted after the backup.
    let cora = search_faces(&caller, "cora.jpg").await;
    assert_eq!(cora.len(), 2);
    let mut erasure_body = image_json("cora.jpg");
    erasure_body["suppress_person"] = json!(true);
    caller.request(201, Method::POST, "/erasures", Some(&erasure_body)).await;
    let images = caller.get("/images").await;
    let other = (images["images"].as_array().unwrap().iter())
        .find(|image| image["sources"][0]["image_url"].as_str().unwrap().ends_with("dan.jpg"))
        .unwrap()["id"]
        .clone();
    let other = format!("/images/{}", other.as_str().unwrap());
    caller.request(204, Method::DELETE, &other, None).await;
    caller.request(202, Method::DELETE, "/collections/closed", None).await;
    let keys = run(&["keys", "list", "--json"]).success().json();
    let lost_key_row = keys["keys"].as_array().unwrap().iter().find(|key| key["name"] == "lost").unwrap();
    run(&["keys", "revoke", lost_key_row["id"].as_str().unwrap()]).success();
    let dump = std::fs::read(backup.join("faces.dump")).unwrap();
    run(&["backup", "--only-erasures", backup_folder]).success();
    assert_eq!(std::fs::read(backup.join("faces.dump")).unwrap(), dump);
    let expected = stored_images(&caller).await;
    let faces_before_loss = search_faces(&caller, "ada_2.jpg").await;
    service.kill();

    // The machine and the database are lost, but the backup still exists.
    let (folder, restored) = (TestFolder::new(), TestDatabase::empty().await);
    let run = |args: &[&str]| Output::run(&mut service_command(&folder, &restored, args));
    let report = run(&["restore", backup_folder, "--json"]).success().json();
    let erased = &report["erased_again"];
    assert_eq!((&erased["images"], &erased["collections"]), (&json!(3), &json!(1)), "{report}");
    assert_eq!(report["blobs"]["missing"], 0, "{report}");
    run(&["restore", backup_folder]).fails(1, &["not empty"]);
    let migrated = run(&["migrate", "--json"]).success().json();
    assert_eq!(migrated["migrations_run"], 0);
    expire_leases(&restored).await;

    let service = Service::start(&mut service_command(&folder, &restored, &["up", "--port", "0"]));
    let caller = Caller { base: service.base.clone(), key };
    assert_eq!(stored_images(&caller).await, expected, "the same faces, the same bytes");
    assert!(expected.len() < before.len() && expected.iter().all(|(name, bytes)| before[name] == *bytes));
    assert_eq!(search_faces(&caller, "ada_2.jpg").await, faces_before_loss);
    assert_eq!(search_faces(&caller, "cora_2.jpg").await, []);
    assert_eq!(caller.get("/subjects").await["subjects"][0]["face_count"], 1);
    let stranger = Caller { base: service.base.clone(), key: lost_key };
    stranger.request(401, Method::GET, "/faces", None).await;
    caller.request(404, Method::GET, "/collections/closed", None).await;
    let audit_path = "/audit?action=collection.erased";
    caller.until(audit_path, |log| !log["records"].as_array().unwrap().is_empty()).await;
    assert!(!caller.get("/audit?action=erasure.reapplied").await["records"].as_array().unwrap().is_empty());

    // The interrupted job is completed, and queries use the index.
    gate.send_replace(true);
    let crawl = caller.wait_for_crawl_end(&path).await;
    assert_eq!((&crawl["state"], &crawl["counts"]["faces"]), (&json!("completed"), &json!(1)), "{crawl}");
    assert_eq!(search_faces(&caller, "ada_2.jpg").await.len(), faces_before_loss.len() + 1);
    let plan = psql(
        &restored.url(),
        "set enable_seqscan = off; set enable_sort = off; explain select id from faces where model_id = 1
         order by embedding::halfvec(128) <=> (select embedding::halfvec(128) from faces limit 1) limit 3",
    );
    assert!(plan.contains("faces_embedding_hnsw_1"), "{plan}");

    // A scan does not restore the erased person either.
    folder.put("new/cora.jpg", testing::drawing("cora_2.jpg"));
    let scanned = run(&["scan", "new", "--json"]).success().json();
    assert_eq!(scanned["images"]["suppressed"], 1, "{scanned}");
    let swept = run(&["sweep", "--json"]).success().json();
    assert_eq!(swept["missing"], 0, "{swept}");
}

#[testing::test(flavor = "multi_thread")]
async fn restores_private_database_and_reports_damaged_blob() {
    let folder = TestFolder::new();
    folder.put("album/ada.jpg", testing::drawing("ada.jpg"));
    let facecrawl = |args: &[&str]| {
        let mut command = folder.facecrawl(args);
        Output::run(command.env("POSTGRES_BIN_DIR", programs()))
    };
    facecrawl(&["scan", "album"]).success();
    facecrawl(&["backup", "kept"]).success();
    let blob = files_below(&folder.path().join("kept/blobs/parts")).remove(0);
    std::fs::write(&blob, b"other content").unwrap();
    let restored = facecrawl(&["restore", "kept", "--data-dir", "other"]).assert_status(3);
    assert_contains(&restored.stdout, &["0 copied", "missing: parts/"]);
    let scanned = facecrawl(&["scan", "album", "--data-dir", "other", "--json"]).success().json();
    assert_eq!(scanned["images"]["duplicate"], 1, "the image is already stored: {scanned}");

    std::fs::remove_file(folder.path().join("kept/erasures.jsonl")).unwrap();
    facecrawl(&["restore", "kept", "--data-dir", "third"]).fails(2, &["--erasures"]);
}

/// Returns the paths below a folder, with the folder, that other users can enter or read.
fn paths_open_to_others(folder: &Path) -> Vec<PathBuf> {
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    let mut open_paths: Vec<PathBuf> =
        Some(folder.to_owned()).filter(|path| mode(path) & 0o077 != 0).into_iter().collect();
    if folder.is_dir() {
        open_paths.extend(
            std::fs::read_dir(folder).unwrap().flat_map(|entry| paths_open_to_others(&entry.unwrap().path())),
        );
    }
    open_paths
}

#[testing::test(flavor = "multi_thread")]
async fn backup_is_readable_only_by_owner() {
    let folder = TestFolder::new();
    folder.put("album/ada.jpg", testing::drawing("ada.jpg"));
    let facecrawl = |args: &[&str]| {
        // Without a mask, a file is readable by everybody unless the program restricts it.
        let mut command = through_shell("umask 0; exec \"$0\" \"$@\"", &folder.facecrawl(args));
        Output::run(command.env("POSTGRES_BIN_DIR", programs()))
    };
    facecrawl(&["scan", "album"]).success();
    // These parts of the data folder contain personal data. Postgres restricts its own folder.
    for path in ["data/blobs", "data/postgres"] {
        assert_eq!(paths_open_to_others(&folder.path().join(path)), [] as [PathBuf; 0], "{path}");
    }
    let backup = folder.path().join("kept");
    std::fs::create_dir(&backup).unwrap();
    std::fs::set_permissions(&backup, Permissions::from_mode(0o755)).unwrap();
    facecrawl(&["backup", "kept"]).success();
    assert_eq!(paths_open_to_others(&backup), [] as [PathBuf; 0]);
    // A file of an earlier version is restricted too.
    let blob = files_below(&backup.join("blobs/parts")).remove(0);
    std::fs::set_permissions(&blob, Permissions::from_mode(0o644)).unwrap();
    std::fs::set_permissions(backup.join("blobs"), Permissions::from_mode(0o755)).unwrap();
    facecrawl(&["backup", "kept"]).success();
    assert_eq!(paths_open_to_others(&backup), [] as [PathBuf; 0]);
    facecrawl(&["restore", "kept", "--data-dir", "other"]).success();
    assert_eq!(paths_open_to_others(&folder.path().join("other/blobs")), [] as [PathBuf; 0]);
    facecrawl(&["detect", "album/ada.jpg", "--draw", "drawn.png"]).success();
    assert_eq!(paths_open_to_others(&folder.path().join("drawn.png")), [] as [PathBuf; 0]);
}

fn bucket_command(folder: &TestFolder, database: &TestDatabase, bucket: &Bucket, args: &[&str]) -> Command {
    let mut command = folder.facecrawl_with(database, args);
    command.env("POSTGRES_BIN_DIR", programs()).envs(bucket.variables());
    command
}

async fn object_keys(bucket: &Bucket) -> Vec<String> {
    bucket.blobs().list().map_ok(|blob| blob.key).try_collect().await.unwrap()
}

#[testing::needs(s3)]
#[testing::test(flavor = "multi_thread")]
async fn bucket_stores_blobs_and_deletes_erased_ones() {
    let ada = testing::drawing("ada.jpg");
    let bucket = Bucket::start().await;
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    folder.put("album/ada.jpg", &ada);
    folder.put("album/ben.jpg", testing::drawing("ben.jpg"));
    let run = |args: &[&str]| Output::run(&mut bucket_command(&folder, &database, &bucket, args)).success();
    run(&["scan", "album"]);
    assert_eq!(object_keys(&bucket).await.len(), 2, "one blob for each image");
    assert!(!folder.path().join("data/blobs").exists());

    let service = Service::start(&mut bucket_command(&folder, &database, &bucket, &["up", "--port", "0"]));
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
    let report = run(&["backup", "kept", "--json"]).json();
    assert_eq!(report["blobs"]["copied"], 2, "{report}");
    assert_eq!(files_below(&folder.path().join("kept/blobs")).len(), 2);

    // The sweep removes only blobs that no row references.
    let (store, blobs) = (database.store(), bucket.blobs());
    let maintenance = Maintenance::new(store, blobs.clone());
    let orphan = blobs.put("crops", "jpg", bytes::Bytes::from_static(b"nobody's")).await.unwrap();
    let swept = maintenance.sweep(Duration::from_secs(3600), true, false).await.unwrap();
    assert_eq!(
        (swept.blobs, swept.orphans, swept.missing),
        (3, 0, Some(0)),
        "a row may still be inserted for a new blob"
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

    let erasure = caller.request(201, Method::POST, "/erasures", Some(&image_json("ada.jpg"))).await;
    assert_eq!(erasure["images"], 1, "{erasure}");
    assert_eq!(object_keys(&bucket).await.len(), 1);
    let pruned = run(&["backup", "kept", "--json"]).json();
    assert_eq!((&pruned["blobs"]["removed"], &pruned["blobs"]["there"]), (&json!(1), &json!(1)), "{pruned}");
}

#[testing::needs(s3)]
#[testing::test(flavor = "multi_thread")]
async fn unusable_blob_store_is_reported_at_start() {
    let mut bucket = Bucket::start().await;
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let refused = |bucket: &Bucket, name: &str, value: &str, words: &[&str]| {
        let mut command = bucket_command(&folder, &database, bucket, &["serve", "--port", "0"]);
        let refused = Output::run(command.env(name, value)).fails(1, words);
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
async fn jobs_wait_during_bucket_outage_without_missing_blobs() {
    let ada = testing::drawing("ada.jpg");
    let mut bucket = Bucket::start().await;
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let service = Service::start(&mut bucket_command(&folder, &database, &bucket, &["up", "--port", "0"]));
    let caller = service.caller();
    let seed = serve_image(ada).await;
    bucket.stop();
    let path = caller.crawl(&json!({"seeds": [seed], "delay_ms": 0})).await;
    let has_jobs = |jobs: &serde_json::Value| !jobs["jobs"].as_array().unwrap().is_empty();
    let jobs = caller.until("/jobs?state=retryable&kind=scan_image", has_jobs).await;
    let error = jobs["jobs"][0]["last_error"].as_str().unwrap();
    assert!(error.contains("blob store"), "{jobs}");
    assert_eq!(caller.get("/faces").await["faces"], json!([]));
    assert_eq!(caller.get("/images").await["images"], json!([]));

    // The server restarts with different credentials. The bucket is new, so the service is
    // restarted too. It stops first, because its requests would count among the first four, which
    // the server does not authenticate.
    drop(service);
    bucket.restart().await;
    expire_leases(&database).await;
    database.execute("update jobs set scheduled_at = now() where state = 'retryable'").await;
    let service = Service::start(&mut bucket_command(&folder, &database, &bucket, &["up", "--port", "0"]));
    let caller = service.caller();
    let crawl = caller.wait_for_crawl_end(&path).await;
    assert_eq!((&crawl["state"], &crawl["counts"]["faces"]), (&json!("completed"), &json!(1)), "{crawl}");
    let maintenance = Maintenance::new(database.store(), bucket.blobs());
    let swept = maintenance.sweep(Duration::ZERO, true, true).await.unwrap();
    assert_eq!((swept.blobs, swept.missing), (1, Some(0)), "{swept:?}");
}
