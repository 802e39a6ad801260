//! The worker of one process. It claims, runs, settles and rescues jobs, and extends their leases.
//!
//! One claim loop serves all kinds; each claimed job runs as a task. Other tasks send heartbeats,
//! complete jobs in batches, do maintenance (rescue, gauges), purge jobs that have ended, unpark
//! jobs and listen for new ones. These tasks use a few separate connections, so that handlers that
//! exhaust the main pool cannot block the heartbeats.
mod active_claims;
mod claiming;
mod maintenance;
mod settling;
mod slots;
mod telemetry;

use crate::{ClaimedJob, Queue};
use active_claims::ActiveClaims;
use slots::Slots;
pub use slots::{only_outside_slot, outside_slot};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Number of the runner's own connections. One listens for notifications; tasks share the others.
const OWN_CONNECTIONS: u32 = 5;

/// The outcome of a run.
#[derive(Debug)]
pub enum RunEnd {
    /// The handler completed the job in its own transaction.
    Settled,
    /// The job succeeded; the runner completes it in a batch.
    Done,
    /// The job failed with this message; it is retried with backoff, or after this wait.
    Retry(String, Option<Duration>),
    /// The job failed permanently.
    Discard(String),
    /// The job runs again after this wait. The run is not counted as an attempt.
    Snooze(Duration),
    /// The claim was lost; there is nothing to settle.
    Stale,
}

/// Runs the jobs of one kind.
#[async_trait::async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs one job. `cancel` fires when the claim is lost or the shutdown's time limit expires. A
    /// panic is treated as a failed attempt.
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> RunEnd;
}

#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// Maximum number of concurrent jobs per kind. A handler without an entry runs one at a time.
    pub concurrency: HashMap<String, usize>,
    /// Kinds of which a tenant never uses more than three quarters of the slots, even while other
    /// tenants have no jobs. These jobs take so long that other tenants could not wait for a slot.
    pub keep_quarter_free: HashSet<String>,
    /// Kinds whose jobs cannot crash the process, so they never run alone. Such a job can take very
    /// long, and other tenants would have to wait for its end.
    pub never_alone: Vec<String>,
    /// Poll interval while no notification arrives.
    pub poll_interval: Duration,
    /// Maximum time to wait for running jobs, both before a shutdown releases them and before a job
    /// that must run alone starts.
    pub drain_timeout: Duration,
    /// Maximum time for which a job that must run alone prevents other jobs from starting. A job
    /// that records progress earlier no longer runs alone.
    pub alone_timeout: Duration,
    /// Name of this worker in `locked_by`.
    pub worker_name: String,
}

pub struct Runner {
    handle: tokio::task::JoinHandle<()>,
    slots: Arc<Slots>,
}

/// Limits the number of concurrent jobs of each kind in a runner. Cheap to clone.
#[derive(Clone)]
pub struct Concurrency(Arc<Slots>);

impl Concurrency {
    /// Sets the limit of a kind from the next claim on. Running jobs continue. Zero pauses the kind
    /// in this process.
    pub fn set(&self, kind: &str, limit: usize) {
        self.0.set_limit(kind, limit);
    }

    pub fn used_slots(&self, kind: &str) -> usize {
        self.0.count_running().into_iter().find(|(name, _)| name == kind).map_or(0, |(_, count)| count)
    }
}

impl Runner {
    /// Starts to claim jobs. When `shutdown` fires, claiming stops, and running jobs finish or are
    /// released within `drain_timeout`. Must be called within a Tokio runtime. If the database is
    /// unavailable, now or later, the runner waits for it.
    pub fn start(
        queue: Queue,
        handlers: HashMap<String, Arc<dyn Handler>>,
        config: RunnerConfig,
        shutdown: CancellationToken,
    ) -> Self {
        telemetry::describe();
        let limits = handlers.keys().map(|kind| {
            let limit = *config.concurrency.get(kind).unwrap_or(&1);
            (kind.clone(), limit, config.keep_quarter_free.contains(kind))
        });
        let slots = Arc::new(Slots::new(limits));
        let shared = Arc::new(Shared {
            queue: queue.on_own_connections(OWN_CONNECTIONS),
            handlers,
            config,
            slots: Arc::clone(&slots),
            active_claims: ActiveClaims::default(),
            forced_shutdown: CancellationToken::new(),
            run_ended: Notify::new(),
        });
        Self { handle: tokio::spawn(claiming::supervise(shared, shutdown)), slots }
    }

    pub fn concurrency(&self) -> Concurrency {
        Concurrency(Arc::clone(&self.slots))
    }

    /// Waits until all jobs are settled or released.
    pub async fn until_stopped(self) {
        if let Err(error) = self.handle.await {
            tracing::error!(%error, "runner ended abnormally; its jobs return to the queue when their leases expire");
        }
    }
}

/// State shared by the tasks of one runner.
struct Shared {
    /// Uses the runner's own connections.
    queue: Queue,
    handlers: HashMap<String, Arc<dyn Handler>>,
    config: RunnerConfig,
    slots: Arc<Slots>,
    active_claims: ActiveClaims,
    /// Fires when a shutdown stops waiting for the running jobs.
    forced_shutdown: CancellationToken,
    /// Fires when a run ends, because its partition key may have a free place.
    run_ended: Notify,
}

impl Shared {
    /// Returns `true` if no other job may run in the process during this one.
    fn must_run_alone(&self, job: &ClaimedJob) -> bool {
        job.must_run_alone() && !self.config.never_alone.contains(&job.kind)
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Exponential pauses with jitter, so that many workers do not retry at the same moment.
#[derive(Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    fn next(&mut self) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(self.failures)).min(MAX_PAUSE);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(rand::random_range(0.5..1.0))
    }

    fn reset(&mut self) {
        self.failures = 0;
    }
}
