//! Finds what limits the throughput of a measurement.
use crate::Device;
use serde::Serialize;
use std::collections::BTreeMap;

/// Share of used cores above which the CPU is considered saturated.
const BUSY: f64 = 0.85;
/// Wait share (for a thread or session) above which workers are considered saturated.
const WAITING: f64 = 0.1;

/// The measured values that the decision needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    /// Milliseconds per image and stage; the stage `queue` is the waiting time.
    pub(crate) stages: &'a BTreeMap<&'static str, f64>,
    /// The device of each operation.
    pub(crate) device: &'a BTreeMap<&'static str, Device>,
    /// Number of cores that this process may use.
    pub(crate) cores: usize,
    /// CPU time divided by wall time, if the system reports it.
    pub(crate) cores_used: Option<f64>,
    /// Number of concurrent images.
    pub(crate) in_flight: usize,
}

/// What limits the throughput.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bottleneck {
    /// `cpu`, `gpu`, or `concurrency` (nothing is saturated; more images could be in flight).
    pub resource: &'static str,
    /// The stage with the largest share of the work.
    pub stage: &'static str,
    /// The stage's share of the time of all stages except `queue`, from 0 to 1.
    pub share: f64,
    pub why: String,
}

/// Returns the bottleneck, or `None` if nothing was measured.
pub(crate) fn bottleneck(facts: &Facts<'_>) -> Option<Bottleneck> {
    let Facts { stages, device, cores, cores_used, in_flight } = *facts;
    let working = || stages.iter().filter(|(stage, _)| **stage != "queue");
    let work: f64 = working().map(|(_, took)| took).sum();
    let (stage, took) = working().max_by(|a, b| a.1.total_cmp(b.1))?;
    if work <= 0.0 {
        return None;
    }
    let share = took / work;
    let percent = format!("{stage} is {:.0} % of the work", share * 100.0);
    let of_cores = cores_used.map_or_else(
        || format!("an unknown part of {cores} cores"),
        |used| format!("{used:.1} of {cores} cores"),
    );
    let waiting = stages.get("queue").copied().unwrap_or(0.0);
    let place = runs_on(stage, device);
    let saturated = cores_used.is_some_and(|used| used >= BUSY * cores as f64);
    let crowded = waiting > WAITING * (work + waiting);

    let (resource, why) = if let Some(place) = place.filter(|_| !saturated) {
        let more = if crowded { "" } else { "; more images in flight may fill larger batches" };
        ("gpu", format!("{percent}, on {place}, while {of_cores} are busy{more}"))
    } else if saturated {
        ("cpu", format!("{of_cores} are busy; {percent}"))
    } else if crowded && in_flight >= cores {
        (
            "cpu",
            format!(
                "images wait for a thread or a session, but only {of_cores} are available (other processes use the rest); {percent}"
            ),
        )
    } else {
        ("concurrency", format!("only {of_cores} are busy with {in_flight} in flight; {percent}"))
    };
    Some(Bottleneck { resource, stage, share, why })
}

/// Returns the GPU on which a stage runs, or `None` if it runs on the CPU.
fn runs_on<'a>(stage: &str, device: &'a BTreeMap<&'static str, Device>) -> Option<&'a str> {
    let operation = match stage {
        "detect" => "face_detection",
        "embed" => "face_embedding",
        "letterbox" => "image_processing",
        "enhance" => "image_enhancement",
        "quality" => "quality_checks",
        _ => return None,
    };
    let effective = device.get(operation)?.effective.as_str();
    (effective != "cpu").then_some(effective)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        stages: &[(&'static str, f64)],
        detection: &str,
        cores_used: f64,
        in_flight: usize,
    ) -> Option<Bottleneck> {
        let place =
            Device { asked: detection.into(), effective: detection.into(), reason: None, fell_back: false };
        bottleneck(&Facts {
            stages: &stages.iter().copied().collect(),
            device: &BTreeMap::from([("face_detection", place)]),
            cores: 4,
            cores_used: Some(cores_used),
            in_flight,
        })
    }

    #[test]
    fn the_resource_that_is_busy_is_named_with_its_largest_stage() {
        let stages = [("decode", 10.0), ("detect", 30.0), ("queue", 100.0)];
        let busy = found(&stages, "cpu", 3.9, 8).expect("a bottleneck");
        assert_eq!((busy.resource, busy.stage, busy.share), ("cpu", "detect", 0.75));
        assert!(busy.why.contains("3.9 of 4 cores are busy") && busy.why.contains("75 %"), "{}", busy.why);
        let gpu = found(&stages, "cuda:0", 1.0, 8).expect("a bottleneck");
        assert!(gpu.resource == "gpu" && gpu.why.contains("cuda:0"), "{gpu:?}");
        let host = found(&[("decode", 30.0), ("detect", 3.0)], "cuda:0", 3.9, 8).expect("a bottleneck");
        assert_eq!(
            (host.resource, host.stage),
            ("cpu", "decode"),
            "a GPU that waits for pixels is not the bottleneck"
        );
    }

    #[test]
    fn idle_cores_are_too_little_in_flight_unless_pictures_wait() {
        let idle = found(&[("detect", 30.0), ("queue", 0.1)], "cpu", 1.0, 1).expect("a bottleneck");
        assert!(idle.resource == "concurrency" && idle.why.contains("1 in flight"), "{idle:?}");
        let robbed = found(&[("detect", 30.0), ("queue", 60.0)], "cpu", 1.0, 8).expect("a bottleneck");
        assert!(robbed.resource == "cpu" && robbed.why.contains("other processes"), "{robbed:?}");
        assert_eq!(found(&[("queue", 1.0)], "cpu", 1.0, 8), None);
    }
}
