//! Tests clips (`POST /videos/detect`), the limits on waiting videos and on disk space, and
//! rejected uploads.
use super::{app_with_videos, clip};
use crate::support::{App, Json, Options, field, ok, problem, to_json};
use pipeline::VideoLimits;
use reqwest::StatusCode;
use serde_json::{Value, json};
use server::Config;
use testing::film::{Codec, Container, Encoding, repeat};

async fn detect_lines(app: &App, query: &str, file: Vec<u8>) -> Vec<Value> {
    let response = app.post_raw(&format!("/videos/detect{query}"), "video/mp4", file).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.text().await.unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[testing::needs(video)]
#[testing::test]
async fn video_detection_streams_frame_lines_and_final_tracks() {
    let app = app_with_videos().await;
    let lines = detect_lines(&app, "?sampling=fps=5&embeddings=true", clip()).await;
    let (last, frames) = lines.split_last().unwrap();
    assert_eq!(frames.len(), 126);
    let times: Vec<i64> = frames.iter().map(|frame| frame["at_ms"].as_i64().unwrap()).collect();
    // Five frames a second, and the last one.
    let expected: Vec<i64> = (0..125).map(|at| 200 * at).chain([24_960]).collect();
    assert_eq!(times, expected);
    assert!(
        frames
            .iter()
            .flat_map(|frame| frame.list("faces"))
            .all(|face| face["det_score"].as_f64() > Some(0.5))
    );
    assert_eq!(last["people"], 7);
    let video = &last["video"];
    assert_eq!((video["codec"].as_str(), video["frames"].as_u64()), (Some("h264"), Some(126)));
    for track in last.list("tracks") {
        let shot = &track.list("faces")[0];
        assert_eq!(shot["embedding"].as_array().map(Vec::len), Some(128), "{track}");
        // The boxes of a track are those of the frames.
        let first = &track.list("boxes")[0];
        let frame = frames.iter().find(|frame| frame["at_ms"] == first[0]).unwrap();
        assert!(frame.list("faces").iter().any(|face| {
            let is_close =
                |at: usize| (face["box"][at].as_f64().unwrap() - first[at + 1].as_f64().unwrap()).abs() < 1.0;
            (0..4).all(is_close)
        }));
    }
    // Nothing is stored.
    assert!(app.get_ok("/videos").await.list("videos").is_empty());
    assert!(app.get_ok("/faces").await.list("faces").is_empty());
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn refine_adds_frames_near_faces() {
    let app = app_with_videos().await;
    let auto = detect_lines(&app, "", clip()).await;
    let refined = detect_lines(&app, "?refine=true", clip()).await;
    let times =
        |lines: &[Value]| -> Vec<i64> { lines.iter().filter_map(|line| line["at_ms"].as_i64()).collect() };
    let (auto, refined_times) = (times(&auto), times(&refined));
    assert!(refined_times.is_sorted_by(|a, b| a < b));
    assert!(auto.iter().all(|at| refined_times.contains(at)), "{auto:?} {refined_times:?}");
    assert!(refined_times.len() > 3 * auto.len(), "{auto:?} {refined_times:?}");
    assert_eq!(refined.last().unwrap()["people"], 7);
    let response = app.post_raw("/videos/detect?refine=true&sampling=fps=5", "video/mp4", clip()).await;
    let error = problem(response, 400, "bad_query").await;
    assert_eq!(crate::support::field(&error), "refine", "{error}");
}

#[testing::needs(video)]
#[testing::test]
async fn unusable_clip_is_rejected_with_reason() {
    let app = app_with_videos().await;
    let send = async |query: &str, body: Vec<u8>| {
        app.post_raw(&format!("/videos/detect{query}"), "video/mp4", body).await
    };
    problem(send("", b"not a video".to_vec()).await, 415, "not_a_video").await;
    let mut truncated = clip();
    // The index of an MP4 of the tests is at its end.
    truncated.truncate(truncated.len() / 2);
    let error = problem(send("", truncated).await, 422, "corrupt_video").await;
    assert!(error.text("detail").len() > 10, "{error}");
    let folder = tempfile::tempdir().unwrap();
    let (short_path, path) = (folder.path().join("film.mp4"), folder.path().join("long.mp4"));
    std::fs::write(&short_path, clip()).unwrap();
    repeat(&short_path, 3, &Encoding::new(Codec::H264, Container::Mp4), &path).unwrap();
    let error = problem(send("", std::fs::read(&path).unwrap()).await, 413, "video_too_large").await;
    assert!(error.text("detail").contains("60"), "{error}");
    problem(send("?sampling=all", Vec::new()).await, 400, "bad_query").await;
    let app = App::spawn().await;
    let response = app.post_raw("/videos/detect", "video/mp4", clip()).await;
    problem(response, 503, "video_unavailable").await;
}

/// Returns a service without a worker.
async fn app_with_limits(video_limits: VideoLimits) -> App {
    let app = App::spawn_with(Options { videos: true, worker: false, video_limits, ..Options::default() });
    let app = app.await;
    app.create("/collections", &json!({"name": "other"})).await;
    app
}

/// Returns a video that differs from others by its last byte.
fn variant(file: &[u8], last: u8) -> Vec<u8> {
    [file, &[last]].concat()
}

#[testing::needs(video)]
#[testing::test]
async fn collection_limits_number_of_waiting_videos() {
    let app = app_with_limits(VideoLimits { videos: 2, ..VideoLimits::default() }).await;
    let file = clip();
    let send = async |query: &str, last: u8| {
        app.post_raw(&format!("/videos{query}"), "video/mp4", variant(&file, last)).await
    };
    let first = to_json(send("", 1).await, StatusCode::ACCEPTED).await;
    to_json(send("", 2).await, StatusCode::ACCEPTED).await;
    let response = send("", 3).await;
    assert_eq!(response.headers()["retry-after"], "60");
    problem(response, 429, "overloaded").await;
    assert_eq!(testing::files_below(app.blob_folder.path()).len(), 2, "the third file is not kept");
    problem(app.post_json("/videos", &json!({"url": "http://127.0.0.1:9/a.mp4"})).await, 429, "overloaded")
        .await;
    to_json(send("?collection=other", 3).await, StatusCode::ACCEPTED).await;
    app.post_ok(&format!("/videos/{}/cancel", first.text("id")), &json!({})).await;
    to_json(send("", 3).await, StatusCode::ACCEPTED).await;
}

#[testing::needs(video)]
#[testing::test]
async fn collection_limits_bytes_of_waiting_videos() {
    let file = clip();
    let bytes = i64::try_from(file.len()).unwrap() + 1;
    let app = app_with_limits(VideoLimits { bytes, ..VideoLimits::default() }).await;
    let send = async |last: u8| app.post_raw("/videos", "video/mp4", variant(&file, last)).await;
    to_json(send(1).await, StatusCode::ACCEPTED).await;
    let error = problem(send(2).await, 429, "overloaded").await;
    assert!(error.text("detail").contains("MiB"), "{error}");
    // The same file needs no more space, but the caller has not sent it yet.
    assert_eq!(testing::files_below(app.blob_folder.path()).len(), 1);
}

#[testing::needs(video)]
#[testing::test]
async fn uploads_fail_on_full_disk() {
    let app = App::spawn_with(Options { videos: true, disk_reserve: u64::MAX, ..Options::default() }).await;
    for path in ["/videos", "/videos/detect"] {
        problem(app.post_raw(path, "video/mp4", clip()).await, 507, "disk_full").await;
    }
    let person = app.create("/subjects", &json!({"name": "Ada"})).await;
    let path = format!("/subjects/{}/faces?force=true", person.text("id"));
    let response = app.post_raw(&path, "image/jpeg", testing::drawing("ada_small.jpg")).await;
    problem(response, 507, "disk_full").await;
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
    assert!(app.get_ok("/images").await.list("images").is_empty());
    // Searches and deletions still work.
    app.get_ok("/health/ready").await;
}

#[testing::needs(video)]
#[testing::test]
async fn failed_video_with_url_can_be_retried() {
    let app = app_with_videos().await;
    let path = "/videos/0198f1c2-7d10-7000-8000-4a6f1f6e2b07/retry";
    problem(app.post_json(path, &json!({})).await, 404, "not_found").await;
    let url = json!({"url": "http://127.0.0.1:9/a.mp4"});
    let video = to_json(app.post_json("/videos", &url).await, StatusCode::ACCEPTED).await;
    let path = format!("/videos/{}", video.text("id"));
    app.post_ok(&format!("{path}/pause"), &json!({})).await;
    let retry = async || app.post_json(&format!("{path}/retry"), &json!({})).await;
    assert_eq!(app.get_ok(&path).await["retryable"], false, "a paused video cannot be retried");
    problem(retry().await, 409, "conflict").await;
    app.database.execute("update videos set state = 'failed', finished_at = now(), source_url = null").await;
    assert_eq!(app.get_ok(&path).await["retryable"], false, "a video without a URL cannot be retried");
    problem(retry().await, 409, "conflict").await;
    app.database.execute("update videos set source_url = 'http://127.0.0.1:9/a.mp4'").await;
    assert_eq!(app.get_ok(&path).await["retryable"], true);
    let retried = ok(retry().await).await;
    assert_eq!((retried.text("state"), &retried["finished_at"]), ("queued", &json!(null)));
    assert_eq!(retried["retryable"], false);
}

#[testing::needs(video)]
#[testing::test]
async fn invalid_video_options_and_files_are_rejected_with_reason() {
    let app = app_with_videos().await;
    let send = async |query: &str, content_type: &str, body: &[u8]| {
        app.post_raw(&format!("/videos{query}"), content_type, body.to_vec()).await
    };
    let error = problem(send("", "text/plain", b"film").await, 415, "unsupported_media_type").await;
    assert!(error["allowed"].to_string().contains("video/*"), "{error}");
    let image = testing::drawing("ada_small.jpg");
    for content in [&b"not a video"[..], b"", &image] {
        let error = problem(send("", "video/mp4", content).await, 415, "not_a_video").await;
        assert!(error["allowed"].to_string().contains("Matroska"), "{error}");
    }
    for (query, name) in [
        ("?sampling=all", "sampling"),
        ("?sampling=fps=99", "sampling"),
        ("?max_gap_ms=5", "max_gap_ms"),
        ("?fps=5", "fps"),
        ("?refine=true&sampling=fps=5", "refine"),
        ("?refine=true&sampling=keyframes", "refine"),
        ("?refine=perhaps", "refine"),
    ] {
        let error = problem(send(query, "video/mp4", b"").await, 400, "bad_query").await;
        assert_eq!(field(&error), name, "{error}");
    }
    problem(send("?collection=none", "video/mp4", b"").await, 404, "not_found").await;
    problem(app.get("/videos/5").await, 400, "bad_id").await;
    assert!(app.get_ok("/videos").await.list("videos").is_empty());
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn upload_fails_for_oversized_video_or_missing_decoder() {
    let config = Config { max_video_bytes: 100_000, ..Config::default() };
    let app = App::spawn_with(Options { videos: true, config, ..Options::default() }).await;
    let file = clip();
    assert!(file.len() > 100_000);
    let error =
        problem(app.post_raw("/videos", "video/mp4", file.clone()).await, 413, "too_many_bytes").await;
    assert!(error.text("detail").contains("100000"), "{error}");
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
    let app = App::spawn().await;
    let error = problem(app.post_raw("/videos", "video/mp4", file).await, 503, "video_unavailable").await;
    assert_eq!(error["detail"], "this test has no ffmpeg");
}
