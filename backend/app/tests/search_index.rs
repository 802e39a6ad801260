//! Tests `SEARCH_INDEX=edge` and `qdrant` with the program: beside a running service, and while the
//! service and its database are killed.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, missing_docs)]
mod common;

use common::process::{Finished, TestFolder};
use common::service::{Caller, Service, client};
use embedded_postgres::Cluster;
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::external_index::ExternalIndex;
use store::faces::NewFace;
use store::images::NewImage;
use store::models::EmbeddingModel;
use store::{Store, StoreError};
use testing::embeddings::{DIMENSIONS, Random};
use testing::{TestDatabase, needs};
use uuid::Uuid;

const FACES_PER_IMAGE: usize = 10;
/// Number of changes of the test with failures, unless `INDEX_CHANGES` is set.
const CHANGES: usize = 6_000;
const TIMEOUT: Duration = Duration::from_secs(600);

/// An index under test.
struct Index {
    /// The value of `SEARCH_INDEX`.
    name: &'static str,
    environment: Vec<(&'static str, String)>,
}

impl Index {
    fn edge() -> Self {
        Self { name: "edge", environment: Vec::new() }
    }

    /// Collections of its own in the server.
    fn qdrant() -> Self {
        let url = std::env::var("TEST_QDRANT_URL").expect("run the tests through ./scripts/test");
        let key = std::env::var("TEST_QDRANT_API_KEY").unwrap_or_default();
        let prefix = format!("test{}", Uuid::now_v7().simple());
        let replicas = url.split(',').count().min(2).to_string();
        let environment = vec![
            ("QDRANT_URL", url),
            ("QDRANT_API_KEY", key),
            ("QDRANT_PREFIX", prefix),
            ("QDRANT_REPLICAS", replicas),
        ];
        Self { name: "qdrant", environment }
    }
}

/// Runs the program with a database and an index.
struct Program<'a> {
    place: &'a TestFolder,
    url: String,
    index: Index,
}

impl Program<'_> {
    fn command(&self, index: &str, args: &[&str]) -> Command {
        let mut command = self.place.facecrawl(args);
        command.env("DATABASE_URL", &self.url).env("SEARCH_INDEX", index).env("SEARCH_EXACT_LIMIT", "0");
        command.envs(self.index.environment.iter().cloned());
        command
    }

    /// Starts the service with this value of `SEARCH_INDEX`.
    fn start(&self, index: &str) -> Service {
        Service::start(&mut self.command(index, &["up", "--port", "0"]))
    }

    fn run(&self, index: &str, args: &[&str]) -> Finished {
        Finished::of(&mut self.command(index, args))
    }
}

/// Writes and deletes faces with random embeddings.
struct Writer {
    store: Store,
    collection: Uuid,
    model: EmbeddingModel,
    random: Random,
    images: BTreeMap<Uuid, Vec<NewFace>>,
}

impl Writer {
    async fn new(store: Store, seed: u64) -> Self {
        let collection = store.ensure_collection("default").await.unwrap().id;
        let model = store.model(1).await.unwrap();
        Self { store, collection, model, random: Random(seed), images: BTreeMap::new() }
    }

    fn face(&mut self) -> NewFace {
        NewFace {
            id: Uuid::now_v7(),
            bbox: [0.0, 0.0, 9.0, 9.0],
            det_score: 0.9,
            landmarks: [0.0; 10],
            quality: None,
            quality_overall: Some(0.5),
            quality_passed: Some(true),
            embedding: self.random.direction(DIMENSIONS),
            model_id: self.model.id,
            chip_key: None,
            crop_key: None,
        }
    }

    /// Stores an image with its faces.
    async fn add(&mut self) -> Result<(), StoreError> {
        let mut sha256 = [0; 32];
        sha256[..8].copy_from_slice(&self.random.bits().to_be_bytes());
        let hash = self.random.bits() as i64;
        let image = NewImage {
            id: Uuid::now_v7(),
            sha256,
            phash: hash,
            dhash: hash,
            ahash: hash,
            width: 9,
            height: 9,
            format: "png".into(),
            bytes: 1,
            rotation: 0,
            thumbnail_key: None,
        };
        let faces: Vec<NewFace> = (0..FACES_PER_IMAGE).map(|_| self.face()).collect();
        let mut tx = self.store.begin().await?;
        self.store.insert_image(tx.conn(), self.collection, &image).await?.unwrap();
        self.store.insert_faces(tx.conn(), self.collection, image.id, &faces).await?;
        tx.commit().await?;
        self.images.insert(image.id, faces);
        Ok(())
    }

