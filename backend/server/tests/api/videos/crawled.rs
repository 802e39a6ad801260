//! Tests videos that crawls find, and videos that a worker fetches from their address.
use super::{app_with_videos, clip};
use crate::erasures::dump;
use crate::support::site::Site;
use crate::support::{App, Json, erase_confirmed, field, merge, ok, problem, to_json};
use axum::Router;
use axum::http::header;
use axum::response::{Html, Redirect};
use axum::routing::get;
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use testing::film::{Codec, Container, Encoding, Film};
use tokio::sync::Notify;

/// Serves a page with videos: one at two addresses, one that robots.txt forbids, one with the tag
/// `noai`, and a text file. Two pages link to the first one.
async fn site(file: Vec<u8>) -> Site {
    let video = move |tags: &'static str| {
        let file = file.clone();
        get(move || async move { ([(header::CONTENT_TYPE, "video/mp4"), (X_ROBOTS, tags)], file.clone()) })
    };
    let page = "<video src=/anna.mp4></video><a href=/anna-moved.mp4>again</a><a href=/private/film.mp4>private</a>\
                <video><source src=/noai.mp4></video><a href=/text.mp4>text</a><a href=/second>second</a>";
    Site::start(
        Router::new()
            .route("/", get(move || async move { Html(page) }))
            .route("/second", get(|| async { Html("<video src=/anna.mp4></video>") }))
            .route("/robots.txt", get(|| async { "User-agent: *\nDisallow: /private/\n" }))
            .route("/anna.mp4", video("all"))
            .route("/private/film.mp4", video("all"))
            .route("/noai.mp4", video("noai"))
            .route("/anna-moved.mp4", get(|| async { Redirect::temporary("/anna.mp4") }))
            .route("/text.mp4", get(|| async { "no video" })),
    )
    .await
}

const X_ROBOTS: header::HeaderName = header::HeaderName::from_static("x-robots-tag");

async fn start_crawl(app: &App, site: &Site, options: Value) -> Value {
    let body = merge(json!({"seeds": [format!("{}/", site.url)], "delay_ms": 0, "videos": true}), options);
    app.create("/crawls", &body).await
}

async fn crawl(app: &App, site: &Site, options: Value) -> Value {
    let created = start_crawl(app, site, options).await;
    app.wait_for_crawl(created.text("id")).await
}

/// Returns the videos of a crawl by the path of their address.
async fn videos_of(app: &App, crawl: &Value) -> Vec<(String, Value)> {
    let list = app.get_ok(&format!("/videos?limit=100&crawl_id={}", crawl.text("id"))).await;
    let path = |video: &Value| url::Url::parse(video.text("source_url")).unwrap().path().to_owned();
    list.list("videos").iter().map(|video| (path(video), video.clone())).collect()
}

