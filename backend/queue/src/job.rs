//! Jobs as they are stored, and as a worker holds them.
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waiting for its time and a worker.
    Available,
    /// Leased to a worker.
    Running,
    /// Failed, waiting for its next attempt.
    Retryable,
    /// Done.
    Completed,
    /// Out of attempts, or failed for good; kept for inspection.
    Discarded,
    /// Given up before it ran to its end.
    Cancelled,
}

/// A job to enqueue.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Names the handler.
    pub kind: String,
    /// The handler's input.
    pub payload: Value,
    /// Lower runs first; 0 is the default.
    pub priority: i16,
    /// Runs before it is discarded.
    pub max_attempts: i16,
    /// Not before this time; `None` is now.
    pub scheduled_at: Option<OffsetDateTime>,
    /// At most one live (available, running, retryable) job per kind and key.
    pub unique_key: Option<String>,
    /// What it belongs to; groups are held, released and cancelled as one.
    pub group_id: Option<Uuid>,
}

impl NewJob {
    /// A job with default priority, 5 attempts, due now.
    pub fn new(kind: impl Into<String>, payload: Value) -> Self {
        Self {
            kind: kind.into(),
            payload,
            priority: 0,
            max_attempts: 5,
            scheduled_at: None,
            unique_key: None,
            group_id: None,
        }
    }
}

/// Proof that a worker holds a job: every later word about the job must carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The job.
    pub id: Uuid,
    /// Bumped by every claim; an older holder's word no longer counts.
    pub fence: i64,
}

/// A job in a worker's hands.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
    /// The proof.
    pub claim: Claim,
    /// Names the handler.
    pub kind: String,
    /// The handler's input.
    pub payload: Value,
    /// This run's number, from 1.
    pub attempt: i16,
    /// Runs before it is discarded.
    pub max_attempts: i16,
    /// What it belongs to.
    pub group_id: Option<Uuid>,
}

/// A job as an operator sees it.
#[derive(Clone, Debug)]
pub struct JobRow {
    /// Its id (UUIDv7).
    pub id: Uuid,
    /// Names the handler.
    pub kind: String,
    /// Where it is.
    pub state: JobState,
    /// The handler's input.
    pub payload: Value,
    /// Runs so far.
    pub attempt: i16,
    /// Runs before it is discarded.
    pub max_attempts: i16,
    /// Lower runs first.
    pub priority: i16,
    /// Not before this time.
    pub scheduled_at: OffsetDateTime,
    /// When it was enqueued.
    pub created_at: OffsetDateTime,
    /// When it reached a terminal state.
    pub finished_at: Option<OffsetDateTime>,
    /// The last failure.
    pub last_error: Option<String>,
    /// What it belongs to.
    pub group_id: Option<Uuid>,
}
