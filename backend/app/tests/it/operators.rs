//! Tests the commands with which operators manage jobs, API keys and watchlists.
use crate::common::service::{Output, Service, TestFolder, client, get};
use crate::common::sites::serve;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use pipeline::Matcher;
use queue::{NewJob, Queue};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::{Arc, Mutex};
use store::Store;
use store::collections::DEFAULT_COLLECTION;
use store::keys::audit::{Action, AuditFilter};
use store::people::NewSubject;
use testing::embeddings::Random;
use testing::{TestDatabase, rows};
use uuid::Uuid;

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

const WEBHOOK_SECRET: &str = "correct horse battery staple";

/// The headers and the body of each message.
type Messages = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

async fn receive(State(messages): State<Messages>, uri: Uri, headers: HeaderMap, body: Bytes) -> StatusCode {
    messages.lock().unwrap().push((headers, body));
    match uri.path() {
        "/broken" => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::NO_CONTENT,
    }
}

/// Returns the signature of a message (RFC 2104). The secret is shorter than a block.
fn signature(timestamp: &str, body: &[u8]) -> String {
    let mut key = [0; 64];
    key[..WEBHOOK_SECRET.len()].copy_from_slice(WEBHOOK_SECRET.as_bytes());
    let text = [timestamp.as_bytes(), b".", body].concat();
    let inner = Sha256::digest([&key.map(|byte| byte ^ 0x36)[..], &text[..]].concat());
    let outer = Sha256::digest([&key.map(|byte| byte ^ 0x5c)[..], &inner[..]].concat());
    format!("sha256={}", hex::encode(outer))
}

/// Stores an image with one face. All these faces resemble each other.
async fn store_face(store: &Store) -> Uuid {
    let collection = store.collections().get(DEFAULT_COLLECTION).await.unwrap().id;
    let model = store.models().register("test", "test", 3).await.unwrap().id;
    let image = rows::image(&mut Random(Uuid::now_v7().as_u64_pair().1));
    let face = rows::face(vec![1.0, 0.0, 0.0], model, 0.9);
    let mut tx = store.begin().await.unwrap();
    store.suppressions().lock(tx.conn(), collection, false).await.unwrap();
    store.images().insert(tx.conn(), collection, &image).await.unwrap().unwrap();
    store.faces().insert(tx.conn(), collection, image.id, std::slice::from_ref(&face)).await.unwrap();
    tx.commit().await.unwrap();
    face.id
}

/// Creates a subject with this name.
async fn create_subject(store: &Store, name: &str) -> Uuid {
    let collection = store.collections().get(DEFAULT_COLLECTION).await.unwrap().id;
    let new = NewSubject { name: Some(name.into()), metadata: json!({}), ..NewSubject::default() };
    let mut tx = store.begin().await.unwrap();
    let id = store.people().insert(tx.conn(), collection, &new).await.unwrap();
    tx.commit().await.unwrap();
    id
}

fn watch(folder: &TestFolder, database: &TestDatabase, args: &[&str]) -> Output {
    let mut command = folder.facecrawl_with(database, &[&["watch"], args].concat());
    Output::run(command.env("WEBHOOK_SECRET", WEBHOOK_SECRET))
}

#[testing::test(flavor = "multi_thread")]
async fn watch_command_creates_and_lists_watchlists() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let store = database.store();
    create_subject(&store, "Ada Example").await;
    let face = store_face(&store).await.to_string();
    let created = watch(
        &folder,
        &database,
        &[
            "add",
            "Guests",
            "--purpose",
            "Greet the guests",
            "--subject",
            "ada example",
            "--face",
            &face,
            "--threshold",
            "0.5",
            "--webhook",
            "http://127.0.0.1:9/hook",
            "--cooldown",
            "60",
            "--expires",
            "12h",
            "--json",
        ],
    );
    let created = created.success().json();
    for (field, expected) in [
        ("name", json!("Guests")),
        ("state", json!("active")),
        ("subject_count", json!(1)),
        ("face_count", json!(1)),
        ("cooldown_seconds", json!(60)),
        ("webhook", json!("http://127.0.0.1:9/hook")),
    ] {
        assert_eq!(created[field], expected, "{created}");
    }
    let filter = AuditFilter { action: Some(Action::CreateWatchlist), ..AuditFilter::default() };
    let records = store.audit().list(&filter, None, 10).await.unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].detail["purpose"], "Greet the guests");

    store_face(&store).await;
    assert_eq!(Matcher::new(store.clone(), None).step().await.unwrap().alerts, 1);
    database.execute("update alerts set delivery = 'failed'").await;
    let strangers = ["add", "Strangers", "--purpose", "p", "--face", &face, "--notify", "unknown"];
    let output = watch(&folder, &database, &strangers).success().stdout;
    assert!(output.contains("\"Strangers\"") && output.contains("0 people, 1 face"), "{output}");
    let list = watch(&folder, &database, &["list", "--json"]).success().json();
    let numbers =
        |list: &Value| [list["alerts"].as_i64().unwrap(), list["failed_deliveries"].as_i64().unwrap()];
    assert_eq!(list["watchlists"][0]["notify"], "unknown");
    assert_eq!((numbers(&list["watchlists"][0]), numbers(&list["watchlists"][1])), ([0, 0], [1, 1]));
    let table = watch(&folder, &database, &["list"]).success();
    table.assert_table_width();
    for part in ["Failed deliveries", "Guests", "1 person, 1 face", "never"] {
        assert!(table.stdout.contains(part), "{}", table.stdout);
    }
}

