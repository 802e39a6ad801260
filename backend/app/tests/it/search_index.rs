//! Tests the search indexes with the program while the service runs, and while the service and its
//! database are killed.
#![cfg(target_os = "linux")]

mod world;

use crate::common::service::{Output, TestFolder, client, wait_until};
use embedded_postgres::Cluster;
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::index::Pgvector;
use store::index::external::ExternalIndex;
use store::{Store, StoreError};
use testing::database::programs;
use testing::embeddings::{DIMENSIONS, Random};
use testing::{MAX_WAIT, TestDatabase, needs};
use uuid::Uuid;
use world::{FACES_PER_IMAGE, Program, Writer, face_ids, search_body, search_embedding, store_faces};

/// Checks a report of `index recall`. An external index compares all faces of a small collection.
/// pgvector searches a graph that it builds at random. In this graph, a face can be unreachable.
fn assert_recall_is_measured(name: &str, report: &Value) {
    let model = &report[0];
    assert_eq!((&model["probes"], &model["exact_probes"]), (&json!(100), &json!(0)), "{report:#}");
    let results = model["results"].as_array().unwrap();
    let candidates: Vec<&Value> = results.iter().map(|result| &result["candidates"]).collect();
    // pgvector allows at most 1,000 candidates.
    let (expected, recall) = match name {
        "pgvector" => (json!([null, 128, 256, 512, 1000]), 0.99),
        _ => (json!([null, 128, 256, 512, 1024, 2048, 4096]), 1.0),
    };
    assert_eq!(json!(candidates), expected);
    assert!(results.iter().all(|result| result["recall"].as_f64() >= Some(recall)), "{report:#}");
    assert!(results.iter().all(|result| result["p99_ms"].as_f64() >= result["p50_ms"].as_f64()));
}

