//! Tests that work survives a kill of the service: completed work is kept, the next process
//! completes the rest, and no work is done twice.
use crate::common::service::{Service, TestFolder, expire_leases, get, wait_until};
use crate::common::sites::serve;
use axum::Router;
use axum::extract::{Path, State};
use axum::response::{Html, IntoResponse};
use axum::routing::get as route;
use bytes::Bytes;
use domain::ClusteringState;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::collections::DEFAULT_COLLECTION;
use store::keys::audit::{Action, AuditFilter};
use store::people::SubjectFilter;
use store::{Blobs, Store};
use testing::film::{Codec, Container, Encoding, Film, repeat};
use testing::{StatementBlock, TestDatabase, files_below};
use tokio::sync::watch;
use uuid::Uuid;

/// Number of images sent before the gate closes.
const IMAGES_BEFORE_GATE: usize = 6;

/// A page with images. After `IMAGES_BEFORE_GATE` images, the remaining ones are not sent until the
/// gate opens.
struct Site {
    images: BTreeMap<String, Vec<u8>>,
    request_count: AtomicUsize,
    gate: watch::Sender<bool>,
}

async fn page(State(site): State<Arc<Site>>) -> Html<String> {
    Html(site.images.keys().map(|name| format!("<img src=\"/i/{name}\">")).collect())
}

async fn image(State(site): State<Arc<Site>>, Path(name): Path<String>) -> impl IntoResponse {
    if site.request_count.fetch_add(1, Ordering::SeqCst) >= IMAGES_BEFORE_GATE {
        let _ = site.gate.subscribe().wait_for(|gate| *gate).await;
    }
    site.images[&name].clone()
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn killed_crawl_resumes_without_loss_or_duplicates() {
    let images: BTreeMap<String, Vec<u8>> =
        (testing::gallery::names().take(24)).map(|name| (name.to_owned(), testing::drawing(name))).collect();
    let total = images.len() as i64;
    let site = Arc::new(Site { images, request_count: AtomicUsize::new(0), gate: watch::Sender::new(false) });
    let router =
        Router::new().route("/", route(page)).route("/i/{name}", route(image)).with_state(site.clone());
    let seed = serve(router).await;

    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let start = || Service::up(&folder, &database);
    let mut service = start();
    assert_eq!(get(&format!("{}/health/live", service.base)).await.0, 200);
    let path = service.caller().crawl(&json!({ "seeds": [seed] })).await;

    // Some images are stored, others are being processed. Kill the service now.
    let stored = |crawl: &Value| {
        let images = &crawl["counts"]["images"];
        images["processed"].as_i64().unwrap() + images["duplicate"].as_i64().unwrap()
    };
    service.caller().until(&path, |crawl| stored(crawl) == IMAGES_BEFORE_GATE as i64).await;
    service.kill();

    expire_leases(&database).await;
    site.gate.send_replace(true);
    let service = start();
    let crawl = service.caller().wait_for_crawl_end(&path).await;
    assert_eq!(crawl["state"], "completed", "{crawl:#}");
    assert_eq!(crawl["counts"]["images"]["failed"], 0, "{crawl:#}");
    assert_eq!(stored(&crawl), total, "every image is accounted for: {crawl:#}");

    let listed = service.caller().get("/images?limit=1000").await;
    let listed = listed["images"].as_array().unwrap();
    let distinct: HashSet<&str> = listed.iter().map(|image| image["sha256"].as_str().unwrap()).collect();
    assert_eq!(distinct.len(), listed.len(), "no image is stored twice");
    assert_eq!(listed.len() as i64, crawl["counts"]["images"]["processed"].as_i64().unwrap());
}

#[testing::test(flavor = "multi_thread")]
async fn collection_deletion_completes_after_kill() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    folder.put("album/ada.jpg", testing::drawing("ada.jpg"));
    folder.run_with(&database, &["scan", "album", "--collection", "press"]).success();
    let blobs = folder.path().join("data/blobs");
    assert!(!files_below(&blobs).is_empty());
    let mut service = Service::up(&folder, &database);
    service.caller().get("/collections/press").await;
    let deleted = service.caller().send(Method::DELETE, "/collections/press", None).await;
    service.kill();
    assert_eq!(deleted.status(), 202);
    expire_leases(&database).await;

    let service = Service::up(&folder, &database);
    let caller = service.caller();
    caller.request(404, Method::GET, "/collections/press", None).await;
    let audit_path = "/audit?action=collection.erased";
    caller.until(audit_path, |log| !log["records"].as_array().unwrap().is_empty()).await;
    assert_eq!(files_below(&blobs), [] as [std::path::PathBuf; 0]);
    assert_eq!(caller.get("/jobs?state=discarded").await["jobs"], json!([]));
}

