//! The worker loop: claim, heartbeat, run, settle, rescue.
use crate::{ClaimedJob, Queue};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// The handler completed the job in its own transaction.
    Settled,
    /// Done; the runner completes it (batched).
    Done,
    /// Failed; try again later (with backoff, or at the given time).
    Retry(String, Option<OffsetDateTime>),
    /// Failed for good.
    Discard(String),
    /// Not now: put it back until then, no attempt burned.
    Snooze(OffsetDateTime),
    /// The claim was lost; nothing to settle.
    Stale,
}

/// The body of a kind of job.
#[async_trait::async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs one job. `cancel` fires when the claim is lost or the deadline of a shutdown is near. A panic counts as a failed attempt.
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> Outcome;
}

/// How the runner works.
#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// Jobs in flight, per kind.
    pub concurrency: HashMap<String, usize>,
    /// Poll interval when no notification comes.
    pub poll: Duration,
    /// How long a shutdown waits for running jobs before it releases them.
    pub drain: Duration,
    /// Name in `locked_by`.
    pub worker: String,
}

/// A running worker.
pub struct Runner {
    _handle: tokio::task::JoinHandle<()>,
}

impl Runner {
    /// Starts claiming. Stops when `shutdown` fires: no new claims, running jobs finish or are released within `drain`.
    pub fn start(
        _queue: Queue,
        _handlers: HashMap<String, Arc<dyn Handler>>,
        _config: RunnerConfig,
        _shutdown: CancellationToken,
    ) -> Self {
        todo!()
    }
    /// Waits until everything is settled or released.
    pub async fn stopped(self) {
        todo!()
    }
}
