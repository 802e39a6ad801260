//! What the measurements share: rates, files, and rows of images and faces.
use std::path::{Path, PathBuf};
use std::time::Instant;
use store::faces::NewFace;
use store::images::NewImage;
use testing::embeddings::Random;
use uuid::Uuid;

pub(crate) fn rounded(value: f64, places: i32) -> f64 {
    let scale = 10_f64.powi(places);
    (value * scale).round() / scale
}

pub(crate) fn per_second(count: usize, started: Instant) -> f64 {
    count as f64 / started.elapsed().as_secs_f64()
}

/// Returns the CPU time that all processes of the machine have used, in seconds.
pub(crate) fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    // user, nice, system; 100 ticks per second.
    all.take(3).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Returns the files of a folder and its subfolders, sorted by name.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = testing::files_below(folder);
    files.sort();
    files
}

pub(crate) fn content_type(path: &Path) -> Option<&'static str> {
    Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "jpg" | "jpeg" => "image/jpeg",
        "png" => "image/png",
        "webp" => "image/webp",
        "gif" => "image/gif",
        "avif" => "image/avif",
        _ => return None,
    })
}

/// Returns the row of an image of 1280x720 pixels whose hashes are random.
pub(crate) fn image(random: &mut Random) -> NewImage {
    let mut sha256 = [0; 32];
    sha256.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&random.bits().to_be_bytes()));
    NewImage {
        id: Uuid::now_v7(),
        sha256,
        phash: random.bits().cast_signed(),
        dhash: random.bits().cast_signed(),
        ahash: random.bits().cast_signed(),
        width: 1280,
        height: 720,
        format: "jpeg".into(),
        bytes: 150_000,
        rotation: 0,
        thumbnail_key: None,
    }
}

/// Returns the row of a face without blobs and without the parts of its quality.
pub(crate) fn face(embedding: Vec<f32>, model_id: i32, quality: f32) -> NewFace {
    NewFace {
        id: Uuid::now_v7(),
        bbox: [101.5, 80.25, 64.0, 80.5],
        det_score: 0.91,
        landmarks: [0.5; 10],
        quality: None,
        quality_overall: Some(quality),
        quality_passed: Some(true),
        embedding,
        model_id,
        chip_key: None,
        crop_key: None,
    }
}
