//! Tests videos that a worker fetches from their address.
use super::{film, id, list, with_videos};
use crate::support::site::Site;
use crate::support::{App, field, json_of, ok, problem};
use reqwest::StatusCode;
use serde_json::{Value, json};

async fn add(app: &App, url: &str) -> Value {
    let sent = app.post_json("/videos?sampling=fps=5", &json!({"url": url})).await;
    let location = sent.headers()["location"].to_str().unwrap().to_owned();
    json_of(sent, StatusCode::ACCEPTED).await;
    app.until(&location, |video: &Value| video["finished_at"].is_string()).await
}

#[testing::needs(video)]
#[testing::test]
async fn a_video_at_an_address_is_read_and_erased_with_its_address() {
    let app = with_videos().await;
    let film = film();
    let site = Site::with_film(&[], film.clone()).await;
    let url = format!("{}/film.mp4", site.url);
    let video = add(&app, &url).await;
    assert_eq!((&video["state"], &video["people"]), (&json!("completed"), &json!(7)), "{video:#}");
    assert_eq!((&video["source_url"], &video["bytes"]), (&json!(url), &json!(film.len())));
    // The same file at another address is a duplicate.
    let again = add(&app, &format!("{}/to-film", site.url)).await;
    assert_eq!(
        (&again["state"], &again["reason"]),
        (&json!("failed"), &json!("exact_duplicate")),
        "{again:#}"
    );
    // The erasure of the address erases the video, and it does not return.
    let erasure = json!({"url": url});
    let look = ok(app.post_json("/erasures?dry_run=true", &erasure).await).await;
    assert!(look["faces"].as_i64() > Some(10), "{look:#}");
    let token = id(&look["confirm"]).to_owned();
    json_of(app.post_json(&format!("/erasures?confirm={token}"), &erasure).await, StatusCode::CREATED).await;
    problem(app.get(&format!("/videos/{}", id(&video["id"]))).await, 404, "not_found").await;
    assert!(list(&app.get_ok("/faces").await, "faces").is_empty());
    assert!(list(&app.get_ok("/images").await, "images").is_empty());
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
    for path in ["film.mp4", "to-film"] {
        let refused = add(&app, &format!("{}/{path}", site.url)).await;
        assert_eq!(refused["reason"], "suppressed_url", "{refused:#}");
    }
}

#[testing::needs(video)]
#[testing::test]
async fn addresses_without_a_video_are_refused_or_fail_with_the_reason() {
    let app = with_videos().await;
    let site = Site::with(&["ada_small.jpg"]).await;
    for (url, code) in [
        ("film.mp4", "bad_url"),
        ("file:///etc/passwd", "bad_url"),
        ("ftp://example.org/film.mp4", "bad_url"),
        ("http://169.254.169.254/film.mp4", "forbidden_url"),
        ("http://user:secret@example.org/film.mp4", "forbidden_url"),
    ] {
        let error = problem(app.post_json("/videos", &json!({"url": url})).await, 422, code).await;
        assert_eq!(field(&error), "url", "{error}");
    }
    problem(app.post_json("/videos", &json!({"url": 5})).await, 422, "invalid_field").await;
    problem(app.post_json("/videos", &json!({"uri": "x"})).await, 422, "invalid_field").await;
    for (path, reason) in [
        ("/text", "not_a_video"),
        ("/pictures/ada_small.jpg", "not_a_video"),
        ("/missing", "http_404"),
        ("/to-metadata", "forbidden_address"),
    ] {
        let video = add(&app, &format!("{}{path}", site.url)).await;
        assert_eq!((&video["state"], &video["reason"]), (&json!("failed"), &json!(reason)), "{video:#}");
    }
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn the_json_with_an_address_has_its_own_limits() {
    let app = with_videos().await;
    let long = json!({"url": format!("https://example.org/{}", "a".repeat(40_000))});
    let error = problem(app.post_json("/videos", &long).await, 413, "too_many_bytes").await;
    assert!(error["detail"].as_str().unwrap().contains("32768"), "{error}");
}

#[testing::needs(video)]
#[testing::test]
async fn an_address_that_waits_is_not_added_again_and_a_collection_has_a_limit() {
    let app = with_videos().await;
    let site = Site::with(&[]).await;
    let url = |name: &str| json!({"url": format!("{}/{name}.mp4", site.url)});
    let first = json_of(app.post_json("/videos", &url("missing")).await, StatusCode::ACCEPTED).await;
    let path = format!("/videos/{}", id(&first["id"]));
    app.until(&path, |video: &Value| video["finished_at"].is_string()).await;
    // A paused video has not ended. No worker changes it during the test.
    app.database.execute("update videos set state = 'paused', finished_at = null").await;
    let again = ok(app.post_json("/videos", &url("missing")).await).await;
    assert_eq!(again["id"], first["id"]);
    let fill = "insert into videos (id, collection_id, state, source_url, options)
                select gen_random_uuid(), collection_id, 'paused', source_url || n, options
                from videos, generate_series(1, 999) n";
    app.database.execute(fill).await;
    let refused = app.post_json("/videos", &url("one-more")).await;
    assert_eq!(refused.headers()["retry-after"], "60");
    let error = problem(refused, 429, "overloaded").await;
    assert!(error["detail"].as_str().unwrap().contains("1000 videos"), "{error}");
}
