//! Configures the metrics recorder with the buckets of the histograms, and counts in gauges.
use metrics::Gauge;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};

/// Buckets for durations, in seconds: from half a millisecond to a minute.
const SECONDS_BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Buckets for images per batch.
const BATCH_SIZE_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// Returns a recorder builder in which every metric named `…_seconds` or `…_batch_size` is a
/// histogram with explicit buckets. The process calls `install_recorder` on it once and passes the
/// handle to `AppState`.
pub fn prometheus() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS_BUCKETS)?
        .set_buckets_for_metric(Matcher::Suffix("_batch_size".into()), BATCH_SIZE_BUCKETS)
}

/// Counts one item in a gauge until it is dropped.
pub(crate) struct GaugeGuard(Gauge);

impl GaugeGuard {
    pub(crate) fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
