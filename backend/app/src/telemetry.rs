//! Sets up logs, traces, metrics and the panic hook.
use crate::config::{Log, LogFormat, Otlp};
use crate::output::LogWriter;
use crate::profile::{self, ChromeLayer};
use anyhow::Context;
use inference::trace::STAGE;
use metrics_exporter_prometheus::{BuildError, PrometheusHandle};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::TryInitError;
use tracing_subscriber::{EnvFilter, Layer, fmt};

/// The messages of the RTSP client contain addresses of cameras and long texts that cameras choose.
const HIDDEN: &str = "retina=off";

/// Returns the log filter for `LOG_LEVEL` and `DEBUG`.
pub fn log_filter(log: &Log) -> String {
    let configured = log.level.clone();
    let hides_debug = ["error", "warn", "info"].iter().any(|level| level.eq_ignore_ascii_case(&configured));
    match (log.debug, hides_debug) {
        // The DEBUG messages of these libraries (every packet, every query) are rarely useful.
        (true, true) => {
            let quiet = "hyper=info,hyper_util=info,h2=info,reqwest=info,rustls=info,sqlx=info,ort=info";
            format!("debug,{quiet},{HIDDEN}")
        }
        (true, false) if !configured.contains(['=', ',']) => configured,
        (true, false) => format!("debug,{configured}"),
        // The INFO messages of these libraries about connections are rarely useful.
        (false, _) if !configured.contains(['=', ',']) => {
            format!("{configured},sqlx::postgres::notice=warn,ort=warn,{HIDDEN}")
        }
        (false, _) => configured,
    }
}

/// Returns the layer that writes log lines to stderr.
fn log_layer<S>(log: &Log) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    match log.format {
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            fmt::layer().with_target(false).with_ansi(colours).with_writer(|| LogWriter).boxed()
        }
        LogFormat::Json => {
            fmt::layer().json().flatten_event(true).with_current_span(true).with_writer(|| LogWriter).boxed()
        }
    }
}

/// Installs the `tracing` subscriber and the panic hook. Log lines go to stderr, the spans of a
/// profile to `chrome`, and all spans to `traces`; panics are logged.
pub fn init_logs(
    log: &Log,
    chrome: Option<ChromeLayer>,
    traces: Option<&Traces>,
) -> Result<(), TryInitError> {
    use tracing_subscriber::prelude::*;
    let filter = EnvFilter::new(log_filter(log));
    if chrome.is_none() && traces.is_none() {
        // All layers share one filter, so that a comparison of levels suffices to discard an
        // unwanted span.
        tracing_subscriber::registry().with(filter).with(log_layer(log)).try_init()?;
    } else {
        tracing_subscriber::registry()
            .with(log_layer(log).with_filter(filter))
            .with(chrome.map(|chrome| chrome.with_filter(profile::filter())))
            .with(traces.map(Traces::layer))
            .try_init()?;
    }
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str().unwrap_or("the payload is not text");
        let backtrace = std::backtrace::Backtrace::capture();
        let trace = matches!(backtrace.status(), std::backtrace::BacktraceStatus::Captured)
            .then(|| backtrace.to_string());
        tracing::error!(location, backtrace = trace, "panic: {message}");
    }));
    Ok(())
}

/// Installs the process's metrics recorder. The returned handle renders `/metrics`.
pub fn init_metrics() -> Result<PrometheusHandle, BuildError> {
    let handle = server::telemetry::prometheus()?.install_recorder()?;
    describe_process();
    Ok(handle)
}

fn describe_process() {
    use metrics::{Unit, describe_gauge};
    describe_gauge!("process_resident_memory_bytes", Unit::Bytes, "Resident memory.");
    describe_gauge!("process_cpu_seconds_total", Unit::Seconds, "User and system CPU time.");
    describe_gauge!("process_threads", Unit::Count, "Threads.");
    describe_gauge!("process_open_fds", Unit::Count, "Open file descriptors.");
    describe_gauge!("process_start_time_seconds", Unit::Seconds, "Start time as a Unix timestamp.");
}

/// Updates the process gauges every 5 seconds until the runtime stops.
pub fn watch_process() {
    metrics::gauge!("process_start_time_seconds")
        .set(time::OffsetDateTime::now_utc().unix_timestamp() as f64);
    tokio::spawn(async {
        let mut tick = tokio::time::interval(std::time::Duration::from_secs(5));
        loop {
            tick.tick().await;
            record_process();
        }
    });
}

/// Sets the process gauges from `/proc`. Does nothing if there is no `/proc`.
pub fn record_process() {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
    let number = |name: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    };
    if let Some(kib) = number("VmRSS") {
        metrics::gauge!("process_resident_memory_bytes").set(kib * 1024.0);
    }
    if let Some(threads) = number("Threads") {
        metrics::gauge!("process_threads").set(threads);
    }
    if let Ok(folder) = std::fs::read_dir("/proc/self/fd") {
        metrics::gauge!("process_open_fds").set(folder.count() as f64);
    }
    if let Some(seconds) = cpu_seconds() {
        metrics::gauge!("process_cpu_seconds_total").set(seconds);
    }
}

/// Returns the user and system CPU time of all threads of this process in seconds, or `None` if
/// there is no `/proc`.
pub fn cpu_seconds() -> Option<f64> {
    stat_seconds(14)
}

/// Returns the user and system CPU time of the child processes that have ended, in seconds, or
/// `None` if there is no `/proc`.
pub fn children_cpu_seconds() -> Option<f64> {
    stat_seconds(16)
}

/// Returns the sum of the field `first` of `/proc/self/stat` and the next one, which are times in
/// clock ticks (proc(5)).
fn stat_seconds(first: usize) -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Field 3 is the first one after the process name in brackets, which may contain any
    // characters.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields = after_name.split_whitespace().skip(first - 3).take(2);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    Some(ticks / rustix::param::clock_ticks_per_second() as f64)
}

/// The service name of the traces, unless `OTEL_SERVICE_NAME` is set.
const SERVICE_NAME: &str = "facecrawl";

/// Exports spans to an OpenTelemetry collector, in batches from a separate thread.
///
/// Log lines are not exported. A span contains a duration, ids, a route or a kind of job. URLs and
/// other details of log lines are not exported.
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Starts the exporter. It reads endpoint, headers, time limits, sampler and attributes from
    /// the environment.
    pub fn start(otlp: &Otlp) -> anyhow::Result<Self> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .build()
            .context("cannot start the trace exporter; check the OTEL_EXPORTER_OTLP_ variables")?;
        let mut resource = Resource::builder();
        if !otlp.has_service_name {
            resource = resource.with_service_name(SERVICE_NAME);
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        Ok(Self { provider })
    }

    /// Returns the layer that exports the spans of requests, jobs, and the stages of their images.
    pub fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let targets = Targets::new().with_default(LevelFilter::INFO).with_target(STAGE, LevelFilter::TRACE);
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(SERVICE_NAME))
            .with_location(false)
            .with_threads(false)
            .with_filter(targets.and(filter_fn(|metadata| metadata.is_span())))
            .boxed()
    }

    /// Exports the remaining spans. The exporter's own time limit applies if the collector does not
    /// respond.
    pub async fn finish(self) {
        let result = tokio::task::spawn_blocking(move || self.provider.shutdown()).await;
        if let Ok(Err(error)) = result {
            tracing::warn!(%error, "failed to send the last traces");
        }
    }
}
