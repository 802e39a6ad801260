//! The claim loop and the shutdown.
use super::settling::{self, Completion};
use super::slots::ClaimRequest;
use super::{Backoff, Shared, maintenance, telemetry};
use crate::ClaimedJob;
use crate::queue::with_time_limit;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const MAX_JOBS_PER_CLAIM: i64 = 1000;
/// Maximum number of waiting completions. Above it, runs wait until there is space.
const MAX_WAITING_COMPLETIONS: usize = 10_000;
/// Time limit for cancelled handlers to stop.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of the last completions and releases. The database may be shutting down too.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which a claim waits until a quarter of a kind's slots is free. A claim of one
/// job costs the database about as much as a claim of several.
const GATHER_TIMEOUT: Duration = Duration::from_millis(40);
/// Minimum pause after an empty claim, also if a job is due that another worker is claiming.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Maximum pause, regardless of the poll interval.
const MAX_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// Runs a runner from start to shutdown.
pub(super) async fn supervise(shared: Arc<Shared>, shutdown: CancellationToken) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING_COMPLETIONS);
    let mut completion_task = tokio::spawn(settling::complete_jobs(Arc::clone(&shared), receiver));
    let mut background_tasks = JoinSet::new();
    background_tasks.spawn(maintenance::send_heartbeats(Arc::clone(&shared)));
    background_tasks.spawn(maintenance::run_maintenance(Arc::clone(&shared)));
    background_tasks.spawn(maintenance::purge_periodically(Arc::clone(&shared)));
    background_tasks.spawn(maintenance::listen_for_jobs(Arc::clone(&shared)));
    background_tasks.spawn(maintenance::unpark_periodically(Arc::clone(&shared)));

    let mut runs = JoinSet::new();
    claim_until_shutdown(&shared, &shutdown, &mut runs, &sender).await;

    tracing::info!(running = runs.len(), "runner is shutting down; claiming has stopped");
    let finished = tokio::time::timeout(shared.config.drain_timeout, join_all(&mut runs)).await;
    if finished.is_err() {
        tracing::warn!(running = runs.len(), "shutdown time limit exceeded; cancelling the running jobs");
        shared.forced_shutdown.cancel();
        shared.active_claims.cancel_all();
        let _ = tokio::time::timeout(CANCEL_TIMEOUT, join_all(&mut runs)).await;
        runs.shutdown().await;
    }
    drop(sender);
    if tokio::time::timeout(FINAL_WRITE_TIMEOUT, &mut completion_task).await.is_err() {
        completion_task.abort();
        tracing::error!("failed to write the last completions; these jobs will run again");
    }
    release_remaining(&shared).await;
    background_tasks.shutdown().await;
    let _ = tokio::time::timeout(FINAL_WRITE_TIMEOUT, shared.queue.pool.close()).await;
}

async fn join_all(runs: &mut JoinSet<()>) {
    while runs.join_next().await.is_some() {}
}

/// Claims jobs while there are free slots, until the shutdown.
async fn claim_until_shutdown(
    shared: &Arc<Shared>,
    shutdown: &CancellationToken,
    runs: &mut JoinSet<()>,
    completions: &mpsc::Sender<Completion>,
) {
    let mut backoff = Backoff::default();
    let mut next_poll = Instant::now();
    while !shutdown.is_cancelled() {
        while runs.try_join_next().is_some() {}
        gather_slots(shared, shutdown).await;
        if shutdown.is_cancelled() {
            return;
        }
        let requests = shared.slots.requests();
        if !requests.is_empty() {
            // The shutdown does not interrupt a claim. The database may still claim jobs after its
            // future is dropped, and no task would run them.
            match claim(shared, &requests, runs, completions).await {
                Ok(0) => next_poll = Instant::now() + pause_after_empty_claim(shared).await,
                Ok(_) => backoff.reset(),
                Err(error) => {
                    telemetry::count_failure("claim");
                    tracing::warn!(%error, "failed to claim jobs; retrying");
                    shared.slots.mark_failed(&requests);
                    tokio::select! {
                        () = shutdown.cancelled() => return,
                        () = tokio::time::sleep(backoff.next()) => {}
                    }
                }
            }
            continue;
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = shared.slots.until_changed() => {}
            () = tokio::time::sleep_until(next_poll.into()) => {
                next_poll = Instant::now() + poll_interval(shared);
                shared.slots.wake();
            }
        }
    }
}

/// Waits until a claim can fill several slots, but not longer than [`GATHER_TIMEOUT`].
async fn gather_slots(shared: &Shared, shutdown: &CancellationToken) {
    let deadline = tokio::time::Instant::now() + GATHER_TIMEOUT;
    while shared.slots.are_nearly_full() {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep_until(deadline) => return,
            () = shared.slots.until_changed() => {}
        }
    }
}