    /// Gives a face another embedding.
    async fn turn(&mut self) -> Result<(), StoreError> {
        let Some(image) = self.any_image() else { return Ok(()) };
        let embedding = self.random.direction(DIMENSIONS);
        let face = self.images[&image][0].id;
        self.store.replace_embeddings(&self.model, &[(face, embedding)]).await?;
        Ok(())
    }

    fn any_image(&mut self) -> Option<Uuid> {
        let at = self.random.below(self.images.len().max(1));
        self.images.keys().nth(at).copied()
    }
}

/// Checks a report of `index recall`. The collection is so small that no match is missed.
fn is_measured(name: &str, report: &Value) {
    let model = &report[0];
    assert_eq!((&model["probes"], &model["exact_probes"]), (&json!(100), &json!(0)), "{report:#}");
    let results = model["results"].as_array().unwrap();
    let candidates: Vec<&Value> = results.iter().map(|result| &result["candidates"]).collect();
    // pgvector allows at most 1,000.
    let expected = match name {
        "pgvector" => json!([null, 128, 256, 512, 1000]),
        _ => json!([null, 128, 256, 512, 1024, 2048, 4096]),
    };
    assert_eq!(json!(candidates), expected);
    assert!(results.iter().all(|result| result["recall"] == 1.0), "{report:#}");
    assert!(results.iter().all(|result| result["p99_ms"].as_f64() >= result["p50_ms"].as_f64()));
}

fn caller(service: &Service) -> Caller {
    Caller { base: service.base.clone(), key: "none".into() }
}

fn search(embedding: &[f32]) -> Value {
    json!({"embedding": embedding, "threshold": -1, "limit": 5})
}

fn found(answer: &Value) -> Vec<Uuid> {
    let matches = answer["matches"].as_array().unwrap();
    matches.iter().map(|hit| hit["face_id"].as_str().unwrap().parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "edge"), ignore = "needs the Cargo feature edge")]
async fn an_index_in_files_is_built_verified_and_removed_beside_the_service() {
    is_built_verified_and_removed_beside_the_service(Index::edge()).await;
}

#[needs(qdrant)]
#[tokio::test(flavor = "multi_thread")]
async fn an_index_in_a_server_is_built_verified_and_removed_beside_the_service() {
    is_built_verified_and_removed_beside_the_service(Index::qdrant()).await;
}

