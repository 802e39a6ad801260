//! Derives the values that depend on `PERFORMANCE_MODE`, where their own variables are unset.
use super::{Resolved, Settings, cores};
use inference::PerformanceMode;

/// Maximum number of threads per CPU session that the mode selects. More threads do not make models
/// of this size much faster.
const MAX_THREADS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Performance {
    /// Time in milliseconds that a GPU batch waits for more items.
    pub(super) delay_ms: f64,
    /// Maximum number of items in one run on a GPU.
    pub(super) batch: usize,
    /// Number of sessions per model on the CPU.
    pub(super) sessions: usize,
    pub(super) threads: usize,
}

impl Settings {
    /// Returns the values of the mode. Variables that are set take precedence.
    pub(super) fn performance(&self) -> Performance {
        let gpu = &self.gpu;
        let (delay_ms, batch, threads) = match gpu.performance_mode {
            PerformanceMode::Latency => (0.0, 4, cores().min(MAX_THREADS)),
            PerformanceMode::Throughput => (2.0, 32, 1),
        };
        let threads = gpu.cpu_session_threads.unwrap_or(threads);
        let sessions = match gpu.cpu_sessions {
            0 => (cores() / threads).max(1),
            explicit => explicit,
        };
        Performance {
            delay_ms: gpu.batch_max_delay_ms.unwrap_or(delay_ms),
            batch: gpu.batch_size.unwrap_or(batch),
            sessions,
            threads,
        }
    }
}

/// Displays these values in listings that would otherwise contain "unset".
pub(super) fn show(settings: &Settings, mut resolved: Vec<Resolved>) -> Vec<Resolved> {
    let Performance { delay_ms, batch, sessions, threads } = settings.performance();
    let mode = resolved.iter().find(|r| r.name == "PERFORMANCE_MODE").map(|r| r.source.clone());
    let by_mode = mode.is_some_and(|source| source != "default");
    let chosen = [
        ("BATCH_MAX_DELAY_MS", delay_ms.to_string()),
        ("GPU_BATCH_SIZE", batch.to_string()),
        ("CPU_SESSIONS", sessions.to_string()),
        ("CPU_SESSION_THREADS", threads.to_string()),
    ];
    for (name, value) in chosen {
        for line in resolved.iter_mut().filter(|line| line.name == name) {
            let explicit = line.value.as_deref().is_some_and(|value| value != "0" || name != "CPU_SESSIONS");
            if !explicit {
                line.value = Some(value.clone());
                if by_mode && line.source == "default" {
                    line.source = "PERFORMANCE_MODE".into();
                }
            }
        }
    }
    resolved
}
