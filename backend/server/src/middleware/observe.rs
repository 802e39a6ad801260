//! Records a span, a log line and the HTTP metrics of every request.
use crate::request;
use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use std::time::Instant;
use tracing::Instrument;

/// Counts a request in flight. Dropping it decrements the gauge, even if the caller has
/// disconnected.
struct InFlight;

impl InFlight {
    fn enter() -> Self {
        metrics::gauge!("facecrawl_http_requests_in_flight").increment(1.0);
        Self
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        metrics::gauge!("facecrawl_http_requests_in_flight").decrement(1.0);
    }
}

/// Records one request. The labels are the route's template and a known method, so callers cannot
/// cause new time series.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    let method = method_label(request.method());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    let span = tracing::info_span!(
        "http",
        request_id = request::id(),
        method,
        route,
        key_id = tracing::field::Empty
    );
    let in_flight = InFlight::enter();
    let start = Instant::now();
    let response = next.run(request).instrument(span.clone()).await;
    drop(in_flight);

    let elapsed = start.elapsed();
    let status = response.status();
    metrics::counter!("facecrawl_http_requests_total",
        "method" => method, "route" => route.clone(), "status" => status.as_str().to_owned())
    .increment(1);
    metrics::histogram!("facecrawl_http_request_duration_seconds", "method" => method, "route" => route.clone())
        .record(elapsed.as_secs_f64());

    let _entered = span.enter();
    let (status, latency_ms) = (status.as_u16(), elapsed.as_secs_f64() * 1e3);
    if status >= 500 {
        tracing::warn!(status, latency_ms, "request completed");
    } else if route.starts_with("/health/") || route == "/metrics" {
        tracing::debug!(status, latency_ms, "request completed");
    } else {
        tracing::info!(status, latency_ms, "request completed");
    }
    response
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}