/// Number of copies of one face, which is more than one transaction handles.
const COPIES: i64 = 2_000;
/// Number of images whose retention has ended.
const EXPIRED: usize = 2_000;
/// Number of synthetic faces for a clustering, which handles 500 per step.
const SYNTHETIC_FACES: i64 = 3_000;

async fn default_collection(store: &Store) -> Uuid {
    store.collections().get(DEFAULT_COLLECTION).await.unwrap().id
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn reembed_resumes_after_kill_without_repeating_faces() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    folder.put("album/ada.jpg", testing::drawing("ada.jpg"));
    folder.run_with(&database, &["scan", "album"]).success();
    let store = database.store();
    let collection = default_collection(&store).await;
    let empty = folder.run_with(&database, &["reembed", "--json"]).success().json();
    assert_eq!((&empty["reembedded"], &empty["collections"]), (&json!(0), &json!({"default": 0})));
    // Simulates an earlier model with many faces.
    for statement in [
        "insert into embedding_models (identity, name, dimensions) values ('other', 'other', 3)",
        "insert into faces (id, collection_id, image_id, bbox, det_score, landmarks, embedding, model_id, parts_key, parts_offset, crop_bytes, chip_bytes)
         select ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, collection_id, image_id, bbox, det_score, landmarks, '[1,0,0]', m.id, parts_key, parts_offset, crop_bytes, chip_bytes
         from faces, generate_series(1, 2000) n, embedding_models m where m.name = 'other'",
        "delete from faces f using embedding_models m where m.id = f.model_id and m.name <> 'other'",
    ] {
        database.execute(statement).await;
    }
    let model = store.models().register("other", "other", 3).await.unwrap().id;
    let outdated = async || {
        let (all_models, outdated_except_test_model) = (
            store.models().count_outdated_faces(collection, 0),
            store.models().count_outdated_faces(collection, model),
        );
        all_models.await.unwrap() - outdated_except_test_model.await.unwrap()
    };
    assert_eq!(outdated().await, COPIES);
    // The second batch is blocked, so that the process is killed in the middle on any machine.
    let condition =
        "exists (select from faces f join embedding_models m on m.id = f.model_id where m.name <> 'other')";
    let hold = StatementBlock::create(&database, "update", "faces", condition).await;
    let mut killed = folder.facecrawl_with(&database, &["reembed"]);
    let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the first faces", async || outdated().await < COPIES).await;
    killed.kill().unwrap();
    killed.wait().unwrap();
    hold.release().await;
    let remaining = outdated().await;
    assert!((1..COPIES).contains(&remaining), "{remaining} faces are left");

    // The chip of one face is deleted in the meantime.
    database
        .execute("update faces set chip_bytes = 0 where id = '00000000-0000-7000-8000-000000002000'")
        .await;
    let report = folder.run_with(&database, &["reembed", "--json"]).assert_status(3).json();
    assert_eq!(report["reembedded"], remaining - 1, "completed faces are not reembedded again: {report}");
    assert_eq!(report["left"][0]["reason"], "no_chip");
    let output = folder.run_with(&database, &["reembed", "--collection", "default"]).assert_status(1).stdout;
    assert!(output.contains("keeps its embedding of other: no_chip"), "{output}");
    folder.run_with(&database, &["reembed", "--collection", "nobodys"]).fails(2, &["nobodys"]);
    // All faces come from the same image, so all have the same embedding under the current model.
    let (_, first) =
        store.faces().embedding("00000000-0000-7000-8000-000000000001".parse().unwrap()).await.unwrap();
    let (_, last) =
        store.faces().embedding("00000000-0000-7000-8000-000000001999".parse().unwrap()).await.unwrap();
    assert_eq!((first.len(), &first), (128, &last));
}