#[needs(qdrant)]
#[testing::test(flavor = "multi_thread")]
async fn qdrant_index_can_be_managed_while_service_runs() {
    let (folder, database) = (TestFolder::with_models(), TestDatabase::create().await);
    let program = Program::with_qdrant(&folder, database.url());
    let run = |index: &str, args: &[&str]| program.run(index, args);

    // Stores faces before the index is selected. The index of pgvector serves searches until the
    // other one is complete.
    let mut writer = store_faces(&program, &database, 30).await;
    run("pgvector", &["index", "rebuild"]).success();
    let mut service = program.start("qdrant");
    let api = service.caller();
    let (_, faces) = writer.images.first_key_value().unwrap();
    let (face, embedding) = (faces[3].id, faces[3].embedding.clone());
    let response = search_embedding(&api, &embedding).await;
    assert_eq!((face_ids(&response)[0], &response["exact"]), (face, &json!(false)));
    let status = || run("qdrant", &["index", "status", "--json"]).success().json();
    wait_until("the index", async || status()["sets"][0]["state"] == "serving").await;
    let drop_report = run("qdrant", &["index", "drop", "--index", "pgvector", "--json"]).success().json();
    assert_eq!(drop_report["pgvector"][0]["bytes"], Value::Null);

    // A face is found immediately after it is stored, and is not found after its deletion.
    writer.add_image().await.unwrap();
    let (_, faces) = writer.images.last_key_value().unwrap();
    let new = faces[0].clone();
    for fresh in [false, true] {
        let mut body = search_body(&new.embedding);
        body["fresh"] = json!(fresh);
        let deadline = Instant::now() + MAX_WAIT;
        // A fresh search waits a few seconds for the index. If the index takes longer, the search
        // reads all faces.
        let response = loop {
            let response = api.request(200, Method::POST, "/faces/search", Some(&body)).await;
            assert_eq!(face_ids(&response)[0], new.id);
            if response["exact"] == false {
                break response;
            }
            assert!(fresh && Instant::now() < deadline, "{response:#}");
        };
        assert!(response["index_lag_seconds"].as_f64().unwrap() < 60.0);
    }
    api.request(204, Method::DELETE, &format!("/faces/{}", new.id), None).await;
    let response = search_embedding(&api, &new.embedding).await;
    assert!(!face_ids(&response).contains(&new.id));
    let metrics = api.send(Method::GET, "/metrics", None).await.text().await.unwrap();
    assert!(metrics.contains("facecrawl_search_index_lag_seconds"), "{metrics}");

    // The running service executes both commands.
    let verified = run("qdrant", &["index", "verify"]).success();
    assert!(verified.stdout.contains("309 faces, equal"), "{}", verified.stdout);
    let before = status()["sets"][0]["id"].clone();
    let rebuild_report = run("qdrant", &["index", "rebuild", "--json"]).success().json();
    assert_ne!(rebuild_report["sets"][0]["id"], before);
    assert_eq!(rebuild_report["sets"].as_array().unwrap().len(), 1, "{rebuild_report:#}");
    run("qdrant", &["index", "drop", "--index", "qdrant"])
        .fails(2, &["SEARCH_INDEX=qdrant uses the index qdrant"]);
    assert_recall_is_measured("qdrant", &run("qdrant", &["index", "recall", "--json"]).success().json());

    // The index of pgvector is built before the change of the setting, so that no search waits.
    let build_report = run("qdrant", &["index", "rebuild", "--index", "pgvector", "--json"]).success().json();
    assert_eq!(build_report["pgvector"][0]["complete"], true);
    service.stop();
    assert!(run("qdrant", &["index", "verify"]).success().stdout.contains("309 faces, equal"));
    assert_recall_is_measured("qdrant", &run("qdrant", &["index", "recall", "--json"]).success().json());
    let mut without_address = program.command("pgvector", &["up", "--port", "0"]);
    Output::run(without_address.env_remove("QDRANT_URL")).fails(1, &["still contains embeddings of faces"]);
    let mut other_prefix = program.command("pgvector", &["up", "--port", "0"]);
    Output::run(other_prefix.env("QDRANT_PREFIX", "other")).fails(1, &["the one to delete is"]);
    let service = program.start("pgvector");
    let response = search_embedding(&service.caller(), &embedding).await;
    assert_eq!(face_ids(&response)[0], face);
    assert!(!database.store().index().records_changes().await.unwrap());
    assert_eq!(run("pgvector", &["index", "status", "--json"]).success().json()["sets"], json!([]));
    let released_id = ExternalIndex::release(database.store().pool(), "qdrant").await.unwrap();
    assert_eq!(released_id, None, "no record is left");
}

#[testing::test(flavor = "multi_thread")]
async fn pgvector_index_can_be_rebuilt_while_service_runs() {
    let (folder, database) = (TestFolder::with_models(), TestDatabase::create().await);
    let program = Program::new(&folder, database.url());
    let run = |args: &[&str]| program.run("pgvector", args);
    let writer = store_faces(&program, &database, 31).await;
    let (_, faces) = writer.images.first_key_value().unwrap();
    let (face, embedding) = (faces[3].id, faces[3].embedding.clone());
    let service = program.start("pgvector");
    let api = service.caller();
    let nearest_face = async || {
        let response = search_embedding(&api, &embedding).await;
        (face_ids(&response)[0], response["exact"].clone())
    };
    // The service builds the index, because there are more faces than SEARCH_EXACT_LIMIT.
    let status = || run(&["index", "status", "--json"]).success().json();
    wait_until("the index", async || status()["pgvector"][0]["complete"] == true).await;
    assert_eq!(nearest_face().await, (face, json!(false)));

    for (args, reason) in [
        (&["verify"][..], "allowed: SEARCH_INDEX=qdrant"),
        (&["rebuild", "--index", "qdrant"], "allowed: SEARCH_INDEX=qdrant"),
        (&["drop", "--index", "pgvector"], "or add --bulk-load"),
        (&["drop", "--index", "qdrant"], "when it starts with another SEARCH_INDEX"),
        (&["drop", "--index", "qdrant", "--bulk-load"], "--bulk-load is for --index pgvector"),
    ] {
        run(&[&["index"], args].concat()).fails(2, &[reason]);
    }
    let drop_report = run(&["index", "drop", "--index", "pgvector", "--bulk-load", "--json"]);
    assert_eq!(drop_report.success().json()["pgvector"][0]["bytes"], Value::Null);
    assert_eq!(nearest_face().await, (face, json!(true)));
    run(&["index", "recall"]).fails(2, &["facecrawl index rebuild"]);
    let build_report = run(&["index", "rebuild", "--json"]).success().json();
    assert_eq!(build_report["pgvector"][0]["complete"], true);
    assert_eq!(nearest_face().await.1, json!(false));
    assert_recall_is_measured("pgvector", &run(&["index", "recall", "--json"]).success().json());
    let mut small_index = program.command("pgvector", &["index", "recall"]);
    let measured = Output::run(small_index.env("SEARCH_EXACT_LIMIT", "310")).success();
    assert!(measured.stdout.contains("from a collection with more than 310 faces"), "{}", measured.stdout);
}

