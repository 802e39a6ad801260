//! Tests the commands with which operators manage jobs and API keys.
use crate::common::service::{Output, Service, TestFolder, client, get};
use queue::{NewJob, Queue};
use serde_json::{Value, json};
use testing::TestDatabase;

/// Adds one waiting job and two discarded jobs.
async fn add_jobs(database: &TestDatabase) {
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
    add_jobs(&database).await;
    let folder = TestFolder::new();
    let jobs = |args: &[&str]| folder.run_with(&database, &[&["jobs", "--json"], args].concat());
    let discarded = ids(&jobs(&["list"]).success().json());
    assert_eq!(discarded.len(), 2);
    assert_eq!(ids(&jobs(&["list", "--before", &discarded[0]]).success().json()), discarded[1..]);
    let first_page = jobs(&["list", "--limit", "1"]).success().json();
    assert_eq!((ids(&first_page), &first_page["next"]), (discarded[..1].to_vec(), &json!(discarded[0])));
    assert_eq!(jobs(&["list", "--limit", "2"]).success().json()["next"], json!(null));
    let all = ids(&jobs(&["list", "--state", "any", "--kind", "work"]).success().json());
    assert_eq!(all.len(), 3);
    let job = jobs(&["show", &discarded[0]]).success().json();
    assert_eq!((&job["state"], &job["last_error"]), (&json!("discarded"), &json!("the disk is full")));
    assert_eq!(job["payload"], json!({"number": 2}));
    jobs(&["list", "--state", "lost"]).fails(2, &["\"lost\"", "retryable", "any"]);
    let unknown = "00000000-0000-7000-8000-000000000000";
    jobs(&["show", unknown]).fails(2, &[unknown]);

    assert_eq!(jobs(&["purge", "--older-than", "1h"]).success().json()["purged"], 0);
    jobs(&["purge"]).fails(2, &["--older-than"]);

    let stats = jobs(&["stats"]).success().json();
    assert_eq!((&stats["kinds"][0]["kind"], &stats["kinds"][0]["discarded"]), (&json!("work"), &json!(2)));
    let retried = jobs(&["retry", &discarded[0], unknown]).assert_status(3).json();
    assert_eq!((&retried["retried"], &retried["left"][0]["id"]), (&json!(1), &json!(unknown)));
    assert_eq!(jobs(&["retry", "--all", "--kind", "other"]).success().json()["retried"], 0);
    assert_eq!(jobs(&["retry", "--all"]).success().json()["retried"], 1);
    assert!(ids(&jobs(&["list"]).success().json()).is_empty());
    assert_eq!(jobs(&["cancel", &all[0], &all[1], &all[2]]).success().json()["cancelled"], 3);
    assert_eq!(ids(&jobs(&["list", "--state", "cancelled"]).success().json()), all);
    jobs(&["cancel", &all[0]]).assert_status(1);
    for args in
        [&["retry"][..], &["retry", "--all", unknown], &["retry", unknown, "--kind", "work"], &["cancel"]]
    {
        jobs(args).assert_status(2);
    }

    let table = folder.run_with(&database, &["jobs", "list", "--state", "any"]).success();
    assert!(table.stdout.contains(&all[0]) && !table.stderr.contains("--before"), "{table:?}");
    let table = folder.run_with(&database, &["jobs", "list", "--state", "any", "--limit", "2"]).success();
    let hint = format!("2 shown; --before {} lists more", all[1]);
    assert!(!table.stdout.contains(&all[2]) && table.stderr.contains(&hint), "{table:?}");
    let table = folder.run_with(&database, &["jobs", "stats"]);
    assert!(table.success().stdout.contains("Completed/s"));
}

#[testing::test(flavor = "multi_thread")]
async fn jobs_purge_deletes_only_old_discarded_jobs() {
    let database = TestDatabase::create().await;
    add_jobs(&database).await;
    database
        .execute(
            "update finished_jobs set finished_at = now() - interval '31 days'
             where id = (select id from finished_jobs order by id limit 1)",
        )
        .await;
    let folder = TestFolder::new();
    let jobs = |args: &[&str]| folder.run_with(&database, &[&["jobs"], args].concat());
    assert_eq!(jobs(&["purge", "--older-than", "30d"]).success().stdout.trim(), "1 purged");
    assert_eq!(ids(&jobs(&["list", "--json"]).success().json()).len(), 1);
    assert_eq!(database.number("select count(*) from jobs").await, 1, "the waiting job");
}

#[testing::test(flavor = "multi_thread")]
async fn key_created_on_command_line_works_until_revoked() {
    let folder = TestFolder::new();
    // The commands connect to the private database of the service.
    let bin = testing::database::programs();
    let facecrawl = |args: &[&str]| {
        let mut command = folder.facecrawl(args);
        command.env("POSTGRES_BIN_DIR", &bin).env("AUTH", "keys");
        command
    };
    let keys = |args: &[&str]| Output::run(facecrawl(&["keys"]).args(args)).success();
    let mut service = Service::start(&mut facecrawl(&["--port", "0"]));
    // The service logs at start that there is no key, before it responds to a request. The key is
    // therefore created after the first response.
    let url = format!("{}/faces", service.base);
    assert_eq!(get(&url).await.0, 401);
    let created = keys(&["create", "--collection", "default", "--scope", "read,search", "--expires", "90d"]);
    let key = created.stdout.trim();
    assert!(key.starts_with("fc_") && created.stderr.contains("only time"), "{created:?}");
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
    let parent = keys(&["create", "--all", "--scope", "read,keys", "--json"]).json();
    let body = serde_json::json!({"name": "a", "collection": null, "scopes": ["read"]});
    let request = client.post(format!("{}/keys", service.base)).bearer_auth(parent["key"].as_str().unwrap());
    assert_eq!(request.json(&body).send().await.unwrap().status(), 201);
    let id = parent["id"].as_str().unwrap();
    let first = keys(&["revoke", id]);
    assert!(first.stderr.contains("still work: 1") && first.stderr.contains("--descendants"), "{first:?}");
    let keys_report = keys(&["revoke", id, "--descendants", "--json"]).json();
    assert_eq!([&keys_report["descendants_revoked"], &keys_report["descendants_working"]], [1, 0]);
    assert_eq!(keys(&["list", "--json"]).json()["keys"][0]["made_by"], id);
    let log = service.stop();
    assert!(log.contains("there is no key yet") && !log.contains(key), "{log}");
}

#[testing::test(flavor = "multi_thread")]
async fn invalid_key_option_error_names_allowed_values() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let refused = |args: &[&str], words: &[&str]| {
        folder.run_with(&database, &[&["keys"], args].concat()).fails(2, words)
    };
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
