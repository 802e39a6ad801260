//! Reports health and metrics.
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::http::header;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

/// State of a process that responds.
#[derive(Serialize, ToSchema)]
pub(super) struct Live {
    /// `ok`.
    #[schema(example = "ok")]
    status: &'static str,
    /// Version of this build.
    #[schema(example = "0.1.0")]
    version: &'static str,
}

/// State of a service that can process requests.
#[derive(Serialize, ToSchema)]
pub(super) struct Ready {
    /// `ready`.
    #[schema(example = "ready")]
    status: &'static str,
}

pub(super) const LIVE: Spec = Spec::open().any_host();

/// Report whether the process responds. Nothing else is checked; restart the process if this fails.
#[utoipa::path(
    get, path = "/health/live", operation_id = "health_live", tag = "system",
    responses((status = 200, description = "The process responds", body = Live)),
)]
pub(super) async fn live() -> Json<Live> {
    Json(Live { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

pub(super) const READY: Spec = Spec::open().problems(&[&[Code::NotReady]]).any_host();

/// Report whether the service can process requests.
///
/// This requires that the database responds, the models can run, and the service is not stopping.
#[utoipa::path(
    get, path = "/health/ready", operation_id = "health_ready", tag = "system",
    responses(
        (status = 200, description = "The service can process requests", body = Ready),
        (status = 503, description = "The service cannot process requests; `errors` lists the reasons"),
    ),
)]
pub(super) async fn ready(state: AppState) -> Result<Json<Ready>> {
    let mut reasons = Vec::new();
    if state.shutdown.is_cancelled() {
        reasons.push("the service is shutting down".to_owned());
    }
    if let Err(error) = state.services.store.ping().await {
        // Anyone may call this operation, so addresses and user names of the database are only
        // logged.
        tracing::warn!(%error, "database not reachable");
        reasons.push("the database does not respond".to_owned());
    }
    if let Err(reason) = state.services.analyzer.engine().check_ready() {
        reasons.push(format!("the models cannot run: {reason}"));
    }
    if reasons.is_empty() {
        return Ok(Json(Ready { status: "ready" }));
    }
    Err(ApiError::new(Code::NotReady, reasons.join("; ")).errors(reasons))
}

pub(super) const METRICS: Spec = Spec::needs(Scope::System);

/// Return metrics in the Prometheus text format.
#[utoipa::path(
    get, path = "/metrics", operation_id = "get_metrics", tag = "system",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain",
        example = "# TYPE facecrawl_http_requests_total counter\nfacecrawl_http_requests_total{method=\"GET\",route=\"/faces\",status=\"200\"} 12\n")),
)]
pub(super) async fn get_metrics(state: AppState) -> impl IntoResponse {
    gather_queue(&state).await;
    gather_index(&state).await;
    if let Err(error) = tokio::task::spawn_blocking(inference::devices::record_metrics).await {
        tracing::warn!(%error, "cannot read the GPUs");
    }
    state.metrics.run_upkeep();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], state.metrics.render())
}

/// Reads the depth and age of the queue. If the database does not respond, the last values are kept
/// and the failure is counted.
async fn gather_queue(state: &AppState) {
    let stats = match state.services.queue.jobs().depth().await {
        Ok(stats) => stats,
        Err(error) => {
            tracing::warn!(%error, "cannot read the queue's counts");
            metrics::counter!("facecrawl_scrape_errors_total", "source" => "queue").increment(1);
            return;
        }
    };
    metrics::gauge!("facecrawl_queue_oldest_due_seconds").set(stats.oldest_due_seconds);
    let mut exported = state.exported_gauges.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (kind, name) in exported.iter() {
        gauge(kind, name).set(0.0);
    }
    for (kind, job_state, count) in stats.counts {
        let name = job_state.as_str();
        gauge(&kind, name).set(count as f64);
        exported.insert((kind, name));
    }
}

/// Reads the lag of a search index outside the database.
async fn gather_index(state: &AppState) {
    match state.services.store.faces().index_lag().await {
        Ok(lag) => metrics::gauge!("facecrawl_search_index_lag_seconds").set(lag.as_secs_f64()),
        Err(error) => {
            tracing::warn!(%error, "cannot read the lag of the search index");
            metrics::counter!("facecrawl_scrape_errors_total", "source" => "search_index").increment(1);
        }
    }
}

fn gauge(kind: &str, state: &'static str) -> metrics::Gauge {
    metrics::gauge!("facecrawl_queue_jobs", "kind" => kind.to_owned(), "state" => state)
}
