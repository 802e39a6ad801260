//! Operations on jobs of the queue, for operators.
use crate::extract::{Bounded, Id, List, Query, uuid};
use crate::operation::Routes;
use crate::{AppState, Code, Result, Scope, Spec};
use axum::Json;
use queue::{JobRow, JobState, KindReport};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;
use uuid::Uuid;

const READ: Spec = Spec::needs(Scope::System);

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(READ, routes!(list_jobs))
        .add(READ, routes!(get_job_stats))
        .add(READ, routes!(get_job))
        .add(RETRY, routes!(retry_job))
}

/// The state of a job.
#[derive(ToSchema)]
#[schema(as = JobState, rename_all = "snake_case")]
#[allow(dead_code, reason = "only describes queue::JobState in the OpenAPI document")]
enum JobStateName {
    Available,
    Running,
    Retryable,
    Completed,
    Discarded,
    Cancelled,
}

/// A job.
#[derive(Serialize, ToSchema)]
struct JobView {
    /// Its id.
    id: Uuid,
    /// Its kind.
    #[schema(example = "scan_image")]
    kind: String,
    /// Its state.
    #[schema(value_type = JobStateName)]
    state: JobState,
    /// Its input.
    #[schema(value_type = Object, example = json!({"url": "https://example.org/img/portrait.jpg"}))]
    payload: serde_json::Value,
    /// Number of attempts so far.
    #[schema(example = 0)]
    attempt: i16,
    /// Number of attempts after which it is discarded.
    #[schema(example = 5)]
    max_attempts: i16,
    /// Priority; a lower number runs first.
    #[schema(example = 0)]
    priority: i16,
    /// Time before which it does not run.
    #[serde(with = "time::serde::rfc3339")]
    scheduled_at: OffsetDateTime,
    /// When it was enqueued.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// Time of its end; null while it has not ended.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(example = json!(null))]
    finished_at: Option<OffsetDateTime>,
    /// Message of the last failure.
    #[schema(example = json!(null))]
    last_error: Option<String>,
    /// The crawl of the job; null if the job has no crawl.
    crawl_id: Option<Uuid>,
}

impl From<JobRow> for JobView {
    fn from(row: JobRow) -> Self {
        Self {
            id: row.id,
            kind: row.kind,
            state: row.state,
            payload: row.payload,
            attempt: row.attempt,
            max_attempts: row.max_attempts,
            priority: row.priority,
            scheduled_at: row.scheduled_at,
            created_at: row.created_at,
            finished_at: row.finished_at,
            last_error: row.last_error,
            crawl_id: row.group_id,
        }
    }
}

/// Return a job in any state.
#[utoipa::path(
    get, path = "/jobs/{id}", operation_id = "get_job", tag = "jobs",
    params(("id" = Uuid, Path, description = "Id of the job")),
    responses(
        (status = 200, description = "The job", body = JobView),
        (status = 404, description = "The job does not exist. Ended jobs are kept for a day, discarded jobs until they are retried"),
    ),
)]
async fn get_job(state: AppState, Id(id): Id) -> Result<Json<JobView>> {
    Ok(Json(state.services.queue.jobs().get(id).await?.into()))
}

/// State of a job, or all states.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum StateFilter {
    Available,
    Running,
    Retryable,
    Completed,
    Discarded,
    Cancelled,
    Any,
}

impl StateFilter {
    fn state(self) -> Option<JobState> {
        match self {
            Self::Available => Some(JobState::Available),
            Self::Running => Some(JobState::Running),
            Self::Retryable => Some(JobState::Retryable),
            Self::Completed => Some(JobState::Completed),
            Self::Discarded => Some(JobState::Discarded),
            Self::Cancelled => Some(JobState::Cancelled),
            Self::Any => None,
        }
    }
}

/// Selects the jobs to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only jobs in this state; `any` selects all states. The default is `discarded`.
    #[param(inline)]
    state: Option<StateFilter>,
    /// Only jobs of this kind.
    #[param(example = "scan_image")]
    kind: Option<String>,
    /// Only jobs of this crawl.
    #[serde(deserialize_with = "uuid")]
    crawl_id: Option<Uuid>,
    /// Maximum number of jobs in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of jobs, newest first.
#[derive(Serialize, ToSchema)]
struct JobList {
    jobs: Vec<JobView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

/// List jobs, by default those that were discarded.
#[utoipa::path(
    get, path = "/jobs", operation_id = "list_jobs", tag = "jobs",
    params(ListParams),
    responses((status = 200, description = "A page of jobs, newest first", body = JobList)),
)]
async fn list_jobs(state: AppState, Query(params): Query<ListParams>) -> Result<Json<JobList>> {
    let limit = params.limit.map_or(50, Bounded::get);
    let job_state = params.state.unwrap_or(StateFilter::Discarded).state();
    let list = List::new("jobs", (job_state, &params.kind, params.crawl_id));
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let mut rows = state
        .services
        .queue
        .jobs()
        .list(job_state, params.kind.as_deref(), params.crawl_id, before, limit + 1)
        .await?;
    let next_cursor = list.paginate(&mut rows, limit, |job| job.id);
    Ok(Json(JobList { jobs: rows.into_iter().map(Into::into).collect(), next_cursor }))
}

const RETRY: Spec = Spec::needs(Scope::System).problems(&[&[Code::Conflict]]);

/// Retry a discarded or cancelled job. Its number of attempts is reset to 0.
#[utoipa::path(
    post, path = "/jobs/{id}/retry", operation_id = "retry_job", tag = "jobs",
    params(("id" = Uuid, Path, description = "Id of the job")),
    responses(
        (status = 200, description = "The job, waiting to run", body = JobView),
        (status = 404, description = "The job does not exist, or its state does not allow a retry"),
        (status = 409, description = "The crawl of the job has ended, so the job would have no effect"),
    ),
)]
async fn retry_job(state: AppState, Id(id): Id) -> Result<Json<JobView>> {
    Ok(Json(state.services.crawls.retry(id).await?.into()))
}

/// Options of the statistics.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatsParams {
    /// Length of the window, in seconds up to now, in which ended jobs are counted.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 3600, default = 60)]
    window_seconds: Option<Bounded<1, 3600>>,
}

/// Statistics of one kind of job.
#[derive(Serialize, ToSchema)]
struct KindStats {
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
struct JobStats {
    /// Length of the window in seconds.
    #[schema(example = 60)]
    window_seconds: u64,
    /// Kinds that have jobs now or had jobs within the window, ordered by name.
    kinds: Vec<KindStats>,
}

/// Count the waiting, running and failed jobs of each kind, and report the rates at which jobs end.
#[utoipa::path(
    get, path = "/jobs/stats", operation_id = "get_job_stats", tag = "jobs",
    params(StatsParams),
    responses((status = 200, description = "The counts of every kind of job", body = JobStats)),
)]
async fn get_job_stats(state: AppState, Query(params): Query<StatsParams>) -> Result<Json<JobStats>> {
    let seconds = params.window_seconds.map_or(60, Bounded::get).unsigned_abs();
    let report = state.services.queue.jobs().report(Duration::from_secs(seconds)).await?;
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
