//! Tests `POST /crawls/{id}/{pause,resume,cancel}` and `DELETE /crawls/{id}`.
use crate::support::site::Site;
use crate::support::{App, Options, json_of, ok, problem};
use reqwest::StatusCode;
use serde_json::json;

#[testing::test]
async fn a_crawl_is_held_let_go_and_ended() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let body = json!({"seeds": ["http://127.0.0.1:9/"]});
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    let path = format!("/crawls/{}", created["id"].as_str().unwrap());
    let verb = async |name: &str| app.post_json(&format!("{path}/{name}"), &json!({})).await;

    problem(verb("resume").await, 409, "conflict").await;
    assert_eq!(ok(verb("pause").await).await["state"], "paused");
    problem(verb("pause").await, 409, "conflict").await;
    problem(app.delete(&path).await, 409, "conflict").await;
    assert_eq!(ok(verb("resume").await).await["state"], "running");
    problem(app.delete(&path).await, 409, "conflict").await;
    let cancelled = ok(verb("cancel").await).await;
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(cancelled["counts"]["pages"], json!({"queued": 0, "fetched": 0, "skipped": 1, "failed": 0}));
    assert_eq!(cancelled["reasons"], json!({"cancelled": 1}));
    for name in ["pause", "resume", "cancel"] {
        problem(verb(name).await, 409, "conflict").await;
        let nowhere = format!("/crawls/00000000-0000-7000-8000-000000000000/{name}");
        problem(app.post_json(&nowhere, &json!({})).await, 404, "not_found").await;
    }
    assert_eq!(app.delete(&path).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&path).await, 404, "not_found").await;
    problem(app.delete(&path).await, 404, "not_found").await;
}

#[testing::test]
async fn a_deleted_crawl_leaves_its_images_unless_asked_to_take_them() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg"]).await;
    let first = app.crawl(&[site.page()]).await;
    let path = format!("/crawls/{}", first["id"].as_str().unwrap());
    problem(app.delete(&format!("{path}?with_images=perhaps")).await, 400, "bad_query").await;
    assert_eq!(app.delete(&path).await.status(), StatusCode::NO_CONTENT);
    let kept = app.get_ok("/images").await;
    assert_eq!(kept["images"].as_array().unwrap().len(), 1);
    assert_eq!(kept["images"][0]["sources"][0]["crawl_id"], json!(null));

    let other = Site::with(&["ben_2.jpg"]).await;
    let second = app.crawl(&[other.page()]).await;
    assert_eq!(app.get_ok("/images").await["images"].as_array().unwrap().len(), 2);
    let path = format!("/crawls/{}?with_images=true", second["id"].as_str().unwrap());
    assert_eq!(app.delete(&path).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(app.get_ok("/images").await["images"], kept["images"]);
}
