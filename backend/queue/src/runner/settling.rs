//! Runs one job and records its outcome in the queue.
use super::{Backoff, RunEnd, Shared, telemetry};
use crate::queue::with_time_limit;
use crate::runner::slots::in_slot;
use crate::settle::{BUSY_PAUSE, Unsettled};
use crate::{Claim, ClaimedJob, JobState, QueueError};
use futures::FutureExt;
use std::any::Any;
use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Maximum number of completions per statement.
const MAX_BATCH: usize = 500;
/// Minimum time between two batches of completions. Under load, completions accumulate during this
/// time. Without load, it adds no delay.
const MIN_BATCH_INTERVAL: Duration = Duration::from_millis(2);

/// Maximum time between two checks whether a job still has to run alone.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum of that time, which applies near the end of an exclusive run.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A job whose handler returned `Done`.
pub(super) struct Completion {
    claim: Claim,
    kind: String,
}

/// Runs one job, catches panics, and settles the job.
pub(super) async fn run(
    shared: Arc<Shared>,
    job: ClaimedJob,
    cancel: CancellationToken,
    completions: mpsc::Sender<Completion>,
) {
    let (claim, kind) = (job.claim, job.kind.clone());
    let span = tracing::info_span!("job", job_id = %claim.id, kind);
    run_and_settle(shared, job, claim, kind, cancel, completions).instrument(span).await;
}

async fn run_and_settle(
    shared: Arc<Shared>,
    job: ClaimedJob,
    claim: Claim,
    kind: String,
    cancel: CancellationToken,
    completions: mpsc::Sender<Completion>,
) {
    let (mut exclusive, tenant) = (ExclusiveRun::new(&shared, &job), job.tenant);
    if let Some(run) = &mut exclusive {
        match wait_until_alone(&shared, &job, &cancel).await {
            Ok(is_marked) => run.is_marked = is_marked,
            Err(outcome) => {
                shared.slots.release(&kind, tenant);
                settle(&shared, claim, kind, outcome, &completions).await;
                return;
            }
        }
    }
    let start = Instant::now();
    let running = run_handler(&shared, job, cancel);
    let outcome = match exclusive {
        None => running.await,
        Some(exclusive) => {
            let mut running = pin!(running);
            tokio::select! {
                outcome = &mut running => outcome,
                () = exclusive.end(claim) => running.await,
            }
        }
    };
    telemetry::record_run_time(&kind, start.elapsed());
    shared.slots.release(&kind, tenant);
    settle(&shared, claim, kind, outcome, &completions).await;
}

/// Calls the handler. A panic becomes a failed attempt.
async fn run_handler(shared: &Shared, job: ClaimedJob, cancel: CancellationToken) -> RunEnd {
    let kind = job.kind.clone();
    let Some(handler) = shared.handlers.get(&kind).cloned() else {
        return RunEnd::Retry(format!("no handler for kind {kind:?}"), None);
    };
    // The handler is called inside the future, so that a panic before its first await is caught.
    let (slots, tenant) = (Arc::clone(&shared.slots), job.tenant);
    let slot_kind = kind.clone();
    let run = async move { in_slot(&slots, &slot_kind, tenant, handler.run(job, cancel)).await };
    let run = AssertUnwindSafe(run).catch_unwind();
    run.await.unwrap_or_else(|panic| {
        telemetry::count_panic(&kind);
        RunEnd::Retry(format!("panicked: {}", panic_text(panic.as_ref())), None)
    })
}

/// Reserves the process for one job: no jobs are claimed while this guard exists.
struct ExclusiveRun<'a> {
    shared: &'a Shared,
    /// Whether the job is marked as alone in the database.
    is_marked: bool,
}

impl<'a> ExclusiveRun<'a> {
    fn new(shared: &'a Shared, job: &ClaimedJob) -> Option<Self> {
        // `then_some` would create and drop the guard in every case, and the drop resumes claims.
        shared.must_run_alone(job).then(|| Self { shared, is_marked: false })
    }

