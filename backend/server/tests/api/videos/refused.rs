//! Tests that bad uploads are refused with the reason, and leave nothing.
use super::{film, with_videos};
use crate::support::{App, Options, field, problem};
use server::Config;

#[testing::needs(video)]
#[testing::test]
async fn bad_options_and_files_are_refused_with_the_reason() {
    let app = with_videos().await;
    let send = async |query: &str, content_type: &str, body: &[u8]| {
        app.post_raw(&format!("/videos{query}"), content_type, body.to_vec()).await
    };
    let error = problem(send("", "text/plain", b"film").await, 415, "unsupported_media_type").await;
    assert!(error["allowed"].to_string().contains("video/*"), "{error}");
    let picture = testing::picture("ada_small.jpg");
    for content in [&b"not a video"[..], b"", &picture] {
        let error = problem(send("", "video/mp4", content).await, 415, "not_a_video").await;
        assert!(error["allowed"].to_string().contains("Matroska"), "{error}");
    }
    for (query, wrong) in [
        ("?sampling=all", "sampling"),
        ("?sampling=fps=99", "sampling"),
        ("?max_gap_ms=5", "max_gap_ms"),
        ("?fps=5", "fps"),
        ("?refine=true&sampling=fps=5", "refine"),
        ("?refine=true&sampling=keyframes", "refine"),
        ("?refine=perhaps", "refine"),
    ] {
        let error = problem(send(query, "video/mp4", b"").await, 400, "bad_query").await;
        assert_eq!(field(&error), wrong, "{error}");
    }
    problem(send("?collection=none", "video/mp4", b"").await, 404, "not_found").await;
    problem(app.get("/videos/5").await, 400, "bad_id").await;
    assert!(app.get_ok("/videos").await["videos"].as_array().unwrap().is_empty());
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
}

#[testing::needs(video)]
#[testing::test]
async fn a_large_video_is_refused_and_a_service_without_a_decoder_says_so() {
    let config = Config { max_video_bytes: 100_000, ..Config::default() };
    let app = App::spawn_with(Options { videos: true, config, ..Options::default() }).await;
    let film = film();
    assert!(film.len() > 100_000);
    let error =
        problem(app.post_raw("/videos", "video/mp4", film.clone()).await, 413, "too_many_bytes").await;
    assert!(error["detail"].as_str().unwrap().contains("100000"), "{error}");
    assert!(testing::files_below(app.blob_folder.path()).is_empty());
    let app = App::spawn().await;
    let error = problem(app.post_raw("/videos", "video/mp4", film).await, 503, "video_unavailable").await;
    assert_eq!(error["detail"], "this test has no ffmpeg");
}
