//! Describes what the measurements read from the process in which they run.
use crate::Counters;

/// The process that runs the measurements.
#[derive(Clone, Debug)]
pub struct Process {
    /// Number of cores that the process may use.
    pub cores: usize,
    /// Returns the CPU time of all threads in seconds, or `None` if the system does not report it.
    pub cpu_seconds: fn() -> Option<f64>,
    /// Returns the CPU time of ended child processes in seconds, or `None` if the system does not
    /// report it.
    pub children_cpu_seconds: fn() -> Option<f64>,
    /// The counters of the engines.
    pub counters: Counters,
}