    /// Ends the reservation when the job records progress, or after
    /// [`RunnerConfig::alone_timeout`](super::RunnerConfig). A long job would otherwise prevent all
    /// other jobs from running.
    async fn end(self, claim: Claim) {
        let Self { shared: Shared { queue, config, .. }, is_marked } = &self;
        let deadline = Instant::now() + config.alone_timeout;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            tokio::time::sleep(remaining.clamp(MIN_CHECK_INTERVAL, CHECK_INTERVAL)).await;
            let alone = match Instant::now() >= deadline {
                true => queue.end_alone(claim).await.map(|()| false),
                // Without the mark, progress cannot be seen, and a crash would count against jobs
                // that run at the same time.
                false if !is_marked => Ok(true),
                false => queue.is_alone(claim).await,
            };
            match alone {
                Ok(true) => {}
                Ok(false) | Err(QueueError::Stale(_)) => return,
                // Other jobs must not start before the mark is removed.
                Err(error) => tracing::debug!(job = %claim.id, %error, "failed to end an exclusive run"),
            }
        }
    }
}

impl Drop for ExclusiveRun<'_> {
    fn drop(&mut self) {
        self.shared.slots.resume_claims();
    }
}

/// Waits until no other job runs in the process, then marks the job as alone. If other jobs still
/// run after [`RunnerConfig::drain_timeout`](super::RunnerConfig), the job runs concurrently with
/// them and without the mark. A crash of the process is then not attributed to this job. Returns
/// `true` if the job is marked.
async fn wait_until_alone(
    shared: &Shared,
    job: &ClaimedJob,
    cancel: &CancellationToken,
) -> Result<bool, RunEnd> {
    let snooze = || RunEnd::Snooze(Duration::ZERO);
    tracing::warn!(job = %job.claim.id, kind = job.kind, crashes = job.crashes, "the job's lease expired more than once; the job runs alone");
    telemetry::count_alone_run(&job.kind);
    tokio::select! {
        // The claim is lost or the runner stops.
        () = cancel.cancelled() => return Err(snooze()),
        waited = tokio::time::timeout(shared.config.drain_timeout, shared.slots.until_alone()) => if waited.is_err() {
            tracing::warn!(job = %job.claim.id, "other jobs are still running; the job does not run alone");
            return Ok(false);
        }
    }
    match retry_while_leased(shared, job.claim, || shared.queue.begin_alone(job.claim)).await {
        Ok(()) => Ok(true),
        Err(QueueError::Stale(_)) => Err(RunEnd::Stale),
        Err(_) => Err(snooze()),
    }
}

async fn settle(
    shared: &Shared,
    claim: Claim,
    kind: String,
    outcome: RunEnd,
    completions: &mpsc::Sender<Completion>,
) {
    let is_forced = shared.forced_shutdown.is_cancelled();
    let result = match outcome {
        RunEnd::Done => {
            // The claim remains active, and its lease is extended, until its batch is completed.
            if completions.send(Completion { claim, kind }).await.is_err() {
                tracing::error!(job = %claim.id, "the completion task ended before the runs");
            }
            return;
        }
        RunEnd::Settled => Ok("completed"),
        RunEnd::Stale => Err(QueueError::Stale(claim.id)),
        // The shutdown caused this failure, so the job is released as if no worker had claimed it.
        RunEnd::Retry(..) | RunEnd::Snooze(_) if is_forced => {
            retry_while_leased(shared, claim, || release(shared, claim)).await.map(|()| "released")
        }
        RunEnd::Retry(error, wait) => {
            // The error may contain a host name or an address, which an erasure cannot remove from
            // a log. `last_error` of the job contains it.
            tracing::warn!(job = %claim.id, kind, "job failed");
            tracing::debug!(job = %claim.id, error, "error of a failed job");
            let state = retry_while_leased(shared, claim, || fail(shared, claim, &error, false, wait)).await;
            state.map(JobState::as_str)
        }
        RunEnd::Discard(error) => {
            tracing::warn!(job = %claim.id, kind, "job failed permanently");
            tracing::debug!(job = %claim.id, error, "error of a failed job");
            retry_while_leased(shared, claim, || fail(shared, claim, &error, true, None))
                .await
                .map(JobState::as_str)
        }
        RunEnd::Snooze(wait) => {
            retry_while_leased(shared, claim, || shared.queue.snooze(claim, wait)).await.map(|()| "snoozed")
        }
    };
    match result {
        Ok(outcome) => {
            telemetry::count_outcome(&kind, outcome);
            if matches!(outcome, "snoozed" | "retryable") {
                // The claim loop must take the job's new due time into account.
                shared.slots.wake_kind(&kind);
            }
        }
        Err(QueueError::Stale(_)) => {
            tracing::info!(job = %claim.id, kind, "claim lost; result discarded");
            telemetry::count_outcome(&kind, "stale");
        }
        Err(error) => report_unsettled(claim, &kind, &error),
    }
    shared.active_claims.remove(claim);
    shared.run_ended.notify_one();
}