#[testing::test(flavor = "multi_thread")]
async fn watch_command_rejects_invalid_watchlists() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let store = database.store();
    for _ in 0..2 {
        create_subject(&store, "Twin").await;
    }
    let face = store_face(&store).await.to_string();
    let add = |args: &[&str]| watch(&folder, &database, &[&["add", "--purpose", "p"], args].concat());
    add(&["Guests", "--face", &face]).success();
    let unknown = "00000000-0000-7000-8000-000000000000";
    for (args, words) in [
        (&["Guests", "--face", &face][..], &["Guests", "already exists"][..]),
        (&["a", "--subject", "Nobody"], &["--subject", "Nobody", "default"]),
        (&["a", "--subject", "twin"], &["several subjects", "id"]),
        (&["a", "--subject", unknown], &["subject", unknown]),
        (&["a", "--face", unknown], &["face", unknown]),
        (&["a"], &["--subject", "--face"]),
        (&["", "--face", &face], &["name", "1 to 200 characters"]),
        (&["a", "--face", &face, "--threshold", "2"], &["-1 to 1"]),
        (&["a", "--face", &face, "--cooldown", "2592001"], &["0..=2592000"]),
        (&["a", "--face", &face, "--expires", "soon"], &["90d"]),
        (&["a", "--face", &face, "--quality-profile", "best"], &["standard"]),
        (&["a", "--face", &face, "--webhook", "http://10.0.0.1/"], &["webhook", "not allowed"]),
        (&["a", "--face", &face, "--webhook", "ftp://example.org/"], &["webhook", "http"]),
        (&["a", "--face", &face, "--collection", "nobodys"], &["nobodys", "default"]),
    ] {
        add(args).fails(2, words);
    }
    let args = ["watch", "add", "a", "--purpose", "p", "--face", &face, "--webhook", "http://127.0.0.1:9/"];
    folder.run_with(&database, &args).fails(2, &["WEBHOOK_SECRET"]);
    assert_eq!(database.number("select count(*) from watchlists").await, 1);
}

#[testing::test(flavor = "multi_thread")]
async fn watch_test_sends_signed_message_without_alert() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let store = database.store();
    let messages = Messages::default();
    let origin = serve(Router::new().fallback(receive).with_state(messages.clone())).await;
    let face = store_face(&store).await.to_string();
    let add = |name: &str, webhook: &[&str]| {
        let args = ["add", name, "--purpose", "p", "--face", &face, "--json"];
        watch(&folder, &database, &[&args[..], webhook].concat()).success().json()
    };
    let created = add("Guests", &["--webhook", &format!("{origin}/hook")]);
    add("Broken", &["--webhook", &format!("{origin}/broken")]);
    add("Away", &["--webhook", "http://127.0.0.1:9/secret-path"]);
    add("Silent", &[]);

    let report = watch(&folder, &database, &["test", "Guests", "--json"]).success().json();
    assert_eq!(
        (&report["accepted"], &report["status"], &report["error"]),
        (&json!(true), &json!(204), &Value::Null)
    );
    let (headers, body) = messages.lock().unwrap().pop().unwrap();
    let header = |name: &str| headers[name].to_str().unwrap();
    assert_eq!(header("x-facecrawl-event"), "alert.test");
    assert_eq!(header("x-facecrawl-delivery"), report["delivery"]);
    assert_eq!(header("x-facecrawl-signature"), signature(header("x-facecrawl-timestamp"), &body));
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&body["event"], &body["delivery"]), (&json!("alert.test"), &report["delivery"]));
    let test = &body["test"];
    assert_eq!((&test["watchlist_id"], &test["collection"]), (&created["id"], &json!("default")));
    assert!(!body.to_string().contains("Guests"), "names are not sent: {body}");
    assert_eq!(database.number("select count(*) from alerts").await, 0);

    let by_id = watch(&folder, &database, &["test", created["id"].as_str().unwrap()]).success();
    assert!(by_id.stdout.contains("accepted") && by_id.stdout.contains("204"), "{by_id:?}");
    let broken = watch(&folder, &database, &["test", "Broken"]).assert_status(1);
    assert!(broken.stdout.contains("status 500") && broken.stdout.contains("2xx"), "{broken:?}");
    let away = watch(&folder, &database, &["test", "Away", "--json"]).assert_status(1).json();
    let error = away["error"].as_str().unwrap();
    assert!(error.contains("connection_refused") && !error.contains("secret-path"), "{away}");
    watch(&folder, &database, &["test", "Silent"]).fails(2, &["no webhook"]);
    watch(&folder, &database, &["test", "Nobody"]).fails(2, &["Nobody", "watch list"]);
}
