//! Reads the CPU time of this process's threads, and adds it up by the part of the work they do.
use std::collections::{BTreeMap, HashMap};

/// First letters of the names of threads, and the part of the work that these threads do.
const PARTS: [(&str, &str); 3] =
    [("video", "read"), ("face_detection", "detect"), ("face_embedding", "embed")];
/// The part of the other threads: canvases, chips, quality, tracks.
const OTHER: &str = "other";

/// The CPU time of threads since a start. A thread that has ended counts until its last sample.
pub(super) struct ThreadTimes {
    /// Nanoseconds by the number of the thread.
    before: HashMap<String, u64>,
    /// Name and nanoseconds by the number of the thread.
    latest: HashMap<String, (String, u64)>,
}

impl ThreadTimes {
    pub(super) fn start() -> Self {
        let before = read().map(|(number, _, time)| (number, time)).collect();
        Self { before, latest: HashMap::new() }
    }

    pub(super) fn sample(&mut self) {
        self.latest.extend(read().map(|(number, name, time)| (number, (name, time))));
    }

    /// Returns the seconds by part; empty if the system does not report them.
    pub(super) fn parts(&self) -> BTreeMap<&'static str, f64> {
        let mut parts = BTreeMap::new();
        for (number, (name, time)) in &self.latest {
            let before = self.before.get(number).copied().unwrap_or(0);
            *parts.entry(part(name)).or_default() += time.saturating_sub(before) as f64 / 1e9;
        }
        parts
    }
}

fn part(name: &str) -> &'static str {
    PARTS.iter().find(|(first, _)| name.starts_with(first)).map_or(OTHER, |(_, part)| part)
}

/// Returns number, name and CPU time in nanoseconds of every thread.
fn read() -> impl Iterator<Item = (String, String, u64)> {
    let folder = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    folder.filter_map(|entry| {
        let text = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok();
        // The first of three numbers is the time on a CPU:
        // https://docs.kernel.org/scheduler/sched-stats.html
        let time = text("schedstat")?.split_whitespace().next()?.parse().ok()?;
        Some((entry.file_name().into_string().ok()?, text("comm")?, time))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_belong_to_the_part_that_their_name_says() {
        let names = ["video\n", "face_detection-\n", "face_embedding-\n", "tokio-rt-worker\n"];
        assert_eq!(names.map(part), ["read", "detect", "embed", "other"]);
    }
}
