//! Tests that the memory for requests and images is bounded.
mod bodies;
mod pixels;

use crate::support::{App, Models, Options};
use server::Config;
use std::time::{Duration, Instant};

/// Side of the test images in pixels.
const SIDE: u32 = 640;
/// Size of one decoded test image, in bytes.
const PICTURE: u64 = 640 * 640 * 3;

/// Starts a service with room for `pictures` decoded images and with its own gauges.
async fn spawn(pictures: u64, config: Config, worker: bool) -> App {
    let limits = vision::Limits { max_pixels: PICTURE / 3, ..vision::Limits::default() };
    let decoded_bytes = pictures * PICTURE;
    let pipeline = pipeline::Config { limits, decoded_bytes, ..pipeline::Config::default() };
    let options =
        Options { config, pipeline, worker, models: Models::Fixture, own_gauges: true, ..Options::default() };
    App::spawn_with(options).await
}

/// Returns the value of a memory gauge. `what` is the budget.
async fn gauge(app: &App, name: &str, what: &str) -> u64 {
    let text = app.get("/metrics").await.text().await.unwrap();
    let line = format!("facecrawl_held_{name}{{what=\"{what}\"}} ");
    let value = text.lines().find_map(|shown| shown.strip_prefix(&line));
    value.unwrap_or_else(|| panic!("{line} is not in\n{text}")).parse::<f64>().unwrap() as u64
}

async fn until(app: &App, name: &str, what: &str, wanted: u64) {
    let start = Instant::now();
    loop {
        let shown = gauge(app, name, what).await;
        if shown == wanted {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{name} of {what} stays {shown}, not {wanted}");
        tokio::task::yield_now().await;
    }
}
