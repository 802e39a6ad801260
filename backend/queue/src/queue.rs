//! Everything that can be said to the queue.
use crate::{Claim, ClaimedJob, JobRow, JobState, NewJob};
use sqlx::{PgConnection, PgPool};
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// Times of the queue.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a claim holds without a heartbeat.
    pub lease: Duration,
    /// First retry delay; doubles with every attempt, with jitter.
    pub retry_base: Duration,
    /// Longest retry delay.
    pub retry_max: Duration,
    /// How long completed and cancelled jobs are kept.
    pub keep_finished: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            retry_base: Duration::from_secs(2),
            retry_max: Duration::from_secs(600),
            keep_finished: Duration::from_secs(24 * 3600),
        }
    }
}

/// What became of one `NewJob`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// A new row.
    New(Uuid),
    /// A live job with the same kind and unique key was there already.
    Duplicate,
}

/// Why the queue refused.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The claim is no longer held: the lease ran out and the job was given to another, or it was cancelled.
    #[error("the claim on job {0} is no longer held")]
    Stale(Uuid),
    /// No such job, or it is not in a state that allows this.
    #[error("there is no job {0} in a state that allows this")]
    NotFound(Uuid),
    /// The database failed.
    #[error("the queue's database failed: {0}")]
    Database(#[from] sqlx::Error),
}

/// Numbers for `/metrics` and the system page.
#[derive(Clone, Debug, Default)]
pub struct QueueStats {
    /// Jobs per kind and state.
    pub counts: Vec<(String, JobState, i64)>,
    /// Age in seconds of the oldest due job.
    pub oldest_due_seconds: f64,
}

/// A handle on the queue; cheap to clone.
#[derive(Clone)]
pub struct Queue {
    pool: PgPool,
    config: Config,
}

impl Queue {
    /// A queue on a migrated database.
    pub fn new(pool: PgPool, config: Config) -> Self {
        Self { pool, config }
    }
    /// Adds jobs inside the caller's transaction; the answer is in the order of the input.
    pub async fn enqueue(
        &self,
        _conn: &mut PgConnection,
        _jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>, QueueError> {
        todo!()
    }
    /// Takes up to `limit` due jobs of `kinds`, best priority first.
    pub async fn claim(
        &self,
        _kinds: &[String],
        _limit: i64,
        _worker: &str,
    ) -> Result<Vec<ClaimedJob>, QueueError> {
        todo!()
    }
    /// Extends the leases; returns the claims that are lost.
    pub async fn heartbeat(&self, _claims: &[Claim]) -> Result<Vec<Claim>, QueueError> {
        todo!()
    }
    /// Completes inside the caller's transaction; `Stale` means: roll back.
    pub async fn complete(&self, _conn: &mut PgConnection, _claim: Claim) -> Result<(), QueueError> {
        todo!()
    }
    /// Fails an attempt: retryable with backoff (or at `retry_at`), or discarded when attempts are spent or `permanent`.
    pub async fn fail(
        &self,
        _conn: &mut PgConnection,
        _claim: Claim,
        _error: &str,
        _permanent: bool,
        _retry_at: Option<OffsetDateTime>,
    ) -> Result<JobState, QueueError> {
        todo!()
    }
    /// Puts the job back for `until`; burns no attempt.
    pub async fn snooze(&self, _claim: Claim, _until: OffsetDateTime) -> Result<(), QueueError> {
        todo!()
    }
    /// Puts jobs back as they were; burns no attempt (shutdown).
    pub async fn release(&self, _claims: &[Claim]) -> Result<u64, QueueError> {
        todo!()
    }
    /// Returns expired leases to the queue (or discards them when attempts are spent); the number rescued.
    pub async fn rescue(&self) -> Result<u64, QueueError> {
        todo!()
    }
    /// Holds a group: none of its jobs is claimed until `release_group`.
    pub async fn hold_group(&self, _conn: &mut PgConnection, _group: Uuid) -> Result<(), QueueError> {
        todo!()
    }
    /// Lets a held group run again.
    pub async fn release_group(&self, _conn: &mut PgConnection, _group: Uuid) -> Result<(), QueueError> {
        todo!()
    }
    /// Cancels a group's jobs that are not running yet, and bumps the fence of those that are; the number cancelled.
    pub async fn cancel_group(&self, _conn: &mut PgConnection, _group: Uuid) -> Result<u64, QueueError> {
        todo!()
    }
    /// Live (available, running, retryable) jobs of a group.
    pub async fn live_in_group(&self, _conn: &mut PgConnection, _group: Uuid) -> Result<i64, QueueError> {
        todo!()
    }
    /// Jobs by state, newest first, before the cursor `before`.
    pub async fn list(
        &self,
        _state: Option<JobState>,
        _kind: Option<&str>,
        _group: Option<Uuid>,
        _before: Option<Uuid>,
        _limit: i64,
    ) -> Result<Vec<JobRow>, QueueError> {
        todo!()
    }
    /// Gives a discarded or cancelled job a new life with fresh attempts.
    pub async fn retry(&self, _id: Uuid) -> Result<JobRow, QueueError> {
        todo!()
    }
    /// Counts and age.
    pub async fn stats(&self) -> Result<QueueStats, QueueError> {
        todo!()
    }
    /// The pool, for callers that open the transaction.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
    /// The times in force.
    pub fn config(&self) -> &Config {
        &self.config
    }
}