/// Claims once and starts the claimed jobs. Returns their number. For the last quarter of a kind's
/// slots, jobs of tenants with fewer running jobs are claimed first.
async fn claim(
    shared: &Arc<Shared>,
    requests: &[ClaimRequest],
    runs: &mut JoinSet<()>,
    completions: &mpsc::Sender<Completion>,
) -> Result<usize, crate::QueueError> {
    let (worker, lease) = (&shared.config.worker_name, shared.queue.config().lease);
    let never_alone = &shared.config.never_alone;
    let other_tenants: Vec<(&str, Uuid, i64)> = (requests.iter())
        .filter_map(|request| {
            request.other_tenants.map(|(tenant, limit)| (request.kind.as_str(), tenant, limit as i64))
        })
        .collect();
    let running: Vec<(&str, Uuid, i64)> = (requests.iter().filter(|request| request.other_tenants.is_some()))
        .flat_map(|request| {
            request.running.iter().map(|(tenant, jobs)| (request.kind.as_str(), *tenant, *jobs as i64))
        })
        .collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    if !other_tenants.is_empty() {
        let sent_at = Instant::now();
        let jobs = with_time_limit(
            lease,
            shared.queue.claim_of_other_tenants(&other_tenants, &running, worker, never_alone),
        )
        .await?;
        telemetry::record_claim_time(sent_at.elapsed());
        for job in &jobs {
            *counts.entry(job.kind.clone()).or_default() += 1;
        }
        counts.keys().for_each(|kind| shared.slots.record_other_tenants(kind));
        start_jobs(shared, jobs, sent_at, runs, completions);
    }
    let any_tenant: Vec<(&str, i64)> = (requests.iter())
        .map(|request| {
            (
                request.kind.as_str(),
                request.limit_after(counts.get(&request.kind).copied().unwrap_or(0)) as i64,
            )
        })
        .filter(|(_, limit)| *limit > 0)
        .collect();
    let count: usize = counts.values().sum();
    if any_tenant.is_empty() {
        return Ok(count);
    }
    let sent_at = Instant::now();
    let jobs = with_time_limit(
        lease,
        shared.queue.claim_slots(&any_tenant, MAX_JOBS_PER_CLAIM, worker, never_alone),
    )
    .await?;
    telemetry::record_claim_time(sent_at.elapsed());
    Ok(count + start_jobs(shared, jobs, sent_at, runs, completions))
}

/// Starts the jobs of a claim that was sent at `sent_at`. Returns their number.
fn start_jobs(
    shared: &Arc<Shared>,
    jobs: Vec<ClaimedJob>,
    sent_at: Instant,
    runs: &mut JoinSet<()>,
    completions: &mpsc::Sender<Completion>,
) -> usize {
    let count = jobs.len();
    // All slots are occupied before the first job runs, because a job that must run alone waits
    // until no other slot is occupied.
    for job in &jobs {
        shared.slots.occupy(&job.kind, job.tenant);
        if shared.must_run_alone(job) {
            shared.slots.stop_claims();
        }
    }
    for job in jobs {
        let cancel = shared.active_claims.add(job.claim, sent_at + shared.queue.config().lease);
        runs.spawn(settling::run(Arc::clone(shared), job, cancel, completions.clone()));
    }
    count
}

fn poll_interval(shared: &Shared) -> Duration {
    shared.config.poll_interval.clamp(MIN_PAUSE, MAX_PAUSE)
}

/// Returns the pause after an empty claim: the poll interval, or less if a job is due earlier.
async fn pause_after_empty_claim(shared: &Shared) -> Duration {
    let poll_interval = poll_interval(shared);
    let kinds = shared.slots.kinds_with_free_slots();
    match with_time_limit(poll_interval, shared.queue.next_due(&kinds)).await {
        Ok(Some(due)) => due.clamp(MIN_PAUSE, poll_interval),
        // If the database failed, the next claim reports it.
        Ok(None) | Err(_) => poll_interval,
    }
}

/// Releases the jobs that no handler settled. Their runs are not counted as attempts.
async fn release_remaining(shared: &Shared) {
    let remaining = shared.active_claims.to_vec();
    if remaining.is_empty() {
        return;
    }
    let mut backoff = Backoff::default();
    let released = tokio::time::timeout(FINAL_WRITE_TIMEOUT, async {
        loop {
            match shared.queue.release(&remaining).await {
                Ok(count) => return count,
                Err(error) => {
                    telemetry::count_failure("release");
                    tracing::warn!(%error, "failed to release jobs; retrying");
                    tokio::time::sleep(backoff.next()).await;
                }
            }
        }
    });
    match released.await {
        Ok(count) => tracing::info!(count, "released jobs that were still running"),
        Err(_) => tracing::error!(
            jobs = remaining.len(),
            "failed to release jobs; they return to the queue when their leases expire"
        ),
    }
}
