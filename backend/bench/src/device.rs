//! Reports the devices of the operations that a measurement uses.
use crate::{BenchTarget, Side};
use serde::Serialize;
use std::collections::BTreeMap;

/// The device of an operation.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// The requested device: `cpu`, `cuda`, `auto`, …
    pub asked: String,
    /// The device that does the work: `cpu`, `cuda:0`, …
    pub effective: String,
    /// Why the two devices differ.
    pub reason: Option<String>,
    /// Whether a GPU was requested and the CPU does the work.
    pub fell_back: bool,
}

/// Returns the devices of the operations that `target` uses.
pub(crate) fn devices(side: &Side, target: BenchTarget) -> BTreeMap<&'static str, Device> {
    let all = side.analyzer.engine().operations();
    let used = target.uses().iter().filter_map(|operation| {
        let found = all.iter().find(|report| report.operation == operation.name())?;
        let device = Device {
            asked: found.requested.clone(),
            effective: found.effective.clone(),
            reason: found.reason.clone(),
            fell_back: found.gpu_requested && found.effective == "cpu",
        };
        Some((operation.name(), device))
    });
    used.collect()
}