async fn is_built_verified_and_removed_beside_the_service(index: Index) {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    place.run(&["models", "fetch"]).expect(0);
    let name = index.name;
    let program = Program { place: &place, url: database.url(), index };
    let run = |index: &str, args: &[&str]| program.run(index, args);

    // Stores faces before the index is selected. The index of pgvector answers until the other one
    // is complete.
    let mut service = program.start("pgvector");
    let mut writer = Writer::new(database.store(), 1).await;
    for _ in 0..30 {
        writer.add().await.unwrap();
    }
    service.signal(Signal::TERM);
    assert_eq!(service.ended().0, Some(0));

    let mut service = program.start(name);
    let api = caller(&service);
    let (_, faces) = writer.images.first_key_value().unwrap();
    let (face, embedding) = (faces[3].id, faces[3].embedding.clone());
    let answer = api.ask(200, Method::POST, "/faces/search", Some(&search(&embedding))).await;
    assert_eq!((found(&answer)[0], &answer["exact"]), (face, &json!(false)));
    let status = || run(name, &["index", "status", "--json"]).expect(0).json();
    let deadline = Instant::now() + TIMEOUT;
    while status()["sets"][0]["state"] != "serving" {
        assert!(Instant::now() < deadline, "{:#}", status());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let dropped = run(name, &["index", "drop", "--index", "pgvector", "--json"]).expect(0).json();
    assert_eq!(dropped["pgvector"][0]["bytes"], Value::Null);

    // A face is found as soon as it is stored, and no longer when it is deleted.
    writer.add().await.unwrap();
    let (_, faces) = writer.images.last_key_value().unwrap();
    let new = faces[0].clone();
    for fresh in [false, true] {
        let mut body = search(&new.embedding);
        body["fresh"] = json!(fresh);
        let answer = api.ask(200, Method::POST, "/faces/search", Some(&body)).await;
        assert_eq!((found(&answer)[0], &answer["exact"]), (new.id, &json!(false)));
        assert!(answer["index_lag_seconds"].as_f64().unwrap() < 60.0);
    }
    api.ask(204, Method::DELETE, &format!("/faces/{}", new.id), None).await;
    let answer = api.ask(200, Method::POST, "/faces/search", Some(&search(&new.embedding))).await;
    assert!(!found(&answer).contains(&new.id));
    let metrics = api.send(Method::GET, "/metrics", None).await.text().await.unwrap();
    assert!(metrics.contains("facecrawl_search_index_lag_seconds"), "{metrics}");

    // Both commands are carried out by the running service.
    let verified = run(name, &["index", "verify"]).expect(0);
    assert!(verified.stdout.contains("309 faces, equal"), "{}", verified.stdout);
    let before = status()["sets"][0]["id"].clone();
    let rebuilt = run(name, &["index", "rebuild", "--json"]).expect(0).json();
    assert_ne!(rebuilt["sets"][0]["id"], before);
    assert_eq!(rebuilt["sets"].as_array().unwrap().len(), 1, "{rebuilt:#}");
    if name == "edge" {
        let refused = run(name, &["serve", "--port", "0"]).expect(1);
        assert!(refused.stderr.contains("in use by another process"), "{}", refused.stderr);
    }
    let refused = run(name, &["index", "drop", "--index", name]).expect(2);
    let reason = format!("SEARCH_INDEX={name} uses the index {name}");
    assert!(refused.stderr.contains(&reason), "{}", refused.stderr);
    let refused = run("pgvector", &["index", "verify"]).expect(2);
    assert!(refused.stderr.contains("allowed: SEARCH_INDEX=edge"), "{}", refused.stderr);

    if name == "edge" {
        let refused = run(name, &["index", "recall"]).expect(1);
        assert!(refused.stderr.contains("which one process at a time can use"), "{}", refused.stderr);
    } else {
        is_measured(name, &run(name, &["index", "recall", "--json"]).expect(0).json());
    }

    // Back to pgvector: its index is built first, so that no search has to wait.
    let built = run(name, &["index", "rebuild", "--index", "pgvector", "--json"]).expect(0).json();
    assert_eq!(built["pgvector"][0]["complete"], true);
    service.signal(Signal::TERM);
    assert_eq!(service.ended().0, Some(0));
    assert!(run(name, &["index", "verify"]).expect(0).stdout.contains("309 faces, equal"));
    is_measured(name, &run(name, &["index", "recall", "--json"]).expect(0).json());
    assert_eq!(place.path().join("data/index").exists(), name == "edge");
    if name == "qdrant" {
        let mut without_address = program.command("pgvector", &["up", "--port", "0"]);
        let refused = Finished::of(without_address.env_remove("QDRANT_URL")).expect(1);
        assert!(refused.stderr.contains("still contains embeddings of faces"), "{}", refused.stderr);
        let mut other_prefix = program.command("pgvector", &["up", "--port", "0"]);
        let refused = Finished::of(other_prefix.env("QDRANT_PREFIX", "other")).expect(1);
        assert!(refused.stderr.contains("the one to delete is"), "{}", refused.stderr);
    }
    let service = program.start("pgvector");
    let answer = caller(&service).ask(200, Method::POST, "/faces/search", Some(&search(&embedding))).await;
    assert_eq!(found(&answer)[0], face);
    assert!(!place.path().join("data/index").exists(), "the copies of faces are deleted");
    assert!(!database.store().records_index_changes().await.unwrap());
    assert_eq!(run("pgvector", &["index", "status", "--json"]).expect(0).json()["sets"], json!([]));

    // Its index can be dropped before many faces are stored.
    let refused = run("pgvector", &["index", "drop", "--index", "pgvector"]).expect(2);
    assert!(refused.stderr.contains("or add --bulk-load"), "{}", refused.stderr);
    let refused = run("pgvector", &["index", "drop", "--index", "edge", "--bulk-load"]).expect(2);
    assert!(refused.stderr.contains("--bulk-load is for --index pgvector"), "{}", refused.stderr);
    let dropped = run("pgvector", &["index", "drop", "--index", "pgvector", "--bulk-load", "--json"]);
    assert_eq!(dropped.expect(0).json()["pgvector"][0]["bytes"], Value::Null);
    let answer = caller(&service).ask(200, Method::POST, "/faces/search", Some(&search(&embedding))).await;
    assert_eq!((found(&answer)[0], &answer["exact"]), (face, &json!(true)));
    let refused = run("pgvector", &["index", "recall"]).expect(2);
    assert!(refused.stderr.contains("facecrawl index rebuild"), "{}", refused.stderr);
    let built = run("pgvector", &["index", "rebuild", "--json"]).expect(0).json();
    assert_eq!(built["pgvector"][0]["complete"], true);
    let answer = caller(&service).ask(200, Method::POST, "/faces/search", Some(&search(&embedding))).await;
    assert_eq!(answer["exact"], false);
    is_measured("pgvector", &run("pgvector", &["index", "recall", "--json"]).expect(0).json());
    let mut small = program.command("pgvector", &["index", "recall"]);
    let measured = Finished::of(small.env("SEARCH_EXACT_LIMIT", "309")).expect(0);
    assert!(measured.stdout.contains("from a collection with more than 309 faces"), "{}", measured.stdout);
    assert_eq!(ExternalIndex::release(&database.store(), name).await.unwrap(), None, "no record is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_works_without_its_qdrant_server_and_can_leave_it() {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    place.run(&["models", "fetch"]).expect(0);
    // Nothing listens on port 1.
    let environment = vec![("QDRANT_URL", "http://127.0.0.1:1".to_owned())];
    let program =
        Program { place: &place, url: database.url(), index: Index { name: "qdrant", environment } };
    let mut service = program.start("qdrant");
    let mut writer = Writer::new(database.store(), 1).await;
    writer.add().await.unwrap();
    let (_, faces) = writer.images.first_key_value().unwrap();
    let answer =
        caller(&service).ask(200, Method::POST, "/faces/search", Some(&search(&faces[2].embedding))).await;
    assert_eq!((found(&answer)[0], &answer["exact"]), (faces[2].id, &json!(true)));
    let status = program.run("qdrant", &["index", "status", "--json"]).expect(0).json();
    assert_eq!(status["changes"], FACES_PER_IMAGE, "the changes wait for the server");
    let refused = program.run("qdrant", &["index", "rebuild", "--index", "edge"]).expect(2);
    assert!(refused.stderr.contains("SEARCH_INDEX=qdrant does not use the index edge"), "{}", refused.stderr);
    service.signal(Signal::TERM);
    assert_eq!(service.ended().0, Some(0));

    // The server had an index once, and no longer exists.
    sqlx::query("insert into index_folders (index_name, folder_id) values ('qdrant', gen_random_uuid())")
        .execute(database.pool())
        .await
        .unwrap();
    let refused = program.run("pgvector", &["up", "--port", "0"]).expect(1);
    assert!(refused.stderr.contains("still contains embeddings of faces"), "{}", refused.stderr);
    assert!(refused.stderr.contains("127.0.0.1:1"), "{}", refused.stderr);
    let refused = program.run("pgvector", &["index", "drop", "--index", "edge", "--forget"]).expect(2);
    assert!(refused.stderr.contains("--forget is for --index qdrant"), "{}", refused.stderr);
    program.run("pgvector", &["index", "drop", "--index", "qdrant", "--forget"]).expect(0);
    drop(program.start("pgvector"));
    program.run("pgvector", &["index", "drop", "--index", "qdrant", "--forget"]).expect(1);
}

/// What the tasks of the test with failures share.
#[derive(Default)]
struct Shared {
    base: Mutex<String>,
    /// Faces whose deletion was committed.
    deleted: Mutex<HashSet<Uuid>>,
    changes: AtomicUsize,
    answers: AtomicUsize,
    done: AtomicBool,
}

/// Deletes an image. An earlier attempt may have deleted it although its answer was lost.
async fn delete(store: &Store, image: Uuid) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    match store.delete_image(tx.conn(), image).await {
        Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => tx.commit().await,
    }
}

/// Waits while the database is away.
async fn wait_for_database(error: &StoreError, waited: &mut Duration) {
    assert!(*waited < TIMEOUT, "{error}");
    let pause = Duration::from_millis(50);
    tokio::time::sleep(pause).await;
    *waited += pause;
}

/// Stores and deletes faces until there were `changes` of them.
async fn write(mut writer: Writer, shared: Arc<Shared>, changes: usize) {
    let mut waited = Duration::ZERO;
    while shared.changes.load(Ordering::SeqCst) < changes {
        let image = match writer.random.below(4) {
            0 => writer.any_image(),
            1 => {
                while let Err(error) = writer.turn().await {
                    wait_for_database(&error, &mut waited).await;
                }
                shared.changes.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            _ => None,
        };
        let Some(image) = image else {
            while let Err(error) = writer.add().await {
                wait_for_database(&error, &mut waited).await;
            }
            shared.changes.fetch_add(FACES_PER_IMAGE, Ordering::SeqCst);
            continue;
        };
        let faces: Vec<Uuid> = writer.images[&image].iter().map(|face| face.id).collect();
        while let Err(error) = delete(&writer.store, image).await {
            wait_for_database(&error, &mut waited).await;
        }
        writer.images.remove(&image);
        shared.changes.fetch_add(faces.len(), Ordering::SeqCst);
        shared.deleted.lock().unwrap().extend(faces);
    }
}

/// Searches until the end. No answer may contain a face that was deleted before the request.
async fn read(shared: Arc<Shared>) {
    let (client, mut random) = (client(), Random(77));
    while !shared.done.load(Ordering::SeqCst) {
        let before = shared.deleted.lock().unwrap().clone();
        let url = format!("{}/faces/search", shared.base.lock().unwrap());
        let sent = client.post(url).json(&search(&random.direction(DIMENSIONS))).send().await;
        let Ok(response) = sent else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if response.status() != 200 {
            continue;
        }
        let Ok(answer) = response.json::<Value>().await else { continue };
        assert!(found(&answer).iter().all(|face| !before.contains(face)), "a deleted face is found");
        shared.answers.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[cfg_attr(not(feature = "edge"), ignore = "needs the Cargo feature edge")]
async fn the_index_in_files_equals_the_rows_after_kills_of_service_and_database() {
    equals_the_rows_after_kills_of_service_and_database(Index::edge()).await;
}

#[needs(qdrant)]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_index_in_a_server_equals_the_rows_after_kills_of_service_and_database() {
    equals_the_rows_after_kills_of_service_and_database(Index::qdrant()).await;
}

async fn equals_the_rows_after_kills_of_service_and_database(index: Index) {
    let name = index.name;
    let changes = std::env::var("INDEX_CHANGES").map_or(CHANGES, |number| number.parse().unwrap());
    let place = TestFolder::new();
    place.run(&["models", "fetch"]).expect(0);
    let bin = std::env::var("POSTGRES_BIN_DIR").expect("run the tests through ./scripts/test");
    // The machine continues to run when the server crashes, so data need not reach the disk.
    let server = embedded_postgres::Config::new(bin, place.path().join("postgres")).with_setting("fsync=off");
    let mut cluster = Cluster::start(&server).await.unwrap();
    let url = cluster.default_url();
    let program = Program { place: &place, url: url.clone(), index };
    let mut service = program.start(name);
    let shared = Arc::new(Shared::default());
    *shared.base.lock().unwrap() = service.base.clone();
    let config = store::Config { url: url.clone(), max_connections: 4, ..store::Config::default() };
    let store = Store::connect(&config).await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for seed in 1..=2 {
        let writer = Writer::new(store.clone(), seed).await;
        writers.spawn(write(writer, shared.clone(), changes));
    }
    let reader = tokio::spawn(read(shared.clone()));

    // The service is killed after each eighth of the changes, and the database crashes in the
    // middle.
    for part in 1..8 {
        while shared.changes.load(Ordering::SeqCst) < changes * part / 8 {
            assert!(!reader.is_finished(), "the reader failed");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if part == 4 {
            let pid = Pid::from_raw(cluster.pid().unwrap() as i32).unwrap();
            kill_process(pid, Signal::QUIT).unwrap();
            cluster.exited().await;
            drop(cluster);
            cluster = Cluster::start(&server).await.unwrap();
            continue;
        }
        service.signal(Signal::KILL);
        let _ = service.ended();
        service = program.start(name);
        *shared.base.lock().unwrap() = service.base.clone();
    }
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    let verify = || program.run(name, &["index", "verify", "--json"]);
    let sets = verify().expect(0).json();
    let rows: i64 = sqlx::query_scalar("select count(*) from faces").fetch_one(store.pool()).await.unwrap();
    assert_eq!(sets[0]["check_result"]["rows"], rows);
    let deadline = Instant::now() + TIMEOUT;
    while store.oldest_index_change().await.unwrap().is_some() {
        assert!(Instant::now() < deadline, "the index does not follow the changes");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let checked = verify().expect(0).json()[0]["check_result"].clone();
    assert_eq!((&checked["rows"], &checked["faces"]), (&json!(rows), &json!(rows)), "{checked:#}");
    shared.done.store(true, Ordering::SeqCst);
    reader.await.unwrap();
    assert!(shared.answers.load(Ordering::SeqCst) > 20, "the reader got hardly any answer");
    assert!(!shared.deleted.lock().unwrap().is_empty());
    // Deletes the index.
    drop(service);
    drop(program.start("pgvector"));
    cluster.stop().await;
}
