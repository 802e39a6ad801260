//! Tests erasures of videos: what they delete, and that the file is rejected afterwards.
use super::{analyze, app_with_videos, clip};
use crate::erasures::dump;
use crate::support::site::Site;
use crate::support::{Json, erase_confirmed, field, ok, problem};
use axum::Router;
use axum::http::header;
use axum::response::Html;
use axum::routing::get;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Notify;

#[testing::needs(video)]
#[testing::test]
async fn erased_video_is_deleted_and_file_rejected() {
    let app = app_with_videos().await;
    let file = clip();
    let video = analyze(&app, "", file.clone()).await;
    let faces = app.get_ok("/faces?limit=1000").await.list("faces").len();
    let body = json!({"video_id": video["id"]});
    let error = json!({"video_id": video["id"], "suppress_person": true});
    let error = problem(app.post_json("/erasures", &error).await, 422, "invalid_field").await;
    assert_eq!(field(&error), "suppress_person");
    let two_targets = json!({"video_id": video["id"], "url": "http://127.0.0.1/"});
    problem(app.post_json("/erasures", &two_targets).await, 422, "invalid_field").await;

    let (preview, result) = erase_confirmed(&app, &body).await;
    for response in [&preview, &result] {
        assert_eq!(
            (&response["videos"], response["faces"].as_u64()),
            (&json!(1), Some(faces as u64)),
            "{response:#}"
        );
    }
    let erasure = &result["erasure"];
    assert_eq!(
        (&erasure["kind"], &erasure["videos"], &erasure["suppressions"]),
        (&json!("video"), &json!(1), &json!(1))
    );
    problem(app.get(&format!("/videos/{}", video.text("id"))).await, 404, "not_found").await;
    problem(app.post_json("/erasures", &body).await, 404, "not_found").await;
    for path in ["/faces", "/images", "/videos"] {
        assert!(app.get_ok(path).await.list(&path[1..]).is_empty(), "{path}");
    }
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
    let audit = app.get_ok("/audit?action=erasure.create").await;
    assert_eq!(audit.list("records")[0]["detail"]["videos"], 1);
    assert_eq!(app.get_ok("/erasures").await.list("erasures")[0]["videos"], 1);

    problem(app.post_raw("/videos", "video/mp4", file.clone()).await, 409, "conflict").await;
    assert!(testing::files_below(app.blob_folder.path()).is_empty(), "the rejected upload must not be kept");
    let lift = format!("/erasures/{}/suppressions", erasure.text("id"));
    ok(app.delete(&lift).await).await;
    assert_eq!(analyze(&app, "", file).await["state"], "completed");
}

/// Serves a page with a video, and a page that responds late and contains the video again.
async fn site(file: Vec<u8>, request_arrived: Arc<Notify>, release: Arc<Notify>) -> Site {
    let video = || {
        let file = file.clone();
        get(move || async move { ([(header::CONTENT_TYPE, "video/mp4")], file.clone()) })
    };
    let page = "<title>First page</title><video src=/secret.mp4></video><a href=/late>late</a>";
    let late = "<title>Late page</title><video src=/secret.mp4></video><video src=/copy.mp4></video>";
    Site::start(
        Router::new()
            .route("/", get(move || async move { Html(page) }))
            .route(
                "/late",
                get(move || async move {
                    request_arrived.notify_one();
                    release.notified().await;
                    Html(late)
                }),
            )
            .route("/secret.mp4", video())
            .route("/copy.mp4", video()),
    )
    .await
}

