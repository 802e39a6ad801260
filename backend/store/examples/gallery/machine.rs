//! What the machine and its processes use.
use std::path::Path;

/// Returns the CPU time that all processes of the machine have used, in seconds.
pub(crate) fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<f64> =
        text.lines().next().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
    // user, nice, system; 100 ticks per second.
    ticks.iter().take(3).sum::<f64>() / 100.0
}

/// Returns the resident memory of the process with this id, in MB. It includes the files that are
/// mapped and in memory.
pub(crate) fn resident_mb(process: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or_default() / 1024.0
}

/// Returns the space that the files of a folder occupy, in bytes.
pub(crate) fn disk_usage(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => disk_usage(&entry.path()),
        Ok(data) => std::os::unix::fs::MetadataExt::blocks(&data) * 512,
        Err(_) => 0,
    });
    sizes.sum()
}
