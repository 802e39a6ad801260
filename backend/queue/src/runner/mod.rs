//! The worker of one process: claim, run, heartbeat, settle, rescue.
//!
//! One claim loop serves all kinds; each claimed job is a task. Beside them run the heartbeat, the batched completion, the
//! maintenance (rescue, gauges), the purge of ended jobs and the listener for new jobs. They use a few connections of their own, so that
//! handlers that occupy the whole pool cannot starve the heartbeats that keep their claims.
pub(crate) mod backoff;
mod claiming;
mod holdings;
mod keeping;
mod settling;
mod slots;
mod telemetry;

use crate::{ClaimedJob, Queue};
use holdings::Holdings;
use slots::Slots;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Connections of the runner's own: one listens, the others take turns.
const OWN_CONNECTIONS: u32 = 5;

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
    /// Jobs in flight, per kind; a handler without an entry runs one at a time.
    pub concurrency: HashMap<String, usize>,
    /// Poll interval when no notification comes.
    pub poll: Duration,
    /// How long running jobs have to end: at a shutdown before they are released, and before a job that has to run alone starts.
    pub drain: Duration,
    /// Name in `locked_by`.
    pub worker: String,
}

/// A running worker.
pub struct Runner {
    handle: tokio::task::JoinHandle<()>,
    slots: Arc<Slots>,
}

/// How many jobs of each kind a runner may have in flight; cheap to clone.
#[derive(Clone)]
pub struct Concurrency(Arc<Slots>);

impl Concurrency {
    /// Changes it for a kind, from the next claim on; running jobs are left alone. Zero pauses the kind in this process.
    pub fn set(&self, kind: &str, limit: usize) {
        self.0.set_limit(kind, limit);
    }

    /// Jobs of a kind that are in flight.
    pub fn used(&self, kind: &str) -> usize {
        self.0.used().into_iter().find(|(name, _)| name == kind).map_or(0, |(_, used)| used)
    }
}

impl Runner {
    /// Starts claiming. Stops when `shutdown` fires: no new claims, running jobs finish or are released within `drain`.
    ///
    /// Must be called within a Tokio runtime. A database that is away, now or later, is waited for.
    pub fn start(
        queue: Queue,
        handlers: HashMap<String, Arc<dyn Handler>>,
        config: RunnerConfig,
        shutdown: CancellationToken,
    ) -> Self {
        telemetry::describe();
        for kind in config.concurrency.keys().filter(|kind| !handlers.contains_key(*kind)) {
            tracing::warn!(kind, "no handler for this kind of job; it is left to other workers");
        }
        let limits = handlers.keys().map(|kind| (kind.clone(), *config.concurrency.get(kind).unwrap_or(&1)));
        let slots = Arc::new(Slots::new(limits));
        let shared = Arc::new(Shared {
            queue: queue.on_own_connections(OWN_CONNECTIONS),
            handlers,
            config,
            slots: Arc::clone(&slots),
            holdings: Holdings::default(),
            forced: CancellationToken::new(),
            ended: Notify::new(),
        });
        Self { handle: tokio::spawn(claiming::supervise(shared, shutdown)), slots }
    }

    /// The handle that changes how many jobs may be in flight.
    pub fn concurrency(&self) -> Concurrency {
        Concurrency(Arc::clone(&self.slots))
    }

    /// Waits until everything is settled or released.
    pub async fn stopped(self) {
        if let Err(error) = self.handle.await {
            tracing::error!(%error, "the worker ended abnormally; its jobs return when their leases run out");
        }
    }
}

/// What the parts of one runner share.
struct Shared {
    /// On the runner's own connections.
    queue: Queue,
    handlers: HashMap<String, Arc<dyn Handler>>,
    config: RunnerConfig,
    slots: Arc<Slots>,
    holdings: Holdings,
    /// Fires when a shutdown stops waiting for the running jobs.
    forced: CancellationToken,
    /// A run ended: its lane may have room.
    ended: Notify,
}