/// Inserts 3,000 faces of 100 people, each in a separate image. Two faces of one person have a
/// similarity of at least 0.9; faces of different people, at most 0.1.
async fn insert_synthetic_faces(database: &TestDatabase) {
    for statement in [
        "insert into images (id, collection_id, sha256, phash, dhash, ahash, width, height, format, bytes, rotation, face_count)
         select ('10000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, c.id, sha256(n::text::bytea), n, n, n, 9, 9, 'png', 1, 0, 1
         from generate_series(1, 3000) n, collections c where c.name = 'default'",
        "insert into faces (id, collection_id, image_id, bbox, det_score, landmarks, quality_overall, quality_passed, embedding, model_id)
         select ('20000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, c.id, ('10000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid,
                '{0,0,9,9}', 1, '{0,0,0,0,0,0,0,0,0,0}', 1, true,
                (select array_agg(case when d = n % 100 then sqrt(0.9) when d = 100 + n % 28 then sqrt(0.1) else 0 end order by d)
                 from generate_series(0, 127) d)::real[]::halfvec, m.id
         from generate_series(1, 3000) n, collections c, embedding_models m where c.name = 'default' ",
    ] {
        database.execute(statement).await;
    }
}

async fn clusters(store: &Store) -> BTreeSet<BTreeSet<Uuid>> {
    let collection_id = default_collection(store).await;
    let filter = SubjectFilter { collection_id, name: None, external_id: None, origin: None };
    let mut all = BTreeSet::new();
    for subject in store.people().list(&filter, None, 1_000).await.unwrap() {
        let faces = store.people().faces(collection_id, subject.id, None, 1_000).await.unwrap();
        all.insert(faces.into_iter().map(|face| face.id).collect());
    }
    all
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn clustering_resumes_after_kill_with_same_result() {
    let mut found = Vec::new();
    for kill in [false, true] {
        let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
        let start = || Service::up(&folder, &database);
        let mut service = start();
        insert_synthetic_faces(&database).await;
        let store = database.store();
        let collection = default_collection(&store).await;
        // The second step is blocked, so that the process is killed in the middle on any machine.
        let condition = "exists (select from clusterings where looked > 0)";
        let hold = if kill {
            Some(StatementBlock::create(&database, "update", "clusterings", condition).await)
        } else {
            None
        };
        service.caller().request(202, Method::POST, "/collections/default/cluster", Some(&json!({}))).await;
        if kill {
            let hold = hold.unwrap();
            let run = async || store.clusters().latest(collection).await.unwrap().unwrap();
            wait_until("a step", async || run().await.looked > 0).await;
            service.kill();
            hold.release().await;
            let looked = run().await.looked;
            assert!(
                run().await.state == ClusteringState::Running && (1..SYNTHETIC_FACES).contains(&looked),
                "{looked}"
            );
            expire_leases(&database).await;
            service = start();
        }
        let has_ended = |run: &serde_json::Value| run["state"] != "running" && run["state"] != "queued";
        let run = service.caller().until("/collections/default/cluster", has_ended).await;
        assert_eq!(
            (&run["state"], &run["looked"]),
            (&json!("completed"), &json!(SYNTHETIC_FACES)),
            "each face is processed once: {run}"
        );
        found.push(clusters(&store).await);
    }
    assert_eq!(found[0].len(), 100, "people");
    assert!(found[0] == found[1], "the people are the same with and without a kill");
}

#[testing::test(flavor = "multi_thread")]
async fn retention_resumes_after_kill_and_deletes_all_blobs() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let blob_folder = folder.path().join("data/blobs");
    let blobs = Blobs::open(blob_folder.to_str().unwrap()).unwrap();
    for n in 0..EXPIRED {
        blobs.put("thumbnails", "jpg", Bytes::from(format!("{n}"))).await.unwrap();
    }
    for statement in [
        "update collections set retention_days = 30",
        "insert into images (id, collection_id, sha256, phash, dhash, ahash, width, height, format, bytes, rotation, thumbnail_key, created_at)
         select ('10000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, c.id, sha256(n::text::bytea), n, n, n, 9, 9, 'png', 1, 0,
                'thumbnails/' || substr(h, 1, 2) || '/' || h || '.jpg', now() - interval '31 days'
         from generate_series(0, 1999) n, encode(sha256(n::text::bytea), 'hex') h, collections c",
    ] {
        database.execute(statement).await;
    }
    let start = || Service::up(&folder, &database);
    let store = database.store();
    let erased = async || {
        let filter = AuditFilter { action: Some(Action::Expire), ..AuditFilter::default() };
        let log = store.audit().list(&filter, None, 1_000).await.unwrap();
        log.iter().map(|record| record.detail["images"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(files_below(&blob_folder).len(), EXPIRED);
    // The second batch is blocked, so that the process is killed in the middle on any machine.
    let condition = "exists (select from audit_log)";
    let hold = StatementBlock::create(&database, "insert", "audit_log", condition).await;
    let mut service = start();
    wait_until("the first images", async || erased().await > 0).await;
    service.kill();
    hold.release().await;
    let first = erased().await;
    assert!(first < EXPIRED as u64, "{first}");
    assert!(!files_below(&blob_folder).is_empty());

    database.execute("update upkeep set due_at = now()").await;
    let service = start();
    wait_until("the rest", async || erased().await == EXPIRED as u64).await;
    wait_until("the last blobs", async || files_below(&blob_folder).is_empty()).await;
    assert_eq!(service.caller().get("/images").await["images"], json!([]));
    assert_eq!(erased().await, EXPIRED as u64, "each image is counted once");
}

#[testing::test(flavor = "multi_thread")]
async fn sweep_reports_orphans_and_missing_blobs() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    folder.put("album/ada.jpg", testing::drawing("ada.jpg"));
    folder.run_with(&database, &["scan", "album"]).success();
    let blob_folder = folder.path().join("data/blobs");
    let blobs = Blobs::open(blob_folder.to_str().unwrap()).unwrap();
    let old = blobs.put("crops", "jpg", Bytes::from_static(b"old")).await.unwrap();
    let two_hours_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    std::fs::File::open(blob_folder.join(&old)).unwrap().set_modified(two_hours_ago).unwrap();
    let new = blobs.put("crops", "jpg", Bytes::from_static(b"new")).await.unwrap();
    let sweep = |status: i32, args: &[&str]| {
        let all = [&["sweep"], args].concat();
        folder.run_with(&database, &all).assert_status(status)
    };
    let counts = |status: i32, args: &[&str]| -> BTreeMap<String, u64> {
        let found = sweep(status, args).json();
        ["blobs", "orphans", "removed", "missing"]
            .map(|name| (name.to_owned(), found[name].as_u64().unwrap()))
            .into()
    };
    let expected = |blobs, orphans, removed, missing| -> BTreeMap<String, u64> {
        let names = [("blobs", blobs), ("missing", missing), ("orphans", orphans), ("removed", removed)];
        names.map(|(name, count)| (name.to_owned(), count)).into()
    };
    assert_eq!(counts(0, &["--dry-run", "--json"]), expected(3, 1, 0, 0), "a dry run removes nothing");
    assert_eq!(counts(0, &["--json"]), expected(3, 1, 1, 0));
    assert!(
        !blob_folder.join(&old).exists() && blob_folder.join(&new).exists(),
        "a row may still be inserted for the new blob"
    );
    let blob = files_below(&blob_folder.join("parts")).remove(0);
    std::fs::remove_file(&blob).unwrap();
    let output = sweep(3, &[]).stdout;
    assert!(output.contains("1 blobs; 0 unreferenced for an hour, 0 deleted; 1 missing"), "{output}");
    assert!(output.contains("missing: parts/"), "{output}");
}

/// Returns the properties of tracks that must not depend on interruptions.
fn summaries(tracks: &Value) -> Vec<Value> {
    let without_ids = |track: &Value| {
        let shots: Vec<Value> = track["faces"].as_array().unwrap().iter().map(shot_properties).collect();
        json!([track["person"], track["start_ms"], track["end_ms"], track["samples"], track["boxes"], shots])
    };
    assert_eq!(tracks["next_cursor"], Value::Null);
    tracks["tracks"].as_array().unwrap().iter().map(without_ids).collect()
}

fn shot_properties(face: &Value) -> Value {
    json!([face["at_ms"], face["quality"]])
}

#[testing::needs(video, slow)]
#[testing::test(flavor = "multi_thread")]
async fn video_analysis_resumes_after_kills_with_same_tracks() {
    let folder = TestFolder::new();
    let (single_film, path) = (folder.path().join("once.mkv"), folder.path().join("film.mkv"));
    let encoding = Encoding::new(Codec::H264, Container::Mkv);
    Film::standard().encode(&encoding, &single_film).unwrap();
    repeat(&single_film, 5, &encoding, &path).unwrap();
    let film = std::fs::read(&path).unwrap();
    let database = TestDatabase::create().await;
    let spool = folder.path().join("spool");
    std::fs::create_dir(&spool).unwrap();
    let start = || {
        let mut command = folder.facecrawl_with(&database, &["up", "--port", "0"]);
        command.env("FFMPEG", testing::ffmpeg()).env("VIDEO_SPOOL", &spool);
        Service::start(&mut command)
    };
    let mut service = start();
    let video = service.caller().send_video("sampling=fps=5", &film).await;
    let mut stored_ms = 0;
    for _ in 0..2 {
        let read = service.caller().until(&video, |video| video["read_ms"].as_i64() > Some(stored_ms)).await;
        assert_eq!(read["state"], "running");
        service.kill();
        stored_ms = read["read_ms"].as_i64().unwrap();
        assert_eq!(std::fs::read_dir(&spool).unwrap().count(), 0, "the copy of the file has no name");
        expire_leases(&database).await;
        service = start();
        let kept = service.caller().get(&video).await;
        assert!(kept["read_ms"].as_i64() >= Some(stored_ms), "{kept}");
    }
    let has_ended = |video: &Value| video["finished_at"].is_string();
    let caller = service.caller();
    let interrupted = caller.until(&video, has_ended).await;
    assert_eq!((&interrupted["state"], &interrupted["reason"]), (&json!("completed"), &Value::Null));
    let found = summaries(&caller.get(&format!("{video}/tracks?limit=1000")).await);

    caller.request(201, Method::POST, "/collections", Some(&json!({"name": "undisturbed"}))).await;
    let other = caller.send_video("sampling=fps=5&collection=undisturbed", &film).await;
    let undisturbed = caller.until(&other, has_ended).await;
    let expected = summaries(&caller.get(&format!("{other}/tracks?limit=1000")).await);
    assert!(expected.len() > 40, "{}", expected.len());
    assert_eq!(found, expected);
    for field in ["people", "frames", "unidentified_tracks", "read_ms"] {
        assert_eq!(interrupted[field], undisturbed[field], "{field}");
    }
    // Nothing is stored twice.
    let faces = |collection: &str| format!("/faces?limit=1000&collection={collection}");
    let count = async |collection| caller.get(&faces(collection)).await["faces"].as_array().unwrap().len();
    assert_eq!(count("default").await, count("undisturbed").await);
}
