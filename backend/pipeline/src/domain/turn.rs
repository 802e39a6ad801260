//! Turns of long jobs: a job that can be continued ends its run when its turn is over and another
//! tenant waits for the slot.

use queue::{ClaimedJob, Queue};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Time that a run has before it yields its slot.
pub const TURN: Duration = Duration::from_secs(20);

pub(crate) struct Turn {
    queue: Queue,
    kind: String,
    tenant: Uuid,
    ends: Instant,
}

impl Turn {
    /// Begins the turn of a job.
    pub(crate) fn of(queue: &Queue, job: &ClaimedJob, length: Duration) -> Self {
        let (kind, tenant, ends) = (job.kind.clone(), job.tenant, Instant::now() + length);
        Self { queue: queue.clone(), kind, tenant, ends }
    }

    /// Returns whether the turn is over and a job of another tenant waits. If the database fails,
    /// the turn continues.
    pub(crate) async fn is_over(&self) -> bool {
        Instant::now() >= self.ends && self.queue.others_wait(&self.kind, self.tenant).await.unwrap_or(false)
    }
}
