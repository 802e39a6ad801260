use crate::extract::Query;
use crate::extract::values::Bounded;
use crate::{ApiError, AppState, Scope, Spec};
use axum::Json;
use axum::extract::State;
use queue::{JobState, KindReport};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// Options of the statistics.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatsParams {
    /// Length of the window, in seconds up to now, in which ended jobs are counted.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 3600, default = 60)]
    window_seconds: Option<Bounded<1, 3600>>,
}

/// Statistics of one kind of job.
#[derive(Serialize, ToSchema)]
pub(super) struct KindStats {
    /// Name of the kind.
    #[schema(example = "scan_image")]
    kind: String,
    /// Number of jobs that wait for a worker, for their scheduled time or for a free slot.
    #[schema(example = 120)]
    available: i64,
    /// Number of jobs that a worker processes.
    #[schema(example = 8)]
    running: i64,
    /// Number of jobs that failed and wait for their next attempt.
    #[schema(example = 1)]
    retryable: i64,
    /// Number of discarded jobs, which can be retried.
    #[schema(example = 0)]
    discarded: i64,
    /// Jobs completed per second, within the window.
    #[schema(example = 14.2)]
    completed_per_second: f64,
    /// Jobs discarded per second, within the window.
    #[schema(example = 0.0)]
    discarded_per_second: f64,
    /// Waiting time of the oldest due job in seconds; null if no job is due.
    #[schema(example = 3.4)]
    oldest_due_seconds: Option<f64>,
}

/// Statistics of the queue.
#[derive(Serialize, ToSchema)]
pub(super) struct JobStats {
    /// Length of the window in seconds.
    #[schema(example = 60)]
    window_seconds: u64,
    /// Kinds that have jobs now or had jobs within the window, ordered by name.
    kinds: Vec<KindStats>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::System);

/// Count the waiting, running and failed jobs of each kind, and report the rates at which jobs end.
#[utoipa::path(
    get, path = "/jobs/stats", operation_id = "get_job_stats", tag = "jobs",
    params(StatsParams),
    responses((status = 200, description = "The counts of every kind of job", body = JobStats)),
)]
pub(super) async fn get_job_stats(
    State(state): State<AppState>,
    Query(params): Query<StatsParams>,
) -> Result<Json<JobStats>, ApiError> {
    let seconds = params.window_seconds.map_or(60, Bounded::get).unsigned_abs();
    let report = state.services.queue.report(Duration::from_secs(seconds)).await?;
    let rate = |count: i64| count as f64 / seconds as f64;
    let kind = |(kind, report): (String, KindReport)| {
        let count = |state| report.counts.get(&state).copied().unwrap_or(0);
        KindStats {
            available: count(JobState::Available),
            running: count(JobState::Running),
            retryable: count(JobState::Retryable),
            discarded: count(JobState::Discarded),
            completed_per_second: rate(report.completed),
            discarded_per_second: rate(report.discarded),
            oldest_due_seconds: report.oldest_due_seconds,
            kind,
        }
    };
    Ok(Json(JobStats { window_seconds: seconds, kinds: report.kinds.into_iter().map(kind).collect() }))
}
