//! Reads the engine's counters during a measurement: runs on devices, and requests that fell back
//! to the CPU.
use metrics_exporter_prometheus::PrometheusHandle;
use std::collections::BTreeMap;

/// The process's metrics, if they are recorded.
#[derive(Clone, Default)]
pub struct Counters {
    handle: Option<PrometheusHandle>,
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counters").field("recorded", &self.handle.is_some()).finish()
    }
}

/// The counts per operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Number of runs, and number of requests in these runs.
    pub(crate) runs: BTreeMap<String, (f64, f64)>,
    /// Number of requests that ran on the CPU instead of the device.
    pub(crate) fallbacks: f64,
}

impl Counters {
    pub fn new(handle: PrometheusHandle) -> Self {
        Self { handle: Some(handle) }
    }

    pub(crate) fn read(&self) -> Counts {
        self.handle.as_ref().map(|handle| parse(&handle.render())).unwrap_or_default()
    }
}

impl Counts {
    /// Returns the increase from `self` to `later`.
    pub(crate) fn until(&self, later: &Self) -> Self {
        let runs = later.runs.iter().map(|(operation, (runs, requests))| {
            let (old_runs, old_requests) = self.runs.get(operation).copied().unwrap_or_default();
            (operation.clone(), (runs - old_runs, requests - old_requests))
        });
        Self { runs: runs.collect(), fallbacks: later.fallbacks - self.fallbacks }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (operation, (runs, requests)) in &other.runs {
            let mine = self.runs.entry(operation.clone()).or_default();
            *mine = (mine.0 + runs, mine.1 + requests);
        }
        self.fallbacks += other.fallbacks;
    }

    /// Returns the mean number of requests per run, for the operations that ran.
    pub(crate) fn mean_batch(&self) -> BTreeMap<String, f64> {
        let ran = self.runs.iter().filter(|(_, (runs, _))| *runs > 0.0);
        ran.map(|(operation, (runs, requests))| (operation.clone(), requests / runs)).collect()
    }
}

/// Parses Prometheus' text format.
fn parse(text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let operation = || {
            let rest = labels.split_once("operation=\"")?.1;
            Some(rest.split_once('"')?.0.to_owned())
        };
        match name {
            "facecrawl_ep_fallback_total" => counts.fallbacks += value,
            "facecrawl_inference_batch_size_count" => {
                if let Some(operation) = operation() {
                    counts.runs.entry(operation).or_default().0 += value;
                }
            }
            "facecrawl_inference_batch_size_sum" => {
                if let Some(operation) = operation() {
                    counts.runs.entry(operation).or_default().1 += value;
                }
            }
            _ => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_what_the_recorder_renders() {
        let recorder = server::telemetry::prometheus().expect("buckets").build_recorder();
        let counters = Counters::new(recorder.handle());
        let before = metrics::with_local_recorder(&recorder, || {
            metrics::histogram!("facecrawl_inference_batch_size", "operation" => "face_detection")
                .record(4.0);
            counters.read()
        });
        metrics::with_local_recorder(&recorder, || {
            for size in [8.0, 2.0] {
                metrics::histogram!("facecrawl_inference_batch_size", "operation" => "face_detection")
                    .record(size);
            }
            metrics::counter!("facecrawl_ep_fallback_total", "operation" => "face_detection", "provider" => "cuda")
                .increment(3);
        });
        let counts = before.until(&counters.read());
        assert_eq!(counts.mean_batch(), BTreeMap::from([("face_detection".to_owned(), 5.0)]));
        assert_eq!(counts.fallbacks, 3.0);
    }
}
