//! Tests the commands with which operators manage jobs and API keys.
use crate::common::service::{Finished, Service, TestFolder, client, get};
use queue::{NewJob, Queue};
use serde_json::{Value, json};
use testing::TestDatabase;

/// Adds one waiting job and two discarded jobs.
async fn filled(database: &TestDatabase) {
    let queue = Queue::new(database.pool().clone(), queue::Config::default());
    let store = database.store();
    let mut tx = store.begin().await.unwrap();
    let jobs =
        [1, 2, 3].map(|number| NewJob { priority: number, ..NewJob::new("work", json!({"number": number})) });
    queue.enqueue(tx.conn(), &jobs).await.unwrap();
    tx.commit().await.unwrap();
    for job in queue.claim(&["work".to_owned()], 2, "test").await.unwrap() {
        let mut tx = store.begin().await.unwrap();
        queue.fail(tx.conn(), job.claim, "the disk is full", true, None).await.unwrap();
        tx.commit().await.unwrap();
    }
}

fn ids(list: &Value) -> Vec<String> {
    list["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

#[testing::test(flavor = "multi_thread")]
async fn jobs_command_lists_retries_and_cancels_jobs() {
    let database = TestDatabase::create().await;
    filled(&database).await;
    let place = TestFolder::new();
    let jobs = |args: &[&str]| place.run_on(&database, &[&["jobs", "--json"], args].concat());
    let discarded = ids(&jobs(&["list"]).expect(0).json());
    assert_eq!(discarded.len(), 2);
    assert_eq!(ids(&jobs(&["list", "--before", &discarded[0]]).expect(0).json()), discarded[1..]);
    let first = jobs(&["list", "--limit", "1"]).expect(0).json();
    assert_eq!((ids(&first), &first["next"]), (discarded[..1].to_vec(), &json!(discarded[0])));
    assert_eq!(jobs(&["list", "--limit", "2"]).expect(0).json()["next"], json!(null));
    let any = ids(&jobs(&["list", "--state", "any", "--kind", "work"]).expect(0).json());
    assert_eq!(any.len(), 3);
    let shown = jobs(&["show", &discarded[0]]).expect(0).json();
    assert_eq!((&shown["state"], &shown["last_error"]), (&json!("discarded"), &json!("the disk is full")));
    assert_eq!(shown["payload"], json!({"number": 2}));
    jobs(&["list", "--state", "lost"]).fails(2, &["\"lost\"", "retryable", "any"]);
    let nobody = "00000000-0000-7000-8000-000000000000";
    jobs(&["show", nobody]).fails(2, &[nobody]);

    assert_eq!(jobs(&["purge", "--older-than", "1h"]).expect(0).json()["purged"], 0);
    jobs(&["purge"]).fails(2, &["--older-than"]);

    let stats = jobs(&["stats"]).expect(0).json();
    assert_eq!((&stats["kinds"][0]["kind"], &stats["kinds"][0]["discarded"]), (&json!("work"), &json!(2)));
    let some = jobs(&["retry", &discarded[0], nobody]).expect(3).json();
    assert_eq!((&some["retried"], &some["left"][0]["id"]), (&json!(1), &json!(nobody)));
    assert_eq!(jobs(&["retry", "--all", "--kind", "other"]).expect(0).json()["retried"], 0);
    assert_eq!(jobs(&["retry", "--all"]).expect(0).json()["retried"], 1);
    assert!(ids(&jobs(&["list"]).expect(0).json()).is_empty());
    assert_eq!(jobs(&["cancel", &any[0], &any[1], &any[2]]).expect(0).json()["cancelled"], 3);
    assert_eq!(ids(&jobs(&["list", "--state", "cancelled"]).expect(0).json()), any);
    jobs(&["cancel", &any[0]]).expect(1);
    for refused in
        [&["retry"][..], &["retry", "--all", nobody], &["retry", nobody, "--kind", "work"], &["cancel"]]
    {
        jobs(refused).expect(2);
    }

    let table = place.run_on(&database, &["jobs", "list", "--state", "any"]).expect(0);
    assert!(table.stdout.contains(&any[0]) && !table.stderr.contains("--before"), "{table:?}");
    let table = place.run_on(&database, &["jobs", "list", "--state", "any", "--limit", "2"]).expect(0);
    let more = format!("2 shown; --before {} lists more", any[1]);
    assert!(!table.stdout.contains(&any[2]) && table.stderr.contains(&more), "{table:?}");
    let table = place.run_on(&database, &["jobs", "stats"]);
    assert!(table.expect(0).stdout.contains("Completed/s"));
}

#[testing::test(flavor = "multi_thread")]
async fn jobs_purge_deletes_only_old_discarded_jobs() {
    let database = TestDatabase::create().await;
    filled(&database).await;
    database
        .execute(
            "update finished_jobs set finished_at = now() - interval '31 days'
             where id = (select id from finished_jobs order by id limit 1)",
        )
        .await;
    let place = TestFolder::new();
    let jobs = |args: &[&str]| place.run_on(&database, &[&["jobs"], args].concat());
    assert_eq!(jobs(&["purge", "--older-than", "30d"]).expect(0).stdout.trim(), "1 purged");
    assert_eq!(ids(&jobs(&["list", "--json"]).expect(0).json()).len(), 1);
    assert_eq!(database.number("select count(*) from jobs").await, 1, "the waiting job");
}

#[testing::test(flavor = "multi_thread")]
async fn key_created_on_command_line_works_until_revoked() {
    let place = TestFolder::new();
    // The commands connect to the private database of the service.
    let bin = testing::database::programs();
    let facecrawl = |args: &[&str]| {
        let mut command = place.facecrawl(args);
        command.env("POSTGRES_BIN_DIR", &bin).env("AUTH", "keys");
        command
    };
    let keys = |args: &[&str]| Finished::of(facecrawl(&["keys"]).args(args)).expect(0);
    let mut service = Service::start(&mut facecrawl(&["--port", "0"]));
    // At start, the service logs that there is no key yet. It answers only after that, so the key
    // is created after the first answer.
    let url = format!("{}/faces", service.base);
    assert_eq!(get(&url).await.0, 401);
    let made = keys(&["create", "--collection", "default", "--scope", "read,search", "--expires", "90d"]);
    let key = made.stdout.trim();
    assert!(key.starts_with("fc_") && made.stderr.contains("only time"), "{made:?}");
    let client = client();
    assert_eq!(client.get(&url).bearer_auth(key).send().await.unwrap().status(), 200);

    let listed = keys(&["list", "--json"]);
    assert!(!listed.stdout.contains(key), "{}", listed.stdout);
    let listed = listed.json();
    let id = listed["keys"][0]["id"].as_str().unwrap();
    assert_eq!(listed["keys"][0]["collection"], "default");
    assert_eq!(listed["keys"][0]["scopes"], serde_json::json!(["read", "search"]));
    assert!(keys(&["revoke", id]).stdout.contains("revoked"));
    assert!(keys(&["list"]).stdout.contains("revoked"));
    while client.get(&url).bearer_auth(key).send().await.unwrap().status() == 200 {
        tokio::task::yield_now().await;
    }

    // When a key is revoked, the keys that were created with it over HTTP are counted, and are
    // revoked on request.
    let maker = keys(&["create", "--all", "--scope", "read,keys", "--json"]).json();
    let body = serde_json::json!({"name": "a", "collection": null, "scopes": ["read"]});
    let make = client.post(format!("{}/keys", service.base)).bearer_auth(maker["key"].as_str().unwrap());
    assert_eq!(make.json(&body).send().await.unwrap().status(), 201);
    let id = maker["id"].as_str().unwrap();
    let alone = keys(&["revoke", id]);
    assert!(alone.stderr.contains("still work: 1") && alone.stderr.contains("--descendants"), "{alone:?}");
    let both = keys(&["revoke", id, "--descendants", "--json"]).json();
    assert_eq!([&both["descendants_revoked"], &both["descendants_working"]], [1, 0]);
    assert_eq!(keys(&["list", "--json"]).json()["keys"][0]["made_by"], id);
    let log = service.stop();
    assert!(log.contains("there is no key yet") && !log.contains(key), "{log}");
}

#[testing::test(flavor = "multi_thread")]
async fn invalid_key_option_error_names_allowed_values() {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let refused =
        |args: &[&str], words: &[&str]| place.run_on(&database, &[&["keys"], args].concat()).fails(2, words);
    refused(&["create", "--scope", "read"], &["--collection", "--all"]);
    refused(&["create", "--all"], &["--scope"]);
    refused(&["create", "--all", "--scope", "root"], &["root", "analyze", "admin"]);
    refused(&["create", "--all", "--collection", "default", "--scope", "read"], &["--all"]);
    refused(&["create", "--collection", "nobodys", "--scope", "read"], &["nobodys", "default"]);
    refused(&["create", "--collection", "default", "--scope", "system"], &["system", "all collections"]);
    refused(&["create", "--all", "--scope", "read", "--expires", "soon"], &["soon", "90d"]);
    refused(&["create", "--all", "--scope", "read", "--requests-per-minute", "0"], &["0"]);
    refused(&["create", "--all", "--scope", "read", "--name", ""], &["1 to 200"]);
    refused(&["revoke", "7"], &["7"]);
    refused(&["revoke", "00000000-0000-7000-8000-000000000000"], &["keys list"]);
}
