//! Tests the limits on videos that wait, and on the space of the disk.
use super::{film, id, with_videos};
use crate::support::{App, Options, json_of, ok, problem};
use pipeline::VideoLimits;
use reqwest::StatusCode;
use serde_json::json;

/// Returns a service without a worker.
async fn with_limits(video_limits: VideoLimits) -> App {
    let app = App::spawn_with(Options { videos: true, worker: false, video_limits, ..Options::default() });
    let app = app.await;
    json_of(app.post_json("/collections", &json!({"name": "other"})).await, StatusCode::CREATED).await;
    app
}

/// Returns a film that differs from others by its last byte.
fn variant(film: &[u8], last: u8) -> Vec<u8> {
    [film, &[last]].concat()
}

#[testing::needs(video)]
#[testing::test]
async fn a_collection_has_a_limit_of_videos_that_wait() {
    let app = with_limits(VideoLimits { videos: 2, ..VideoLimits::default() }).await;
    let film = film();
    let send = async |query: &str, last: u8| {
        app.post_raw(&format!("/videos{query}"), "video/mp4", variant(&film, last)).await
    };
    let first = json_of(send("", 1).await, StatusCode::ACCEPTED).await;
    json_of(send("", 2).await, StatusCode::ACCEPTED).await;
    let refused = send("", 3).await;
    assert_eq!(refused.headers()["retry-after"], "60");
    problem(refused, 429, "overloaded").await;
    assert_eq!(testing::files_below(app.blob_folder.path()).len(), 2, "the third file is not kept");
    problem(app.post_json("/videos", &json!({"url": "http://127.0.0.1:9/a.mp4"})).await, 429, "overloaded")
        .await;
    json_of(send("?collection=other", 3).await, StatusCode::ACCEPTED).await;
    ok(app.post_json(&format!("/videos/{}/cancel", id(&first["id"])), &json!({})).await).await;
    json_of(send("", 3).await, StatusCode::ACCEPTED).await;
}

#[testing::needs(video)]
#[testing::test]
async fn a_collection_has_a_limit_of_bytes_that_wait() {
    let film = film();
    let bytes = i64::try_from(film.len()).unwrap() + 1;
    let app = with_limits(VideoLimits { bytes, ..VideoLimits::default() }).await;
    let send = async |last: u8| app.post_raw("/videos", "video/mp4", variant(&film, last)).await;
    json_of(send(1).await, StatusCode::ACCEPTED).await;
    let error = problem(send(2).await, 429, "overloaded").await;
    assert!(error["detail"].as_str().unwrap().contains("MiB"), "{error}");
    // The same file needs no more space, but the caller has not sent it yet.
    assert_eq!(testing::files_below(app.blob_folder.path()).len(), 1);
}

#[testing::needs(video)]
#[testing::test]
async fn uploads_fail_on_a_full_disk() {
    let app = App::spawn_with(Options { videos: true, disk_reserve: u64::MAX, ..Options::default() }).await;
    for path in ["/videos", "/videos/detect"] {
        problem(app.post_raw(path, "video/mp4", film()).await, 507, "disk_full").await;
    }
    let person = app.post_json("/subjects", &json!({"name": "Ada"})).await;
    let person = json_of(person, StatusCode::CREATED).await;
    let path = format!("/subjects/{}/faces?force=true", id(&person["id"]));
    let refused = app.post_raw(&path, "image/jpeg", testing::picture("ada_small.jpg")).await;
    problem(refused, 507, "disk_full").await;
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
    assert!(app.get_ok("/images").await["images"].as_array().unwrap().is_empty());
    // Searches and deletions still work.
    ok(app.get("/health/ready").await).await;
}

#[testing::needs(video)]
#[testing::test]
async fn a_failed_video_can_be_retried() {
    let app = with_videos().await;
    let path = "/videos/0198f1c2-7d10-7000-8000-4a6f1f6e2b07/retry";
    problem(app.post_json(path, &json!({})).await, 404, "not_found").await;
    let url = json!({"url": "http://127.0.0.1:9/a.mp4"});
    let video = json_of(app.post_json("/videos", &url).await, StatusCode::ACCEPTED).await;
    let path = format!("/videos/{}", id(&video["id"]));
    ok(app.post_json(&format!("{path}/pause"), &json!({})).await).await;
    let retry = async || app.post_json(&format!("{path}/retry"), &json!({})).await;
    assert_eq!(app.get_ok(&path).await["retryable"], false, "it is paused");
    problem(retry().await, 409, "conflict").await;
    app.database.execute("update videos set state = 'failed', finished_at = now(), source_url = null").await;
    assert_eq!(app.get_ok(&path).await["retryable"], false, "its file is not kept");
    problem(retry().await, 409, "conflict").await;
    app.database.execute("update videos set source_url = 'http://127.0.0.1:9/a.mp4'").await;
    assert_eq!(app.get_ok(&path).await["retryable"], true);
    let retried = ok(retry().await).await;
    assert_eq!((id(&retried["state"]), &retried["finished_at"]), ("queued", &json!(null)));
    assert_eq!(retried["retryable"], false);
}
