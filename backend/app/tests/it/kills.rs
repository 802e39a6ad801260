//! Tests that long-running work survives a kill. Completed work is kept, the next run completes the
//! remaining work, and nothing is done twice.
#![cfg(unix)]

use crate::common::process::{Finished, TestFolder};
use crate::common::service::Service;
use bytes::Bytes;
use domain::ClusteringState;
use rustix::process::Signal;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use store::collections::DEFAULT_COLLECTION;
use store::keys::audit::{Action, AuditFilter};
use store::people::SubjectFilter;
use store::{Blobs, Store};
use testing::{Hold, MAX_WAIT, TestDatabase, files_below};
use uuid::Uuid;

/// Number of copies of one face, which is more than one transaction handles.
const COPIES: i64 = 2_000;
/// Number of images whose retention has ended.
const EXPIRED: usize = 2_000;
/// Number of synthetic faces for a clustering, which handles 500 per step.
const DRAWN: i64 = 3_000;

fn on(place: &TestFolder, database: &TestDatabase, args: &[&str]) -> Command {
    let mut command = place.facecrawl(args);
    command.env("DATABASE_URL", database.url());
    command
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + MAX_WAIT;
    while !is_so().await {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn default_collection(store: &Store) -> Uuid {
    store.collection(DEFAULT_COLLECTION).await.unwrap().id
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn embeddings_are_computed_anew_once_each_whoever_is_killed_meanwhile() {
    let ada = testing::picture("ada.jpg");
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    place.put("album/ada.jpg", &ada);
    Finished::of(&mut on(&place, &database, &["scan", "album"])).expect(0);
    let store = database.store();
    let collection = default_collection(&store).await;
    let nothing = Finished::of(&mut on(&place, &database, &["reembed", "--json"])).expect(0).json();
    assert_eq!((&nothing["reembedded"], &nothing["collections"]), (&json!(0), &json!({"default": 0})));
    // Simulates an earlier model with many faces.
    for statement in [
        "insert into embedding_models (identity, name, dimensions) values ('other', 'other', 3)",
        "insert into faces (id, collection_id, image_id, bbox, det_score, landmarks, embedding, model_id, chip_key)
         select ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, collection_id, image_id, bbox, det_score, landmarks, '[1,0,0]', m.id, chip_key
         from faces, generate_series(1, 2000) n, embedding_models m where m.name = 'other'",
        "delete from faces f using embedding_models m where m.id = f.model_id and m.name <> 'other'",
    ] {
        database.execute(statement).await;
    }
    let model = store.register_model("other", "other", 3).await.unwrap().id;
    let left = async || {
        let (all, other) = (store.count_outdated(collection, 0), store.count_outdated(collection, model));
        all.await.unwrap() - other.await.unwrap()
    };
    assert_eq!(left().await, COPIES);
    // The second batch is blocked, so that the process is killed in the middle on any machine.
    let begun =
        "exists (select from faces f join embedding_models m on m.id = f.model_id where m.name <> 'other')";
    let hold = Hold::at(&database, "update", "faces", begun).await;
    let mut killed = on(&place, &database, &["reembed"]);
    let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the first faces", async || left().await < COPIES).await;
    killed.kill().unwrap();
    killed.wait().unwrap();
    hold.release().await;
    let rest = left().await;
    assert!((1..COPIES).contains(&rest), "{rest} faces are left");

    // The chip of one face is deleted in the meantime.
    database
        .execute("update faces set chip_key = null where id = '00000000-0000-7000-8000-000000002000'")
        .await;
    let done = Finished::of(&mut on(&place, &database, &["reembed", "--json"])).expect(3).json();
    assert_eq!(done["reembedded"], rest - 1, "completed faces are not reembedded again: {done}");
    assert_eq!(done["left"][0]["reason"], "no_chip");
    let said =
        Finished::of(&mut on(&place, &database, &["reembed", "--collection", "default"])).expect(1).stdout;
    assert!(said.contains("keeps its embedding of other: no_chip"), "{said}");
    let refused = Finished::of(&mut on(&place, &database, &["reembed", "--collection", "nobodys"])).expect(2);
    assert!(refused.stderr.contains("nobodys"), "{}", refused.stderr);
    // All faces come from the same image, so all have the same embedding under the current model.
    let (_, first) = store.embedding("00000000-0000-7000-8000-000000000001".parse().unwrap()).await.unwrap();
    let (_, last) = store.embedding("00000000-0000-7000-8000-000000001999".parse().unwrap()).await.unwrap();
    assert_eq!((first.len(), &first), (128, &last));
}

/// Inserts 3,000 faces of 100 people, each in a separate image. Two faces of one person have a
/// similarity of at least 0.9; faces of different people, at most 0.1.
async fn draw(database: &TestDatabase) {
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
    for subject in store.subjects(&filter, None, 1_000).await.unwrap() {
        let faces = store.faces_of_subject(collection_id, subject.id, None, 1_000).await.unwrap();
        all.insert(faces.into_iter().map(|face| face.id).collect());
    }
    all
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn a_clustering_goes_on_where_it_was_and_finds_the_same_people() {
    let mut found = Vec::new();
    for kill in [false, true] {
        let (place, database) = (TestFolder::new(), TestDatabase::create().await);
        let start = || Service::start(&mut on(&place, &database, &["up", "--port", "0"]));
        let mut service = start();
        draw(&database).await;
        let store = database.store();
        let collection = default_collection(&store).await;
        // The second step is blocked, so that the process is killed in the middle on any machine.
        let begun = "exists (select from clusterings where looked > 0)";
        let hold = if kill { Some(Hold::at(&database, "update", "clusterings", begun).await) } else { None };
        service
            .caller()
            .ask(202, reqwest::Method::POST, "/collections/default/cluster", Some(&json!({})))
            .await;
        if kill {
            let hold = hold.unwrap();
            let run = async || store.latest_clustering(collection).await.unwrap().unwrap();
            until("a step", async || run().await.looked > 0).await;
            service.signal(Signal::KILL);
            let _ = service.ended();
            hold.release().await;
            let looked = run().await.looked;
            assert!(
                run().await.state == ClusteringState::Running && (1..DRAWN).contains(&looked),
                "{looked}"
            );
            database
                .execute("update jobs set lease_until = now() - interval '1 second' where state = 'running'")
                .await;
            service = start();
        }
        let ended = |run: &serde_json::Value| run["state"] != "running" && run["state"] != "queued";
        let run = service.caller().until("/collections/default/cluster", ended).await;
        assert_eq!(
            (&run["state"], &run["looked"]),
            (&json!("completed"), &json!(DRAWN)),
            "each face once: {run}"
        );
        found.push(clusters(&store).await);
    }
    assert_eq!(found[0].len(), 100, "people");
    assert!(found[0] == found[1], "the people are the same with and without a kill");
}

#[testing::test(flavor = "multi_thread")]
async fn retention_goes_on_where_it_was_and_leaves_neither_rows_nor_blobs() {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let folder = place.path().join("data/blobs");
    let blobs = Blobs::open(folder.to_str().unwrap()).unwrap();
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
    let start = || Service::start(&mut on(&place, &database, &["up", "--port", "0"]));
    let store = database.store();
    let erased = async || {
        let filter = AuditFilter { action: Some(Action::Expire), ..AuditFilter::default() };
        let log = store.audit_log(&filter, None, 1_000).await.unwrap();
        log.iter().map(|record| record.detail["images"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(files_below(&folder).len(), EXPIRED);
    // The second batch is blocked, so that the process is killed in the middle on any machine.
    let begun = "exists (select from audit_log)";
    let hold = Hold::at(&database, "insert", "audit_log", begun).await;
    let mut service = start();
    until("the first images", async || erased().await > 0).await;
    service.signal(Signal::KILL);
    let _ = service.ended();
    hold.release().await;
    let first = erased().await;
    assert!(first < EXPIRED as u64, "{first}");
    assert!(!files_below(&folder).is_empty());

    database.execute("update upkeep set due_at = now()").await;
    let service = start();
    until("the rest", async || erased().await == EXPIRED as u64).await;
    until("the last blobs", async || files_below(&folder).is_empty()).await;
    assert_eq!(service.caller().get("/images").await["images"], json!([]));
    assert_eq!(erased().await, EXPIRED as u64, "each image is counted once");
}

#[testing::test(flavor = "multi_thread")]
async fn a_sweep_says_what_it_finds_and_how_it_went() {
    let ada = testing::picture("ada.jpg");
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    place.put("album/ada.jpg", &ada);
    Finished::of(&mut on(&place, &database, &["scan", "album"])).expect(0);
    let folder = place.path().join("data/blobs");
    let blobs = Blobs::open(folder.to_str().unwrap()).unwrap();
    let old = blobs.put("crops", "jpg", Bytes::from_static(b"old")).await.unwrap();
    let two_hours_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    std::fs::File::open(folder.join(&old)).unwrap().set_modified(two_hours_ago).unwrap();
    let new = blobs.put("crops", "jpg", Bytes::from_static(b"new")).await.unwrap();
    let sweep = |status: i32, args: &[&str]| {
        let all = [&["sweep"], args].concat();
        Finished::of(&mut on(&place, &database, &all)).expect(status)
    };
    let counts = |status: i32, args: &[&str]| -> BTreeMap<String, u64> {
        let found = sweep(status, args).json();
        ["blobs", "orphans", "removed", "missing"]
            .map(|name| (name.to_owned(), found[name].as_u64().unwrap()))
            .into()
    };
    let of = |blobs, orphans, removed, missing| -> BTreeMap<String, u64> {
        let names = [("blobs", blobs), ("missing", missing), ("orphans", orphans), ("removed", removed)];
        names.map(|(name, count)| (name.to_owned(), count)).into()
    };
    assert_eq!(counts(0, &["--dry-run", "--json"]), of(5, 1, 0, 0), "a dry run removes nothing");
    assert_eq!(counts(0, &["--json"]), of(5, 1, 1, 0));
    assert!(!folder.join(&old).exists() && folder.join(&new).exists(), "the new blob may still get its row");
    let chip = files_below(&folder.join("chips")).remove(0);
    std::fs::remove_file(&chip).unwrap();
    let said = sweep(3, &[]).stdout;
    assert!(said.contains("3 blobs; 0 unreferenced for an hour, 0 deleted; 1 missing"), "{said}");
    assert!(said.contains("missing: chips/"), "{said}");
}