#[testing::test(flavor = "multi_thread")]
async fn service_works_without_qdrant_and_can_abandon_it() {
    let (folder, database) = (TestFolder::with_models(), TestDatabase::create().await);
    // Nothing listens on port 1.
    let program = Program::with_server(&folder, database.url(), "http://127.0.0.1:1");
    let mut service = program.start("qdrant");
    let mut writer = Writer::new(database.store(), 1).await;
    writer.add_image().await.unwrap();
    let (_, faces) = writer.images.first_key_value().unwrap();
    let response = search_embedding(&service.caller(), &faces[2].embedding).await;
    assert_eq!((face_ids(&response)[0], &response["exact"]), (faces[2].id, &json!(true)));
    let status = program.run("qdrant", &["index", "status", "--json"]).success().json();
    assert_eq!(status["changes"], FACES_PER_IMAGE, "the changes wait for the server");
    service.stop();

    // The server had an index, and no longer exists.
    sqlx::query("insert into index_folders (index_name, folder_id) values ('qdrant', gen_random_uuid())")
        .execute(database.pool())
        .await
        .unwrap();
    let parts = ["still contains embeddings of faces", "127.0.0.1:1"];
    program.run("pgvector", &["up", "--port", "0"]).fails(1, &parts);
    program
        .run("qdrant", &["index", "drop", "--index", "pgvector", "--forget"])
        .fails(2, &["--forget is for --index qdrant"]);
    program.run("pgvector", &["index", "drop", "--index", "qdrant", "--forget"]).success();
    drop(program.start("pgvector"));
    program.run("pgvector", &["index", "drop", "--index", "qdrant", "--forget"]).assert_status(1);
}

/// Number of changes of the test with failures, unless `INDEX_CHANGES` is set.
const CHANGES: usize = 6_000;

#[derive(Default)]
struct Shared {
    base: Mutex<String>,
    /// Faces whose deletion was committed.
    deleted: Mutex<HashSet<Uuid>>,
    changes: AtomicUsize,
    responses: AtomicUsize,
    done: AtomicBool,
}

/// Deletes an image. An earlier attempt may have deleted it although its response was lost.
async fn delete_image(store: &Store, image: Uuid) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    match store.images().delete(tx.conn(), image).await {
        Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => tx.commit().await,
    }
}

async fn wait_for_database(error: &StoreError, waited: &mut Duration) {
    assert!(*waited < MAX_WAIT, "{error}");
    let pause = Duration::from_millis(50);
    tokio::time::sleep(pause).await;
    *waited += pause;
}

