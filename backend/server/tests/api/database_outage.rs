//! Tests the API while its database connections are terminated.
use crate::support::images::drawing;
use crate::support::{App, Json, Models, Options, key_options, problem};
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use store::keys::Scope;

/// Number of retries that the service must perform before the test ends.
const MIN_RETRIES: u64 = 20;
const CALLERS: usize = 8;

/// Terminates all connections except the one that runs this statement.
const TERMINATE_CONNECTIONS: &str = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";

async fn fixture_app() -> App {
    let options = Options { models: Models::Fixture, worker: false, ..Options::default() };
    App::spawn_with(options).await
}

/// Returns the number of retries so far, summed over all services of this process.
async fn retry_count(app: &App) -> u64 {
    let text = app.get("/metrics").await.text().await.unwrap();
    let lines = text.lines().filter(|line| line.starts_with("facecrawl_database_retries_total{"));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64).sum()
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_and_searches_survive_cut_database_connections() {
    let app = Arc::new(fixture_app().await);
    let (is_over, response_count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let embedding: Vec<f32> =
        (0..app.state.services.analyzer.engine().embedder().dimensions).map(|n| 1.0 + n as f32).collect();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (app, is_over, response_count) =
                (Arc::clone(&app), Arc::clone(&is_over), Arc::clone(&response_count));
            let search = json!({"embedding": embedding});
            tokio::spawn(async move {
                while !is_over.load(Ordering::SeqCst) {
                    let response = match caller % 4 {
                        0 => app.get("/crawls").await,
                        1 => app.get("/faces?limit=5").await,
                        2 => app.get("/jobs?state=any").await,
                        _ => app.post_json("/faces/search", &search).await,
                    };
                    let status = response.status();
                    let text = response.text().await.unwrap();
                    if text.contains("outcome_unknown") {
                        // The commit of the search's audit record may have an unknown outcome. Then
                        // the caller receives an error, and the search is not repeated.
                        assert_eq!((status.as_u16(), caller % 4), (503, 3), "{text}");
                    } else {
                        assert_eq!(status, 200, "{text}");
                    }
                    response_count.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let before = retry_count(&app).await;
    let mut terminations = 0;
    while retry_count(&app).await < before + MIN_RETRIES {
        let previous = response_count.load(Ordering::SeqCst);
        app.database.execute(TERMINATE_CONNECTIONS).await;
        terminations += 1;
        assert!(terminations < 10_000, "no database call was retried");
        while response_count.load(Ordering::SeqCst) == previous {
            assert!(callers.iter().all(|caller| !caller.is_finished()), "a caller received a wrong response");
            tokio::task::yield_now().await;
        }
    }
    is_over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.unwrap();
    }
}

/// Adds a trigger to the audit log that runs the function `fail` at commit. `create_function` is
/// the SQL that creates this function. The function increments the sequence `attempts`.
async fn add_commit_trigger(app: &App, create_function: &'static str) {
    app.database.execute("create sequence attempts").await;
    app.database.execute(create_function).await;
    app.database
        .execute(
            "create constraint trigger fail after insert on audit_log deferrable initially deferred
             for each row execute function fail()",
        )
        .await;
}

async fn search(app: &App) -> reqwest::Response {
    let dimensions = app.state.services.analyzer.engine().embedder().dimensions;
    app.post_json("/faces/search", &json!({"embedding": vec![1.0; dimensions]})).await
}

#[testing::test]
async fn persistent_database_error_returns_503_with_retry_after() {
    let app = fixture_app().await;
    add_commit_trigger(
        &app,
        "create function fail() returns trigger language plpgsql as
         $$ begin perform nextval('attempts'); raise exception 'always' using errcode = '40001'; end $$",
    )
    .await;
    let response = search(&app).await;
    assert_eq!(response.headers()["retry-after"], "5");
    let problem = problem(response, 503, "database_unavailable").await;
    assert_eq!(problem["reason"], json!(null));
    // There are ten attempts, or fewer if they are slow.
    assert!((2..=10).contains(&app.database.number("select last_value from attempts").await));
}

#[testing::test]
async fn change_with_unknown_outcome_is_reported_without_retry() {
    let app = fixture_app().await;
    add_commit_trigger(
        &app,
        "create function fail() returns trigger language plpgsql as
         $$ begin perform nextval('attempts'); perform pg_terminate_backend(pg_backend_pid()); return null; end $$",
    )
    .await;
    let problem = problem(search(&app).await, 503, "database_unavailable").await;
    assert_eq!(problem["reason"], "outcome_unknown");
    assert_eq!(app.database.number("select last_value from attempts").await, 1);
}

/// Makes the first statement that changes one of these tables fail with a deadlock. The sequence
/// `attempts` counts the statements.
const DEADLOCK: [&str; 6] = [
    "create sequence attempts",
    "create function fail() returns trigger language plpgsql as
     $$ begin
         if nextval('attempts') = 1 then
             raise exception 'simulated deadlock' using errcode = '40P01';
         end if;
         return null;
     end $$",
    "create trigger fail before insert or update on audit_log for each statement execute function fail()",
    "create trigger fail before insert or update or delete on subjects for each statement execute function fail()",
    "create trigger fail before insert or delete on subject_faces for each statement execute function fail()",
    "create trigger fail before insert or update on clusterings for each statement execute function fail()",
];

/// A service in which the first attempt of every change fails with a deadlock.
struct AppWithDeadlocks {
    app: App,
    key: String,
}

impl AppWithDeadlocks {
    /// Sends a change and returns its response. Checks that the change was attempted again and
    /// succeeded.
    async fn change(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let request = self.app.client.request(method.clone(), format!("{}{path}", self.app.url));
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        self.send(&format!("{method} {path}"), request).await
    }

    async fn send(&self, label: &str, request: reqwest::RequestBuilder) -> Value {
        self.app.database.execute("alter sequence attempts restart").await;
        let response = request.bearer_auth(&self.key).send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        assert!(status.is_success(), "{label}: {text}");
        let attempts = self.app.database.number("select last_value from attempts").await;
        assert!(attempts > 1, "{label} had no deadlock");
        if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() }
    }

    async fn enrol(&self, subject: &Value, file: &str) -> Value {
        let path = format!("/subjects/{}/faces?force=true", subject.text("id"));
        let request = self.app.client.post(format!("{}{path}", self.app.url)).body(drawing(file));
        self.send(&path, request.header("content-type", "image/jpeg")).await["faces"][0].clone()
    }
}

#[testing::test]
async fn change_after_deadlock_is_retried() {
    let options = Options { worker: false, webhook_secret: Some("a secret of the tests"), ..key_options() };
    let app = App::spawn_with(options).await;
    let (_, key) = app.create_key(None, Scope::ALL).await;
    for statement in DEADLOCK {
        app.database.execute(statement).await;
    }
    let app = AppWithDeadlocks { app, key };
    let (post, patch, delete) = (Method::POST, Method::PATCH, Method::DELETE);
    let text = |value: &Value| value.as_str().unwrap().to_owned();

    app.change(post.clone(), "/collections", Some(json!({"name": "press"}))).await;
    app.change(patch.clone(), "/collections/press", Some(json!({"match_threshold": 0.5}))).await;
    app.change(post.clone(), "/collections/press/webhook-secret", Some(json!({}))).await;
    app.change(delete.clone(), "/collections/press", None).await;
    let created = json!({"name": "desk", "collection": null, "scopes": ["read"]});
    let created = app.change(post.clone(), "/keys", Some(created)).await;
    app.change(post.clone(), &format!("/keys/{}/revoke", text(&created["key"]["id"])), None).await;

    let ada = app.change(post.clone(), "/subjects", Some(json!({"name": "Ada"}))).await;
    let ben = app.change(post.clone(), "/subjects", Some(json!({"name": "Ben"}))).await;
    let (ada_id, ben_id) = (text(&ada["id"]), text(&ben["id"]));
    app.change(patch, &format!("/subjects/{ada_id}"), Some(json!({"name": "Ada L"}))).await;
    let face = app.enrol(&ada, "ada.jpg").await;
    let move_request = json!({"face_ids": [face["face_id"]], "move": true});
    app.change(post.clone(), &format!("/subjects/{ben_id}/faces?force=true"), Some(move_request)).await;
    let face_path = format!("/subjects/{ben_id}/faces/{}", text(&face["face_id"]));
    app.change(delete.clone(), &format!("{face_path}?enrolled_images=keep"), None).await;
    app.change(post.clone(), &format!("/subjects/{ada_id}/merge"), Some(json!({"subjects": [ben_id]}))).await;
    app.change(delete.clone(), &format!("/faces/{}", text(&face["face_id"])), None).await;
    let face = app.enrol(&ada, "ben.jpg").await;
    app.change(delete.clone(), &format!("/images/{}", text(&face["image_id"])), None).await;
    let cora = app.change(post.clone(), "/subjects", Some(json!({"name": "Cora"}))).await;
    let face = app.enrol(&cora, "cora.jpg").await;
    app.change(post.clone(), "/collections/default/cluster", Some(json!({}))).await;
    let erased = app.change(post, "/erasures", Some(json!({"face_id": face["face_id"]}))).await;
    let erasure = text(&erased["erasure"]["id"]);
    app.change(delete.clone(), &format!("/erasures/{erasure}/suppressions"), None).await;
    app.change(delete, &format!("/subjects/{ada_id}"), None).await;
}