#[testing::needs(video)]
#[testing::test]
async fn crawl_reads_permitted_videos_before_completion() {
    let app = app_with_videos().await;
    let site = site(clip()).await;
    // Videos are read only on request.
    let without = crawl(&app, &site, json!({"videos": false})).await;
    assert_eq!(without["counts"]["videos"]["completed"], 0);
    assert!(app.get_ok("/videos").await.list("videos").is_empty());

    let crawled = crawl(&app, &site, json!({"revalidate": true})).await;
    assert_eq!(crawled["state"], "completed", "{crawled:#}");
    assert_eq!(
        crawled["counts"]["videos"],
        json!({"queued": 0, "running": 0, "paused": 0, "completed": 1, "cancelled": 0, "failed": 4}),
        "{crawled:#}"
    );
    let videos = videos_of(&app, &crawled).await;
    assert_eq!(videos.len(), 5);
    let find = |path: &str| &videos.iter().find(|(at, _)| at == path).unwrap().1;
    for (path, reason) in
        [("/private/film.mp4", "robots_disallowed"), ("/noai.mp4", "noai"), ("/text.mp4", "not_a_video")]
    {
        assert_eq!((&find(path)["state"], &find(path)["reason"]), (&json!("failed"), &json!(reason)));
        assert!(crawled["reasons"][reason].as_i64() >= Some(1), "{crawled:#}");
    }
    // The file was read once, whichever of its addresses came first.
    let (first, second) = (find("/anna.mp4"), find("/anna-moved.mp4"));
    let (video, copy) = if first["state"] == "completed" { (first, second) } else { (second, first) };
    assert_eq!((&copy["reason"], &copy["original_id"]), (&json!("exact_duplicate"), &video["id"]));
    assert_eq!((&video["crawl_id"], &video["page_url"]), (&crawled["id"], &json!(format!("{}/", site.url))));
    assert!(video["people"].as_i64() > Some(1), "{video:#}");
    let faces = app.get_ok(&format!("/faces?limit=100&crawl_id={}", crawled.text("id"))).await;
    assert!(crawled["counts"]["faces"].as_u64() > Some(10), "{crawled:#}");
    assert_eq!(faces.list("faces").len() as u64, crawled["counts"]["faces"].as_u64().unwrap());

    // The erasure of one page on which it was found erases the video at all its addresses.
    let erasure = json!({"url": format!("{}/second", site.url)});
    erase_confirmed(&app, &erasure).await;
    assert!(app.get_ok("/faces").await.list("faces").is_empty());
    problem(app.get(&format!("/videos/{}", video.text("id"))).await, 404, "not_found").await;
    let rows = dump(&app);
    assert!(rows.contains("text.mp4") && !rows.contains("anna"), "{}", rows.len());
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn erased_video_url_is_not_stored_by_crawl() {
    let app = app_with_videos().await;
    let site = site(Vec::new()).await;
    let url = format!("{}/anna.mp4", site.url);
    erase_confirmed(&app, &json!({"url": url})).await;
    let crawled = crawl(&app, &site, json!({})).await;
    let list = app.get_ok(&format!("/videos?crawl_id={}", crawled.text("id"))).await;
    let reasons: Vec<&str> = list.list("videos").iter().map(|video| video.text("reason")).collect();
    assert_eq!(reasons.len(), 4, "{list:#}");
    // The URL that redirects to the erased one is suppressed too.
    assert!(reasons.contains(&"suppressed_url"), "{list:#}");
    let rows = dump(&app);
    assert!(rows.contains("text.mp4") && !rows.contains("anna"), "{}", rows.len());
}

#[testing::needs(video)]
#[testing::test]
async fn crawl_limits_apply_to_videos() {
    let app = app_with_videos().await;
    let site = site(Vec::new()).await;
    for options in [json!({"max_videos": 2}), json!({"max_videos_per_host": 2})] {
        let crawled = crawl(&app, &site, options.clone()).await;
        assert_eq!(videos_of(&app, &crawled).await.len(), 2, "{options}");
        // A crawl without an image, whose videos all failed, has read its pages.
        assert_eq!(crawled["state"], "completed");
    }
    for (options, name) in [
        (json!({"max_videos": 0}), "max_videos"),
        (json!({"max_videos": 10_001}), "max_videos"),
        (json!({"max_videos_per_host": 0}), "max_videos_per_host"),
        (json!({"videos": "yes"}), "videos"),
    ] {
        let body = merge(json!({"seeds": [site.url]}), options);
        let error = problem(app.post_json("/crawls", &body).await, 422, "invalid_field").await;
        assert_eq!(field(&error), name, "{error}");
    }
}

#[testing::needs(video)]
#[testing::test]
async fn cancelled_crawl_cancels_and_deleted_crawl_deletes_videos() {
    let app = app_with_videos().await;
    let (request_arrived, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (arrival_signal, release_signal) = (request_arrived.clone(), release.clone());
    let response = move || async move {
        arrival_signal.notify_one();
        release_signal.notified().await;
        "late"
    };
    let page = "<video src=/held.mp4></video>";
    let routes =
        Router::new().route("/", get(move || async move { Html(page) })).route("/held.mp4", get(response));
    let slow = Site::start(routes).await;
    let created = start_crawl(&app, &slow, json!({})).await;
    request_arrived.notified().await;
    let running = app.get_ok(&format!("/crawls/{}", created.text("id"))).await;
    assert_eq!((&running["state"], &running["counts"]["videos"]["running"]), (&json!("running"), &json!(1)));
    app.post_ok(&format!("/crawls/{}/cancel", created.text("id")), &json!({})).await;
    release.notify_one();
    let (_, video) = videos_of(&app, &created).await.remove(0);
    assert_eq!((&video["state"], &video["reason"]), (&json!("cancelled"), &json!("cancelled")));

    let site = site(clip()).await;
    let crawled = crawl(&app, &site, json!({})).await;
    let path = format!("/crawls/{}?with_images=true", crawled.text("id"));
    let preview = ok(app.delete(&format!("{path}&dry_run=true")).await).await;
    assert!(preview["faces"].as_i64() > Some(10), "{preview:#}");
    let deleted = app.delete(&format!("{path}&confirm={}", preview.text("confirm"))).await;
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    assert!(app.get_ok("/faces").await.list("faces").is_empty());
    assert_eq!(app.get_ok("/videos").await.list("videos").len(), 1, "the video of the other crawl remains");
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
}

#[testing::test]
async fn video_crawl_without_decoder_is_rejected() {
    let app = App::spawn().await;
    let body = json!({"seeds": ["http://127.0.0.1:9/"], "videos": true});
    problem(app.post_json("/crawls", &body).await, 503, "video_unavailable").await;
}

/// Returns a playlist of these files, as a response.
fn playlist(before: &str, files: &[&str], end: &str) -> ([(header::HeaderName, &'static str); 1], String) {
    let files: String = files.iter().map(|file| format!("#EXTINF:6,\n{file}\n")).collect();
    let text = format!("#EXTM3U\n#EXT-X-TARGETDURATION:6\n{before}{files}{end}");
    ([(header::CONTENT_TYPE, "application/vnd.apple.mpegurl")], text)
}

#[testing::needs(video)]
#[testing::test]
async fn playlist_is_read_as_one_video_under_crawl_rules() {
    let app = app_with_videos().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film.ts");
    Film::standard().encode(&Encoding::new(Codec::H264, Container::Ts), &path).unwrap();
    let stream = std::fs::read(path).unwrap();
    let master = "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=9,RESOLUTION=640x360\nlist.m3u8\n\
                  #EXT-X-STREAM-INF:BANDWIDTH=99,RESOLUTION=3840x2160\nmissing.m3u8\n";
    let end = "#EXT-X-ENDLIST\n";
    let key = "#EXT-X-KEY:METHOD=AES-128,URI=\"key\"\n";
    let metadata = "http://169.254.169.254/latest/";
    let page = "<video><source src=/v/master.m3u8 type=application/vnd.apple.mpegurl></video>\
                <a href=/live.m3u8>1</a><a href=/secret.m3u8>2</a><a href=/denied.m3u8>3</a><a href=/inside.m3u8>4</a>\
                <a href=/text.m3u8>5</a>";
    let mut routes = Router::new()
        .route("/", get(move || async move { Html(page) }))
        .route("/robots.txt", get(|| async { "User-agent: *\nDisallow: /private/\n" }))
        .route("/v/master.m3u8", get(move || async move { master }))
        .route("/v/list.m3u8", get(move || async move { playlist("", &["0.ts", "1.ts", "2.ts"], end) }))
        .route("/live.m3u8", get(|| async { playlist("", &["/v/0.ts"], "") }))
        .route("/secret.m3u8", get(move || async move { playlist(key, &["/v/0.ts"], end) }))
        .route("/denied.m3u8", get(move || async move { playlist("", &["/v/0.ts", "/private/1.ts"], end) }))
        .route("/inside.m3u8", get(move || async move { playlist("", &["/v/0.ts", metadata], end) }))
        .route("/text.m3u8", get(move || async move { playlist("", &["/robots.txt"], end) }));
    // A transport stream can be divided after any packet of 188 bytes.
    let part = stream.len() / 188 / 3 * 188;
    for (at, range) in [0..part, part..2 * part, 2 * part..stream.len()].into_iter().enumerate() {
        let bytes = stream[range].to_vec();
        routes = routes.route(&format!("/v/{at}.ts"), get(move || async move { bytes.clone() }));
    }
    let site = Site::start(routes).await;
    let crawled = crawl(&app, &site, json!({})).await;
    let videos = videos_of(&app, &crawled).await;
    let find = |path: &str| &videos.iter().find(|(at, _)| at == path).unwrap().1;
    let file = find("/v/master.m3u8");
    assert_eq!((&file["state"], &file["people"]), (&json!("completed"), &json!(7)), "{file:#}");
    assert_eq!(file["bytes"], stream.len());
    for (path, reason) in [
        ("/live.m3u8", "live_stream"),
        ("/secret.m3u8", "encrypted_video"),
        ("/denied.m3u8", "robots_disallowed"),
        ("/inside.m3u8", "forbidden_address"),
        ("/text.m3u8", "not_a_video"),
    ] {
        assert_eq!(
            (&find(path)["state"], &find(path)["reason"]),
            (&json!("failed"), &json!(reason)),
            "{path}"
        );
    }
    // A caller can also send the URL of a playlist.
    let body = json!({"url": format!("{}/v/master.m3u8", site.url)});
    let added = to_json(app.post_json("/videos", &body).await, StatusCode::ACCEPTED).await;
    let path = format!("/videos/{}", added.text("id"));
    let ended = app.poll(&path, |video: &Value| video["finished_at"].is_string()).await;
    assert_eq!((&ended["reason"], &ended["original_id"]), (&json!("exact_duplicate"), &file["id"]));
}

async fn add_by_url(app: &App, url: &str) -> Value {
    let sent = app.post_json("/videos?sampling=fps=5", &json!({"url": url})).await;
    let location = sent.headers()["location"].to_str().unwrap().to_owned();
    to_json(sent, StatusCode::ACCEPTED).await;
    app.poll(&location, |video: &Value| video["finished_at"].is_string()).await
}

#[testing::needs(video)]
#[testing::test]
async fn video_by_url_is_analysed_and_erased_with_url() {
    let app = app_with_videos().await;
    let file = clip();
    let site = Site::with_video(&[], file.clone()).await;
    let url = format!("{}/film.mp4", site.url);
    let video = add_by_url(&app, &url).await;
    assert_eq!((&video["state"], &video["people"]), (&json!("completed"), &json!(7)), "{video:#}");
    assert_eq!((&video["source_url"], &video["bytes"]), (&json!(url), &json!(file.len())));
    // The same file at another address is a duplicate.
    let second = add_by_url(&app, &format!("{}/to-film", site.url)).await;
    assert_eq!(
        (&second["state"], &second["reason"]),
        (&json!("failed"), &json!("exact_duplicate")),
        "{second:#}"
    );
    // The erasure of the address erases the video, and it does not return.
    let (preview, _) = erase_confirmed(&app, &json!({"url": url})).await;
    assert!(preview["faces"].as_i64() > Some(10), "{preview:#}");
    problem(app.get(&format!("/videos/{}", video.text("id"))).await, 404, "not_found").await;
    assert!(app.get_ok("/faces").await.list("faces").is_empty());
    assert!(app.get_ok("/images").await.list("images").is_empty());
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
    for path in ["film.mp4", "to-film"] {
        let response = add_by_url(&app, &format!("{}/{path}", site.url)).await;
        assert_eq!(response["reason"], "suppressed_url", "{response:#}");
    }
}

#[testing::needs(video)]
#[testing::test]
async fn invalid_video_url_is_rejected_or_fails_with_reason() {
    let app = app_with_videos().await;
    let site = Site::new(&["ada_small.jpg"]).await;
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
        let video = add_by_url(&app, &format!("{}{path}", site.url)).await;
        assert_eq!((&video["state"], &video["reason"]), (&json!("failed"), &json!(reason)), "{video:#}");
    }
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn json_body_with_video_url_has_own_size_limit() {
    let app = app_with_videos().await;
    let long = json!({"url": format!("https://example.org/{}", "a".repeat(40_000))});
    let error = problem(app.post_json("/videos", &long).await, 413, "too_many_bytes").await;
    assert!(error.text("detail").contains("32768"), "{error}");
}

#[testing::needs(video)]
#[testing::test]
async fn pending_video_url_is_reused_and_pending_count_limited() {
    let app = app_with_videos().await;
    let site = Site::new(&[]).await;
    let url = |name: &str| json!({"url": format!("{}/{name}.mp4", site.url)});
    let first = to_json(app.post_json("/videos", &url("missing")).await, StatusCode::ACCEPTED).await;
    let path = format!("/videos/{}", first.text("id"));
    app.poll(&path, |video: &Value| video["finished_at"].is_string()).await;
    // A paused video has not ended. No worker changes it during the test.
    app.database.execute("update videos set state = 'paused', finished_at = null").await;
    let second = app.post_ok("/videos", &url("missing")).await;
    assert_eq!(second["id"], first["id"]);
    let statement = "insert into videos (id, collection_id, state, source_url, options)
                select gen_random_uuid(), collection_id, 'paused', source_url || n, options
                from videos, generate_series(1, 999) n";
    app.database.execute(statement).await;
    let response = app.post_json("/videos", &url("one-more")).await;
    assert_eq!(response.headers()["retry-after"], "60");
    let error = problem(response, 429, "overloaded").await;
    assert!(error.text("detail").contains("1000 videos"), "{error}");
}