/// Stores and deletes faces until `changes` changes were made.
async fn write_changes(mut writer: Writer, shared: Arc<Shared>, changes: usize) {
    let mut waited = Duration::ZERO;
    while shared.changes.load(Ordering::SeqCst) < changes {
        let image = match writer.random.below(4) {
            0 => writer.random_image(),
            1 => {
                while let Err(error) = writer.replace_embedding().await {
                    wait_for_database(&error, &mut waited).await;
                }
                shared.changes.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            _ => None,
        };
        let Some(image) = image else {
            while let Err(error) = writer.add_image().await {
                wait_for_database(&error, &mut waited).await;
            }
            shared.changes.fetch_add(FACES_PER_IMAGE, Ordering::SeqCst);
            continue;
        };
        let faces: Vec<Uuid> = writer.images[&image].iter().map(|face| face.id).collect();
        while let Err(error) = delete_image(&writer.store, image).await {
            wait_for_database(&error, &mut waited).await;
        }
        writer.images.remove(&image);
        shared.changes.fetch_add(faces.len(), Ordering::SeqCst);
        shared.deleted.lock().unwrap().extend(faces);
    }
}

/// Searches until the end. No response may contain a face that was deleted before the request.
async fn search_repeatedly(shared: Arc<Shared>) {
    let (client, mut random) = (client(), Random(77));
    while !shared.done.load(Ordering::SeqCst) {
        let before = shared.deleted.lock().unwrap().clone();
        let url = format!("{}/faces/search", shared.base.lock().unwrap());
        let result = client.post(url).json(&search_body(&random.padded_unit_vector(DIMENSIONS))).send().await;
        let Ok(response) = result else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if response.status() != 200 {
            continue;
        }
        let Ok(response) = response.json::<Value>().await else { continue };
        assert!(face_ids(&response).iter().all(|face| !before.contains(face)), "a deleted face is found");
        shared.responses.fetch_add(1, Ordering::SeqCst);
    }
}

#[needs(qdrant)]
#[testing::test(flavor = "multi_thread", worker_threads = 4)]
async fn qdrant_index_equals_rows_after_service_and_database_kills() {
    let changes = std::env::var("INDEX_CHANGES").map_or(CHANGES, |number| number.parse().unwrap());
    let folder = TestFolder::with_models();
    // The machine continues to run when the server crashes, so data need not reach the disk.
    let server =
        embedded_postgres::Config::new(programs(), folder.path().join("postgres")).with_setting("fsync=off");
    let mut cluster = Cluster::start(&server).await.unwrap();
    let url = cluster.default_url();
    let program = Program::with_qdrant(&folder, url.clone());
    let mut service = program.start("qdrant");
    let shared = Arc::new(Shared::default());
    *shared.base.lock().unwrap() = service.base.clone();
    let config = store::Config { url: url.clone(), max_connections: 4, ..store::Config::default() };
    let store = Store::connect(&config).await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for seed in 1..=2 {
        let writer = Writer::new(store.clone(), seed).await;
        writers.spawn(write_changes(writer, shared.clone(), changes));
    }
    let reader = tokio::spawn(search_repeatedly(shared.clone()));

    // The service is killed after each eighth of the changes, and the database crashes in the
    // middle.
    for part in 1..8 {
        while shared.changes.load(Ordering::SeqCst) < changes * part / 8 {
            assert!(!reader.is_finished(), "the reader failed");
            if let Some(ended) = writers.try_join_next() {
                ended.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if part == 4 {
            let pid = Pid::from_raw(cluster.pid().unwrap() as i32).unwrap();
            kill_process(pid, Signal::QUIT).unwrap();
            cluster.wait_for_exit().await;
            drop(cluster);
            cluster = Cluster::start(&server).await.unwrap();
            continue;
        }
        service.kill();
        service = program.start("qdrant");
        *shared.base.lock().unwrap() = service.base.clone();
    }
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    let verify = || program.run("qdrant", &["index", "verify", "--json"]);
    let sets = verify().success().json();
    let rows: i64 = sqlx::query_scalar("select count(*) from faces").fetch_one(store.pool()).await.unwrap();
    assert_eq!(sets[0]["check_result"]["rows"], rows);
    let has_no_changes = async || store.index().oldest_change().await.unwrap().is_none();
    wait_until("the index to follow the changes", has_no_changes).await;
    let result = verify().success().json()[0]["check_result"].clone();
    assert_eq!((&result["rows"], &result["faces"]), (&json!(rows), &json!(rows)), "{result:#}");
    shared.done.store(true, Ordering::SeqCst);
    reader.await.unwrap();
    assert!(shared.responses.load(Ordering::SeqCst) > 20, "the reader received too few responses");
    assert!(!shared.deleted.lock().unwrap().is_empty());
    // Deletes the index.
    drop(service);
    drop(program.start("pgvector"));
    cluster.stop().await;
}

/// Inserts the records of an earlier version about an index in files.
const EDGE_INDEX_RECORDS: &str = "
    select start_index_changes();
    insert into index_folders (index_name, folder_id) values ('edge', gen_random_uuid());
    insert into index_sets (index_name, model_id, state, copied, served_at, faces, in_graph, bytes)
        values ('edge', 1, 'serving', true, now(), 300, 0, 1000000);
    insert into index_sets (index_name, model_id) values ('edge', 1)";

#[testing::test(flavor = "multi_thread")]
async fn edge_index_is_rejected_and_deleted_without_face_loss() {
    let (folder, database) = (TestFolder::with_models(), TestDatabase::create().await);
    let program = Program::new(&folder, database.url());
    let mut writer = store_faces(&program, &database, 30).await;
    // The service does not build an index of pgvector during a bulk load.
    Pgvector::new(database.pool().clone()).drop_for_bulk_load(1).await.unwrap();
    sqlx::raw_sql(EDGE_INDEX_RECORDS).execute(database.pool()).await.unwrap();
    writer.add_image().await.unwrap();
    let store = database.store();
    assert_eq!(store.index().count_changes().await.unwrap(), FACES_PER_IMAGE as i64);
    let index_folder = folder.path().join("data/index");
    let set = index_folder.join("3f8e7a52-94a5-4d0c-b9f7-1f7e6ad2b6a1");
    fs::create_dir_all(set.join("segments")).unwrap();
    for file in ["lock", "id", "3f8e7a52-94a5-4d0c-b9f7-1f7e6ad2b6a1/segments/vectors"] {
        fs::write(index_folder.join(file), file).unwrap();
    }

    for args in [&["up", "--port", "0"][..], &["index", "status"]] {
        let reason = "SEARCH_INDEX=edge (from environment) is no longer supported; set SEARCH_INDEX=pgvector";
        program.run("edge", args).fails(2, &[reason]);
    }
    // A process of the earlier version still uses the files.
    let lock = File::open(index_folder.join("lock")).unwrap();
    lock.lock().unwrap();
    program.run("pgvector", &["up", "--port", "0"]).fails(1, &["cannot delete the unused search index"]);
    assert!(set.exists());
    drop(lock);

    let service = program.start("pgvector");
    assert!(!index_folder.exists(), "the files contain embeddings of faces");
    assert_eq!(ExternalIndex::release(store.pool(), "edge").await.unwrap(), None, "a record is left");
    assert!(!store.index().records_changes().await.unwrap());
    assert_eq!(store.index().count_changes().await.unwrap(), 0);
    let status = || program.run("pgvector", &["index", "status", "--json"]).success().json();
    assert_eq!(status()["sets"], json!([]));
    // Faces from before and after the last update of the index are found.
    let api = service.caller();
    for exact in [true, false] {
        for faces in [writer.images.first_key_value(), writer.images.last_key_value()] {
            let face = &faces.unwrap().1[3];
            let response = search_embedding(&api, &face.embedding).await;
            assert_eq!((face_ids(&response)[0], &response["exact"]), (face.id, &json!(exact)));
        }
        if exact {
            assert_eq!(status()["pgvector"][0]["bytes"], Value::Null);
            let rebuild = ["index", "rebuild", "--index", "pgvector", "--json"];
            let build_report = program.run("pgvector", &rebuild).success().json();
            assert_eq!(build_report["pgvector"][0]["complete"], true);
        }
    }
}
