//! Helpers that the measurements share: rates and files.
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(crate) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}

pub(crate) fn per_second(count: usize, started: Instant) -> f64 {
    count as f64 / started.elapsed().as_secs_f64()
}

/// Returns the CPU time that all processes of the machine have used, in seconds.
pub(crate) fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let times = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    // user, nice, system; 100 ticks per second.
    times.take(3).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
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
