//! Reads the resident memory of this process and of its children, and summarises it by the position
//! in the video.
use crate::Spread;
use serde::Serialize;
use std::path::PathBuf;

/// Number of parts of the video.
const PARTS: usize = 10;

/// The resident memory at one time, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemorySample {
    /// Position in the video in microseconds.
    pub(super) at_us: i64,
    /// That of this process.
    pub(super) service: u64,
    /// That of the decoder's processes.
    pub(super) decoder: u64,
}

/// The resident memory during the analyses, in bytes, from samples every 0.2 s.
#[derive(Clone, Debug, Serialize)]
pub struct Resident {
    /// Maximum of this process.
    pub peak_service: u64,
    /// Maximum of the decoder's process; `null` if it ended before the first sample.
    pub peak_decoder: Option<u64>,
    /// Maximum of the sum of both. Pages that both use count twice.
    pub peak_together: u64,
    /// The sum of both in each tenth of the video; `null` for a part without a sample.
    pub tenths: Vec<Option<Part>>,
}

/// The resident memory during a part of the video, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Part {
    /// The smallest value.
    pub min: u64,
    /// The median.
    pub median: u64,
    /// The largest value.
    pub max: u64,
}

impl Resident {
    /// Summarises samples of a video of `seconds`. Returns `None` without samples.
    pub(super) fn of(samples: &[MemorySample], seconds: f64) -> Option<Self> {
        let sum = |sample: &MemorySample| sample.service + sample.decoder;
        let part = |number: usize| {
            let inside = |sample: &&MemorySample| {
                let share = sample.at_us as f64 / (seconds * 1e6).max(1.0);
                ((share * PARTS as f64) as usize).min(PARTS - 1) == number
            };
            let values: Vec<f64> = samples.iter().filter(inside).map(|sample| sum(sample) as f64).collect();
            let spread = Spread::of(&values)?;
            Some(Part { min: spread.min as u64, median: spread.median as u64, max: spread.max as u64 })
        };
        Some(Self {
            peak_service: samples.iter().map(|sample| sample.service).max()?,
            peak_decoder: samples.iter().map(|sample| sample.decoder).max().filter(|bytes| *bytes > 0),
            peak_together: samples.iter().map(sum).max()?,
            tenths: (0..PARTS).map(part).collect(),
        })
    }
}

/// Returns the resident memory of this process, or `None` if there is no `/proc`.
pub(super) fn own_resident() -> Option<u64> {
    resident("self")
}

/// Returns the resident memory of the child processes. A child that still runs this program is not
/// counted: until it becomes another program, its memory is that of its parent.
pub(super) fn children_resident() -> u64 {
    let own = program("self");
    let other = |process: &&str| own.is_none() || program(process) != own;
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    children.map(|list| list.split_whitespace().filter(other).filter_map(resident).sum::<u64>()).sum()
}

fn program(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/exe")).ok()
}

fn resident(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_assigned_to_tenths_of_the_video() {
        let sample = |at_us, service, decoder| MemorySample { at_us, service, decoder };
        let samples =
            [sample(0, 10, 0), sample(900_000, 10, 5), sample(900_001, 30, 1), sample(10_500_000, 20, 5)];
        let found = Resident::of(&samples, 10.0).expect("samples");
        assert_eq!((found.peak_service, found.peak_decoder, found.peak_together), (30, Some(5), 31));
        assert_eq!(found.tenths[0], Some(Part { min: 10, median: 15, max: 31 }));
        assert_eq!(found.tenths[9], Some(Part { min: 25, median: 25, max: 25 }));
        assert_eq!(found.tenths[4], None);
        assert!(Resident::of(&[], 10.0).is_none());
        let without = Resident::of(&[sample(0, 10, 0)], 10.0).expect("a sample");
        assert_eq!(without.peak_decoder, None, "no decoder ran at the time of a sample");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_memory_of_this_process_and_its_children_is_read() {
        assert!(own_resident().is_some_and(|bytes| bytes > 100_000));
        let mut child = std::process::Command::new("sleep").arg("30").spawn().expect("a process");
        let started = std::time::Instant::now();
        while children_resident() < 100_000 {
            assert!(started.elapsed().as_secs() < 20, "the process has no memory");
            std::thread::yield_now();
        }
        child.kill().and_then(|()| child.wait()).expect("it ends");
    }
}
