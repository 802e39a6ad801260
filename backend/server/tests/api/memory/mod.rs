//! What is held in memory is bounded, whoever asks for how much at once.
mod bodies;
mod pixels;

use crate::support::{App, Models, Options};
use server::Config;
use std::time::{Duration, Instant};

/// Sides of a picture as the tests send it.
const SIDE: u32 = 640;
/// What it takes decoded.
const PICTURE: u64 = 640 * 640 * 3;

/// A service with room for so many decoded pictures, and gauges of its own.
async fn spawn(pictures: u64, config: Config, worker: bool) -> App {
    let limits = vision::Limits { max_pixels: PICTURE / 3, ..vision::Limits::default() };
    let decoded_bytes = pictures * PICTURE;
    let pipeline = pipeline::Config { limits, decoded_bytes, ..pipeline::Config::default() };
    let options =
        Options { config, pipeline, worker, models: Models::Fixture, own_gauges: true, ..Options::default() };
    App::spawn_with(options).await
}

/// A gauge of memory, by what holds it.
async fn gauge(app: &App, name: &str, what: &str) -> u64 {
    let text = app.get("/metrics").await.text().await.unwrap();
    let line = format!("facecrawl_held_{name}{{what=\"{what}\"}} ");
    let value = text.lines().find_map(|shown| shown.strip_prefix(&line));
    value.unwrap_or_else(|| panic!("{line} is not in\n{text}")).parse::<f64>().unwrap() as u64
}

/// Waits until a gauge shows `wanted`.
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
