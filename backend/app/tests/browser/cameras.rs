//! Tests the view of cameras.
use crate::stage::Stage;
use testing::camera::{MjpegCamera, Recording};
use testing::film::Film;

#[testing::needs(browser, slow, video)]
#[testing::test(flavor = "multi_thread")]
async fn shows_stops_and_starts_camera() {
    let camera = MjpegCamera::start(&Recording::new(&Film::short()).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("streams.toml");
    let entry = "kind = 'mjpeg'\npurpose = 'Tell the family who is at the door'\nretention_hours = 24\n";
    std::fs::write(&file, format!("[streams.front-door]\nurl = '{}'\n{entry}", camera.url())).unwrap();
    let ffmpeg = testing::ffmpeg();
    let variables = [
        ("STREAMS_FILE", file.to_str().unwrap()),
        ("STREAM_ALLOW_PRIVATE", "127.0.0.0/8"),
        ("FFMPEG", ffmpeg.to_str().unwrap()),
    ];
    let stage = Stage::with_environment(&variables).await;
    let browser = &stage.browser;
    stage.open("/cameras", "Cameras").await;
    browser.until_text("tbody", "Tell the family who is at the door").await;
    browser.until_text("tbody", "Running").await;
    browser.until_text("tbody", "256×160").await;
    stage.check_view("cameras").await;

    browser.click_text("Picture").await;
    browser.until("document.querySelector('dialog img.still')?.naturalWidth === 256").await;
    stage.check_view("camera-picture").await;
    browser.click_text("Close").await;

    browser.click_text("Stop").await;
    browser.until_text("tbody", "Stopped").await;
    browser.until_text(".toast", "The camera will not be watched").await;
    browser.click_text("Start").await;
    browser.until_text("tbody", "Running").await;
    stage.open("/audit", "Audit log").await;
    browser.until_text("tbody", "Picture of a camera requested").await;
    browser.until_text("tbody", "Camera stopped").await;
    stage.stop().await;
}
