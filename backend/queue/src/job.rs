//! Defines jobs as they are stored, and jobs as a worker holds them.
use crate::QueueError;
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waits for its scheduled time and for a worker.
    Available,
    /// A worker holds a lease on it.
    Running,
    /// Failed, and waits for its next attempt.
    Retryable,
    Completed,
    /// Used all attempts, or failed permanently. Kept for inspection.
    Discarded,
    /// Cancelled before it completed.
    Cancelled,
}

impl JobState {
    /// All states, live states first.
    pub const ALL: [Self; 6] =
        [Self::Available, Self::Running, Self::Retryable, Self::Completed, Self::Discarded, Self::Cancelled];

    /// Returns the name used in the database, in JSON and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Running => "running",
            Self::Retryable => "retryable",
            Self::Completed => "completed",
            Self::Discarded => "discarded",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns `true` if the job may still run. Unique keys and groups apply to live jobs only.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Available | Self::Running | Self::Retryable)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for JobState {
    type Err = QueueError;

    fn from_str(text: &str) -> Result<Self, QueueError> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            let allowed = Self::ALL.map(Self::as_str).join(", ");
            QueueError::Invalid(format!("{text:?} is not a job state; allowed are {allowed}"))
        })
    }
}

impl TryFrom<String> for JobState {
    type Error = QueueError;

    fn try_from(text: String) -> Result<Self, QueueError> {
        text.parse()
    }
}

#[derive(Clone, Debug)]
pub struct NewJob {
    /// Selects the handler.
    pub kind: String,
    /// The handler's input.
    pub payload: Value,
    /// Priority. Lower values run first; 0 is the default.
    pub priority: i16,
    /// Number of attempts before the job is discarded.
    pub max_attempts: i16,
    /// Earliest start time; `None` means now.
    pub scheduled_at: Option<OffsetDateTime>,
    /// Unique key. At most one live (available, running, retryable) job has the same kind and key.
    pub unique_key: Option<String>,
    /// The job's group. A group is held, released and cancelled as a whole.
    pub group_id: Option<Uuid>,
    /// The tenant for which the job runs; nil if the job belongs to no tenant. While jobs of
    /// several tenants are due, one tenant occupies at most three quarters of a runner's slots.
    pub tenant: Uuid,
    /// Partition key. At most `Config::partition_window` jobs with the same kind, group and
    /// partition key are unparked at a time. Requires a group.
    pub partition_key: Option<String>,
}

impl NewJob {
    /// Creates a job with default priority and 5 attempts, due now.
    pub fn new(kind: impl Into<String>, payload: Value) -> Self {
        Self {
            kind: kind.into(),
            payload,
            priority: 0,
            max_attempts: 5,
            scheduled_at: None,
            unique_key: None,
            group_id: None,
            tenant: Uuid::nil(),
            partition_key: None,
        }
    }
}

/// Proves that a worker holds a job. Every later call about the job must contain the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, sqlx::FromRow)]
pub struct Claim {
    pub id: Uuid,
    /// The fence. Each claim increments it, so calls with an older fence are rejected.
    pub fence: i64,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct ClaimedJob {
    #[sqlx(flatten)]
    pub claim: Claim,
    pub kind: String,
    pub payload: Value,
    /// Number of this attempt, from 1.
    pub attempt: i16,
    pub max_attempts: i16,
    /// Number of times that this job's lease expired, even if another job caused the crash.
    pub crashes: i16,
    pub group_id: Option<Uuid>,
    /// The tenant for which the job runs; nil if the job belongs to no tenant.
    pub tenant: Uuid,
}

impl ClaimedJob {
    /// Returns `true` after two lease expiries: no other job may then run in the process. A runner
    /// makes an exception for kinds that cannot end the process.
    pub fn must_run_alone(&self) -> bool {
        self.crashes > 1
    }
}

/// A job as an operator sees it.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct JobRow {
    /// The id (UUIDv7).
    pub id: Uuid,
    pub kind: String,
    #[sqlx(try_from = "String")]
    pub state: JobState,
    pub payload: Value,
    /// Number of attempts so far.
    pub attempt: i16,
    pub max_attempts: i16,
    pub priority: i16,
    pub scheduled_at: OffsetDateTime,
    pub created_at: OffsetDateTime,
    /// Time at which the job reached a terminal state.
    pub finished_at: Option<OffsetDateTime>,
    pub last_error: Option<String>,
    pub group_id: Option<Uuid>,
    /// Whether the job must not run even if it is due: its group is held, or the job is parked.
    pub held: bool,
    /// The worker that holds the job or ran it last.
    pub locked_by: Option<String>,
}
