//! Tests `SEARCH_INDEX=edge` and `qdrant` with the program: beside a running service, and while the
//! service and its database are killed.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, missing_docs)]
#[path = "../common/mod.rs"]
mod common;
mod failures;
mod world;

use common::process::{Finished, TestFolder};
use common::service::{Caller, Service};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use store::external_index::ExternalIndex;
use testing::{MAX_WAIT, TestDatabase, needs};
use world::{FACES_PER_IMAGE, Index, Program, Writer, found, search};

/// Checks a report of `index recall`. An external index compares all faces of so small a
/// collection. pgvector searches a graph that it builds at random. In this graph, a face can be
/// unreachable.
fn is_measured(name: &str, report: &Value) {
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

fn caller(service: &Service) -> Caller {
    Caller { base: service.base.clone(), key: "none".into() }
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
    let deadline = Instant::now() + MAX_WAIT;
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
        let deadline = Instant::now() + MAX_WAIT;
        // A fresh search waits a few seconds for the index. If the index takes longer, the search
        // reads all faces.
        let answer = loop {
            let answer = api.ask(200, Method::POST, "/faces/search", Some(&body)).await;
            assert_eq!(found(&answer)[0], new.id);
            if answer["exact"] == false {
                break answer;
            }
            assert!(fresh && Instant::now() < deadline, "{answer:#}");
        };
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
