//! Kills the service and its database while faces are stored, changed, deleted and searched.
use crate::common::process::TestFolder;
use crate::common::service::client;
use crate::search_index::world::{FACES_PER_IMAGE, Program, Writer, found, search};
use embedded_postgres::Cluster;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::{Store, StoreError};
use testing::embeddings::{DIMENSIONS, Random};
use testing::server::programs;
use testing::{MAX_WAIT, needs};
use uuid::Uuid;

/// Number of changes of the test with failures, unless `INDEX_CHANGES` is set.
const CHANGES: usize = 6_000;

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

async fn wait_for_database(error: &StoreError, waited: &mut Duration) {
    assert!(*waited < MAX_WAIT, "{error}");
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

#[needs(qdrant)]
#[testing::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_index_in_a_server_equals_the_rows_after_kills_of_service_and_database() {
    let changes = std::env::var("INDEX_CHANGES").map_or(CHANGES, |number| number.parse().unwrap());
    let place = TestFolder::new();
    place.run(&["models", "fetch"]).expect(0);
    // The machine continues to run when the server crashes, so data need not reach the disk.
    let server =
        embedded_postgres::Config::new(programs(), place.path().join("postgres")).with_setting("fsync=off");
    let mut cluster = Cluster::start(&server).await.unwrap();
    let url = cluster.default_url();
    let program = Program::with_qdrant(&place, url.clone());
    let mut service = program.start("qdrant");
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
            if let Some(ended) = writers.try_join_next() {
                ended.unwrap();
            }
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
        service = program.start("qdrant");
        *shared.base.lock().unwrap() = service.base.clone();
    }
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    let verify = || program.run("qdrant", &["index", "verify", "--json"]);
    let sets = verify().expect(0).json();
    let rows: i64 = sqlx::query_scalar("select count(*) from faces").fetch_one(store.pool()).await.unwrap();
    assert_eq!(sets[0]["check_result"]["rows"], rows);
    let deadline = Instant::now() + MAX_WAIT;
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
