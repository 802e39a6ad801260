//! Tests the search indexes with the program: beside a running service, and while the service and
//! its database are killed.
#![cfg(target_os = "linux")]
mod failures;
mod in_files;
mod world;

use crate::common::process::{Finished, TestFolder};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use store::index::external::ExternalIndex;
use testing::{MAX_WAIT, TestDatabase, needs};
use world::{FACES_PER_IMAGE, Program, Writer, found, search, with_faces};

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

#[needs(qdrant)]
#[testing::test(flavor = "multi_thread")]
async fn an_index_in_a_server_is_built_verified_and_removed_beside_the_service() {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    place.run(&["models", "fetch"]).expect(0);
    let program = Program::with_qdrant(&place, database.url());
    let run = |index: &str, args: &[&str]| program.run(index, args);

    // Stores faces before the index is selected. The index of pgvector answers until the other one
    // is complete.
    let mut writer = with_faces(&program, &database, 30).await;
    let mut service = program.start("qdrant");
    let api = service.caller();
    let (_, faces) = writer.images.first_key_value().unwrap();
    let (face, embedding) = (faces[3].id, faces[3].embedding.clone());
    let answer = api.ask(200, Method::POST, "/faces/search", Some(&search(&embedding))).await;
    assert_eq!((found(&answer)[0], &answer["exact"]), (face, &json!(false)));
    let status = || run("qdrant", &["index", "status", "--json"]).expect(0).json();
    let deadline = Instant::now() + MAX_WAIT;
    while status()["sets"][0]["state"] != "serving" {
        assert!(Instant::now() < deadline, "{:#}", status());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let dropped = run("qdrant", &["index", "drop", "--index", "pgvector", "--json"]).expect(0).json();
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
    let verified = run("qdrant", &["index", "verify"]).expect(0);
    assert!(verified.stdout.contains("309 faces, equal"), "{}", verified.stdout);
    let before = status()["sets"][0]["id"].clone();
    let rebuilt = run("qdrant", &["index", "rebuild", "--json"]).expect(0).json();
    assert_ne!(rebuilt["sets"][0]["id"], before);
    assert_eq!(rebuilt["sets"].as_array().unwrap().len(), 1, "{rebuilt:#}");
    let refused = run("qdrant", &["index", "drop", "--index", "qdrant"]).expect(2);
    assert!(refused.stderr.contains("SEARCH_INDEX=qdrant uses the index qdrant"), "{}", refused.stderr);
    is_measured("qdrant", &run("qdrant", &["index", "recall", "--json"]).expect(0).json());

    // Back to pgvector: its index is built first, so that no search has to wait.
    let built = run("qdrant", &["index", "rebuild", "--index", "pgvector", "--json"]).expect(0).json();
    assert_eq!(built["pgvector"][0]["complete"], true);
    service.signal(Signal::TERM);
    assert_eq!(service.ended().0, Some(0));
    assert!(run("qdrant", &["index", "verify"]).expect(0).stdout.contains("309 faces, equal"));
    is_measured("qdrant", &run("qdrant", &["index", "recall", "--json"]).expect(0).json());
    let mut without_address = program.command("pgvector", &["up", "--port", "0"]);
    let refused = Finished::of(without_address.env_remove("QDRANT_URL")).expect(1);
    assert!(refused.stderr.contains("still contains embeddings of faces"), "{}", refused.stderr);
    let mut other_prefix = program.command("pgvector", &["up", "--port", "0"]);
    let refused = Finished::of(other_prefix.env("QDRANT_PREFIX", "other")).expect(1);
    assert!(refused.stderr.contains("the one to delete is"), "{}", refused.stderr);
    let service = program.start("pgvector");
    let answer = service.caller().ask(200, Method::POST, "/faces/search", Some(&search(&embedding))).await;
    assert_eq!(found(&answer)[0], face);
    assert!(!database.store().records_index_changes().await.unwrap());
    assert_eq!(run("pgvector", &["index", "status", "--json"]).expect(0).json()["sets"], json!([]));
    let released = ExternalIndex::release(&database.store(), "qdrant").await.unwrap();
    assert_eq!(released, None, "no record is left");
}

#[testing::test(flavor = "multi_thread")]
async fn the_index_of_pgvector_is_dropped_and_built_again_beside_the_service() {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    place.run(&["models", "fetch"]).expect(0);
    let program = Program::new(&place, database.url());
    let run = |args: &[&str]| program.run("pgvector", args);
    let writer = with_faces(&program, &database, 31).await;
    let (_, faces) = writer.images.first_key_value().unwrap();
    let (face, embedding) = (faces[3].id, faces[3].embedding.clone());
    let service = program.start("pgvector");
    let api = service.caller();
    let best = async || {
        let answer = api.ask(200, Method::POST, "/faces/search", Some(&search(&embedding))).await;
        (found(&answer)[0], answer["exact"].clone())
    };
    assert_eq!(best().await, (face, json!(false)));

    for (args, reason) in [
        (&["verify"][..], "allowed: SEARCH_INDEX=qdrant"),
        (&["rebuild", "--index", "qdrant"], "allowed: SEARCH_INDEX=qdrant"),
        (&["drop", "--index", "pgvector"], "or add --bulk-load"),
        (&["drop", "--index", "qdrant"], "when it starts with another SEARCH_INDEX"),
        (&["drop", "--index", "qdrant", "--bulk-load"], "--bulk-load is for --index pgvector"),
    ] {
        let refused = run(&[&["index"], args].concat()).expect(2);
        assert!(refused.stderr.contains(reason), "{args:?}: {}", refused.stderr);
    }
    let dropped = run(&["index", "drop", "--index", "pgvector", "--bulk-load", "--json"]);
    assert_eq!(dropped.expect(0).json()["pgvector"][0]["bytes"], Value::Null);
    assert_eq!(best().await, (face, json!(true)));
    let refused = run(&["index", "recall"]).expect(2);
    assert!(refused.stderr.contains("facecrawl index rebuild"), "{}", refused.stderr);
    let built = run(&["index", "rebuild", "--json"]).expect(0).json();
    assert_eq!(built["pgvector"][0]["complete"], true);
    assert_eq!(best().await.1, json!(false));
    is_measured("pgvector", &run(&["index", "recall", "--json"]).expect(0).json());
    let mut small = program.command("pgvector", &["index", "recall"]);
    let measured = Finished::of(small.env("SEARCH_EXACT_LIMIT", "310")).expect(0);
    assert!(measured.stdout.contains("from a collection with more than 310 faces"), "{}", measured.stdout);
}

#[testing::test(flavor = "multi_thread")]
async fn a_service_works_without_its_qdrant_server_and_can_leave_it() {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    place.run(&["models", "fetch"]).expect(0);
    // Nothing listens on port 1.
    let program = Program::with_server(&place, database.url(), "http://127.0.0.1:1");
    let mut service = program.start("qdrant");
    let mut writer = Writer::new(database.store(), 1).await;
    writer.add().await.unwrap();
    let (_, faces) = writer.images.first_key_value().unwrap();
    let answer =
        service.caller().ask(200, Method::POST, "/faces/search", Some(&search(&faces[2].embedding))).await;
    assert_eq!((found(&answer)[0], &answer["exact"]), (faces[2].id, &json!(true)));
    let status = program.run("qdrant", &["index", "status", "--json"]).expect(0).json();
    assert_eq!(status["changes"], FACES_PER_IMAGE, "the changes wait for the server");
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
    let refused = program.run("qdrant", &["index", "drop", "--index", "pgvector", "--forget"]).expect(2);
    assert!(refused.stderr.contains("--forget is for --index qdrant"), "{}", refused.stderr);
    program.run("pgvector", &["index", "drop", "--index", "qdrant", "--forget"]).expect(0);
    drop(program.start("pgvector"));
    program.run("pgvector", &["index", "drop", "--index", "qdrant", "--forget"]).expect(1);
}
