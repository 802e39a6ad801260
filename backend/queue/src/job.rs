//! Jobs as they are stored, and as a worker holds them.
use crate::QueueError;
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
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

impl JobState {
    /// All states, live ones first.
    pub const ALL: [Self; 6] =
        [Self::Available, Self::Running, Self::Retryable, Self::Completed, Self::Discarded, Self::Cancelled];

    /// The name in the database, in JSON and in metrics.
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

    /// Whether the job may still run: live jobs count for unique keys and for their group.
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
    /// Who it is done for; nil for nobody in particular. While jobs of several tenants are due, no tenant has more than three quarters of a runner's
    /// places.
    pub tenant: Uuid,
    /// What it would crowd out others for: of one kind, group and lane only `Config::lane_window` jobs stand in line at a time. Needs a group.
    pub lane: Option<String>,
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
            tenant: Uuid::nil(),
            lane: None,
        }
    }
}

/// Proof that a worker holds a job: every later word about the job must carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, sqlx::FromRow)]
pub struct Claim {
    /// The job.
    pub id: Uuid,
    /// Bumped by every claim; an older holder's word no longer counts.
    pub fence: i64,
}

/// A job in a worker's hands.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct ClaimedJob {
    /// The proof.
    #[sqlx(flatten)]
    pub claim: Claim,
    /// Names the handler.
    pub kind: String,
    /// The handler's input.
    pub payload: Value,
    /// This run's number, from 1.
    pub attempt: i16,
    /// Runs before it is discarded.
    pub max_attempts: i16,
    /// How often its lease ran out: the process that ran it ended, with this job or with another.
    pub crashes: i16,
    /// What it belongs to.
    pub group_id: Option<Uuid>,
    /// Who it is done for; nil for nobody in particular.
    pub tenant: Uuid,
}

impl ClaimedJob {
    /// Whether no other job may run beside it: two processes have ended while they ran it.
    pub fn runs_alone(&self) -> bool {
        self.crashes > 1
    }
}

/// A job as an operator sees it.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct JobRow {
    /// Its id (UUIDv7).
    pub id: Uuid,
    /// Names the handler.
    pub kind: String,
    /// Where it is.
    #[sqlx(try_from = "String")]
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
    /// Whether its group is held or its lane full, so that it does not run although it is due.
    pub held: bool,
    /// The worker that holds it, or that ran it last.
    pub locked_by: Option<String>,
}
