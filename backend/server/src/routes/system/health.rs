use crate::{ApiError, AppState, Code, Spec};
use axum::Json;
use axum::extract::State;
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
pub(super) async fn ready(State(state): State<AppState>) -> Result<Json<Ready>, ApiError> {
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
    if let Err(reason) = state.services.analyzer.engine().ready() {
        reasons.push(format!("the models cannot run: {reason}"));
    }
    if reasons.is_empty() {
        return Ok(Json(Ready { status: "ready" }));
    }
    Err(ApiError::new(Code::NotReady, reasons.join("; ")).errors(reasons))
}
