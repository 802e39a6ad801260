//! Tests the operations on cameras. Here, no worker watches one: `pipeline` tests that, and the
//! program's own tests.
use crate::support::{App, FAKE_ID, Json, add_stream, key_options, ok, problem};
use reqwest::{Method, StatusCode};
use serde_json::json;

#[testing::test]
async fn camera_is_listed_started_and_stopped_with_audit() {
    let app = App::spawn().await;
    let collection = app.state.services.store.collections().ensure("default").await.unwrap().id;
    assert_eq!(app.get_ok("/streams").await, json!({"streams": []}));
    let id = add_stream(&app, collection, "door").await;
    let listed = app.get_ok("/streams").await;
    let stream = &listed["streams"][0];
    assert_eq!(listed.list("streams").len(), 1);
    assert_eq!((stream.text("id"), stream.text("name"), stream.text("state")), (&*id, "door", "waiting"));
    assert_eq!((&stream["wanted"], &stream["holder"]), (&json!(true), &json!(null)));
    assert_eq!(&app.get_ok(&format!("/streams/{id}")).await, stream);

    let post = async |action: &str| {
        ok(app.call("", Method::POST, &format!("/streams/{id}/{action}"), None).await).await
    };
    let stopped = post("stop").await;
    assert_eq!((stopped.text("state"), &stopped["wanted"]), ("stopped", &json!(false)));
    // The second call changes nothing.
    post("stop").await;
    assert_eq!(post("start").await.text("state"), "waiting");
    let actions: Vec<String> = app
        .get_ok("/audit")
        .await
        .list("records")
        .iter()
        .map(|record| record.text("action").to_owned())
        .collect();
    assert_eq!(actions, ["stream.start", "stream.stop"]);
    let jobs = app.get_ok("/jobs?state=any&kind=watch_stream").await;
    assert_eq!(jobs.list("jobs").len(), 1, "{jobs}");
}

#[testing::test]
async fn picture_needs_process_that_watches_camera_and_is_audited() {
    let app = App::spawn().await;
    let collection = app.state.services.store.collections().ensure("default").await.unwrap().id;
    let id = add_stream(&app, collection, "door").await;
    let answer = problem(app.get(&format!("/streams/{id}/still")).await, 409, "conflict").await;
    assert!(answer.text("detail").contains("does not watch the camera"), "{answer}");
    let audit = app.get_ok("/audit").await;
    assert_eq!(audit.list("records")[0].text("action"), "stream.still");
    problem(app.get(&format!("/streams/{FAKE_ID}/still")).await, 404, "not_found").await;
}

#[testing::test]
async fn cameras_need_scope_watch() {
    let app = App::spawn_with(key_options()).await;
    let (record, reader) = app.create_key(Some("default"), &[store::keys::Scope::Read]).await;
    let id = add_stream(&app, record.collection_id.unwrap(), "door").await;
    for (method, path) in [
        (Method::GET, "/streams".to_owned()),
        (Method::GET, format!("/streams/{id}")),
        (Method::GET, format!("/streams/{id}/still")),
        (Method::POST, format!("/streams/{id}/start")),
        (Method::POST, format!("/streams/{id}/stop")),
    ] {
        let answer = app.call(&reader, method, &path, None).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{path}");
    }
    let (_, watcher) = app.create_key(Some("default"), &[store::keys::Scope::Watch]).await;
    ok(app.call(&watcher, Method::GET, "/streams", None).await).await;
}