async fn fail(
    shared: &Shared,
    claim: Claim,
    error: &str,
    is_permanent: bool,
    wait: Option<Duration>,
) -> Result<JobState, QueueError> {
    let mut tx = shared.queue.pool.begin().await?;
    let state = shared.queue.fail(&mut tx, claim, error, is_permanent, wait).await?;
    tx.commit().await?;
    Ok(state)
}

async fn release(shared: &Shared, claim: Claim) -> Result<(), QueueError> {
    match shared.queue.release(&[claim]).await? {
        0 => Err(QueueError::Stale(claim.id)),
        _ => Ok(()),
    }
}

/// Repeats the call until the queue returns a result or the lease expires.
async fn retry_while_leased<T, F: Future<Output = Result<T, QueueError>>>(
    shared: &Shared,
    claim: Claim,
    mut call: impl FnMut() -> F,
) -> Result<T, QueueError> {
    let mut backoff = Backoff::default();
    loop {
        match with_time_limit(shared.queue.config().lease, call()).await {
            Err(error @ QueueError::Database(_)) => {
                telemetry::count_failure("settle");
                if !shared.active_claims.may_be_held(claim) {
                    return Err(error);
                }
                tracing::warn!(job = %claim.id, %error, "failed to settle job; retrying until the lease expires");
                tokio::time::sleep(backoff.next()).await;
            }
            result => return result,
        }
    }
}

fn report_unsettled(claim: Claim, kind: &str, error: &QueueError) {
    tracing::error!(job = %claim.id, kind, %error, "failed to settle job before its lease expired; the job will run again");
    telemetry::count_outcome(kind, "unsettled");
}

/// Completes the jobs of handlers that returned `Done`, in batches. Ends when all senders are
/// dropped and all completions are processed.
pub(super) async fn complete_jobs(shared: Arc<Shared>, mut receiver: mpsc::Receiver<Completion>) {
    let mut waiting: Vec<Completion> = Vec::new();
    let mut backoff = Backoff::default();
    let mut last_batch = Instant::now();
    loop {
        if waiting.is_empty() && receiver.recv_many(&mut waiting, MAX_BATCH).await == 0 {
            return;
        }
        tokio::time::sleep(MIN_BATCH_INTERVAL.saturating_sub(last_batch.elapsed())).await;
        while waiting.len() < MAX_BATCH
            && let Ok(completion) = receiver.try_recv()
        {
            waiting.push(completion);
        }
        last_batch = Instant::now();
        let claims: Vec<Claim> = waiting.iter().map(|completion| completion.claim).collect();
        match with_time_limit(shared.queue.config().lease, shared.queue.try_complete_many(&claims)).await {
            Ok(unsettled) => {
                backoff.reset();
                waiting = record_batch(&shared, waiting, &unsettled);
                if !waiting.is_empty() {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
            }
            Err(error) => {
                telemetry::count_failure("settle");
                tracing::warn!(%error, jobs = waiting.len(), "failed to complete jobs; retrying until the leases expire");
                waiting.retain(|completion| {
                    let keep = shared.active_claims.may_be_held(completion.claim);
                    if !keep {
                        report_unsettled(completion.claim, &completion.kind, &error);
                        shared.active_claims.remove(completion.claim);
                    }
                    keep
                });
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

/// Counts the settled jobs of a batch. Returns the jobs whose rows were locked.
fn record_batch(shared: &Shared, waiting: Vec<Completion>, unsettled: &Unsettled) -> Vec<Completion> {
    let stale: HashSet<&Claim> = unsettled.stale.iter().collect();
    let busy: HashSet<&Claim> = unsettled.busy.iter().collect();
    let mut remaining = Vec::new();
    for completion in waiting {
        if busy.contains(&completion.claim) {
            remaining.push(completion);
            continue;
        }
        telemetry::count_outcome(
            &completion.kind,
            if stale.contains(&completion.claim) { "stale" } else { "completed" },
        );
        shared.active_claims.remove(completion.claim);
    }
    shared.run_ended.notify_one();
    remaining
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("with a value that is not text")
}
