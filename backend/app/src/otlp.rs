//! Traces for an OpenTelemetry collector, where the environment names one (the standard `OTEL_` variables).
//!
//! Spans go out, log lines do not: a span says how long what took, and carries ids, a route or a kind of job. URLs and whatever else
//! a log line may name stay in the log.
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

/// Name under which traces of this program are found, unless `OTEL_SERVICE_NAME` says otherwise.
const SERVICE: &str = "facecrawl";

/// Sends spans in batches, from a thread of its own.
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Starts the exporter; it finds endpoint, headers, time limits, sampler and attributes in the environment itself.
    pub fn start(otlp: &Otlp) -> anyhow::Result<Self> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .build()
            .context("the OTEL_EXPORTER_OTLP_ variables")?;
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

    /// Requests, jobs, and the stages of their pictures.
    pub fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let wanted = Targets::new().with_default(LevelFilter::INFO).with_target(STAGE, LevelFilter::TRACE);
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(SERVICE))
            .with_location(false)
            .with_threads(false)
            .with_filter(wanted.and(filter_fn(|metadata| metadata.is_span())))
            .boxed()
    }

    /// Sends what is left. A collector that does not answer is not waited for beyond the exporter's own limit.
    pub async fn finish(self) {
        let ended = tokio::task::spawn_blocking(move || self.provider.shutdown()).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}
