use queue::{JobRow, JobState};
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// The state of a job.
#[derive(ToSchema)]
#[schema(as = JobState, rename_all = "snake_case")]
#[allow(dead_code, reason = "only describes queue::JobState in the OpenAPI document")]
pub(super) enum JobStateName {
    Available,
    Running,
    Retryable,
    Completed,
    Discarded,
    Cancelled,
}

/// A job.
#[derive(Serialize, ToSchema)]
pub(super) struct JobView {
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
