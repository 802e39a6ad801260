//! Exports traces to an OpenTelemetry collector, if the environment configures one (the standard
//! `OTEL_` variables).
//!
//! Only spans are exported; log lines are not. A span contains a duration, ids, a route or a kind
//! of job. URLs and other details of log lines are not exported.
use crate::config::Otlp;
use anyhow::Context;
use inference::trace::STAGE;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::registry::LookupSpan;

/// The service name of the traces, unless `OTEL_SERVICE_NAME` is set.
const SERVICE: &str = "facecrawl";

/// Exports spans in batches from a separate thread.
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
        if !otlp.named {
            resource = resource.with_service_name(SERVICE);
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
            .with_tracer(self.provider.tracer(SERVICE))
            .with_location(false)
            .with_threads(false)
            .with_filter(targets.and(filter_fn(|metadata| metadata.is_span())))
            .boxed()
    }

    /// Exports the remaining spans. The exporter's own time limit applies if the collector does not
    /// respond.
    pub async fn finish(self) {
        let ended = tokio::task::spawn_blocking(move || self.provider.shutdown()).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "failed to send the last traces");
        }
    }
}