#[testing::needs(video)]
#[testing::test]
async fn erased_video_stays_suppressed_on_later_crawl_pages() {
    let app = app_with_videos().await;
    let (request_arrived, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let site = site(clip(), request_arrived.clone(), release.clone()).await;
    let body = json!({"seeds": [format!("{}/", site.url)], "delay_ms": 0, "videos": true});
    let created = app.create("/crawls", &body).await;
    let path = format!("/videos?crawl_id={}", created.text("id"));
    request_arrived.notified().await;
    let is_completed = |list: &Value| list.list("videos").iter().any(|video| video["state"] == "completed");
    let list = app.poll(&path, is_completed).await;
    let (_, result) = erase_confirmed(&app, &json!({"video_id": list["videos"][0]["id"]})).await;
    // The file and its address are suppressed.
    assert_eq!(result["erasure"]["suppressions"], 2, "{result:#}");
    assert!(app.get_ok("/faces").await.list("faces").is_empty());

    release.notify_one();
    let crawled = app.wait_for_crawl(created.text("id")).await;
    let videos = app.get_ok(&path).await;
    let [copy] = videos.list("videos").as_slice() else { panic!("{videos:#}") };
    assert_eq!(
        (&copy["state"], &copy["reason"]),
        (&json!("failed"), &json!("suppressed_video")),
        "{crawled:#}"
    );
    assert_eq!((&copy["source_url"], &copy["page_url"]), (&Value::Null, &Value::Null));
    assert!(app.get_ok("/faces").await.list("faces").is_empty());
    let rows = dump(&app);
    for erased in ["secret.mp4", "copy.mp4", "First page", "Late page"] {
        assert!(!rows.contains(erased), "{erased}");
    }
}

#[testing::needs(video)]
#[testing::test]
async fn page_with_only_suppressed_video_stores_no_title() {
    let app = app_with_videos().await;
    let page = "<title>Portrait of a person</title><video src=/secret.mp4></video>";
    let site = Site::start(Router::new().route("/", get(move || async move { Html(page) }))).await;
    erase_confirmed(&app, &json!({"url": format!("{}/secret.mp4", site.url)})).await;
    for videos in [true, false] {
        let crawled = app.crawl_with(json!({"seeds": [site.page()], "videos": videos})).await;
        assert_eq!(crawled["state"], "completed");
        let rows = dump(&app);
        assert!(!rows.contains("Portrait of a person") && !rows.contains("secret.mp4"), "videos: {videos}");
    }
}

#[testing::needs(video)]
#[testing::test]
async fn recrawled_video_of_erased_faces_stores_no_url() {
    let (app, file) = (app_with_videos().await, clip());
    let video = get(move || async move { ([(header::CONTENT_TYPE, "video/mp4")], file.clone()) });
    let page = || get(async || Html("<title>quaxtitle</title><video src=/quaxfilm.mp4></video>"));
    let site = Site::start(Router::new().route("/quaxpage", page()).route("/quaxfilm.mp4", video)).await;
    let crawl = async || {
        let body = json!({"seeds": [format!("{}quaxpage", site.page())], "delay_ms": 0, "videos": true});
        let crawled = app.crawl_with(body).await;
        app.get_ok(&format!("/videos?crawl_id={}", crawled.text("id"))).await["videos"][0].clone()
    };
    let first = crawl().await;
    assert_eq!(first["state"], "completed", "{first:#}");
    let words = || {
        let dump = dump(&app);
        ["quaxtitle", "quaxfilm"].into_iter().filter(|word| dump.contains(word)).collect::<Vec<_>>()
    };
    assert_eq!(words(), ["quaxtitle", "quaxfilm"]);
    // The erasure of a face erases its whole track.
    loop {
        let tracks = app.get_ok(&format!("/videos/{}/tracks", first.text("id"))).await;
        let Some(face) = tracks.list("tracks").iter().find_map(|track| track["faces"][0]["face_id"].as_str())
        else {
            break;
        };
        erase_confirmed(&app, &json!({"face_id": face})).await;
    }
    assert_eq!(words(), [] as [&str; 0]);

    let second = crawl().await;
    assert_eq!((&second["source_url"], &second["page_url"]), (&Value::Null, &Value::Null), "{second:#}");
    assert_eq!(words(), [] as [&str; 0]);
    assert!(app.get_ok("/faces").await.list("faces").is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn job_records_omit_host_of_erased_video() {
    let app = app_with_videos().await;
    let site = Site::start(
        Router::new().route("/", get(async || Html("<video src=http://quaxhost.invalid/a.mp4></video>"))),
    )
    .await;
    let body = json!({"seeds": [site.page()], "delay_ms": 0, "videos": true, "respect_robots": false});
    app.create("/crawls", &body).await;
    let count_errors = |jobs: &Value| {
        let errors = jobs.list("jobs").iter().filter_map(|job| job["last_error"].as_str());
        errors.filter(|error| error.contains("quaxhost")).count()
    };
    app.poll("/jobs?kind=fetch_video", |jobs| count_errors(jobs) > 0).await;
    erase_confirmed(&app, &json!({"url": "http://quaxhost.invalid/a.mp4"})).await;
    let jobs = app.poll("/jobs?kind=fetch_video", |jobs| jobs.list("jobs")[0]["state"] != "running").await;
    assert_eq!(count_errors(&jobs), 0, "{jobs:#}");
}
