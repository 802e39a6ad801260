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
/// Maximum number of waiting completions. Above it, handlers have to wait.
const MAX_WAITING_COMPLETIONS: usize = 10_000;
/// Time limit for cancelled handlers to stop.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of the last completions and releases. The database may be shutting down too.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which a claim waits until a quarter of a kind's slots is free. A claim of one
/// job costs the database about as much as a claim of several.
const GATHER_SLOTS: Duration = Duration::from_millis(20);
/// Minimum pause after an empty claim, also if a job is due that another worker is claiming.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Maximum pause, regardless of the poll interval.
const MAX_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// Runs a runner from start to shutdown.
pub(super) async fn supervise(shared: Arc<Shared>, shutdown: CancellationToken) {
    let (done, inbox) = mpsc::channel(MAX_WAITING_COMPLETIONS);
    let mut completions = tokio::spawn(settling::completions(Arc::clone(&shared), inbox));
    let mut background_tasks = JoinSet::new();
    background_tasks.spawn(maintenance::heartbeats(Arc::clone(&shared)));
    background_tasks.spawn(maintenance::maintenance(Arc::clone(&shared)));
    background_tasks.spawn(maintenance::purges(Arc::clone(&shared)));
    background_tasks.spawn(maintenance::listen(Arc::clone(&shared)));
    background_tasks.spawn(maintenance::partitions(Arc::clone(&shared)));

    let mut runs = JoinSet::new();
    claim_until(&shared, &shutdown, &mut runs, &done).await;

    tracing::info!(running = runs.len(), "runner is shutting down; claiming has stopped");
    let finished = tokio::time::timeout(shared.config.drain, all_ended(&mut runs)).await;
    if finished.is_err() {
        tracing::warn!(running = runs.len(), "shutdown time limit exceeded; cancelling the running jobs");
        shared.forced.cancel();
        shared.active_claims.cancel_all();
        let _ = tokio::time::timeout(CANCEL_TIMEOUT, all_ended(&mut runs)).await;
        runs.shutdown().await;
    }
    drop(done);
    if tokio::time::timeout(FINAL_WRITE_TIMEOUT, &mut completions).await.is_err() {
        completions.abort();
        tracing::error!("failed to write the last completions; these jobs will run again");
    }
    release_remaining(&shared).await;
    background_tasks.shutdown().await;
    let _ = tokio::time::timeout(FINAL_WRITE_TIMEOUT, shared.queue.pool.close()).await;
}

async fn all_ended(runs: &mut JoinSet<()>) {
    while runs.join_next().await.is_some() {}
}

/// Claims jobs while there are free slots, until the shutdown.
async fn claim_until(
    shared: &Arc<Shared>,
    shutdown: &CancellationToken,
    runs: &mut JoinSet<()>,
    done: &mpsc::Sender<Completion>,
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
            // Not in a `select!` with the shutdown, because a claim whose future is dropped may
            // still claim jobs, which no task would run.
            match claim(shared, &requests, runs, done).await {
                Ok(0) => next_poll = Instant::now() + pause(shared).await,
                Ok(_) => backoff.reset(),
                Err(error) => {
                    telemetry::failed("claim");
                    tracing::warn!(%error, "failed to claim jobs; retrying");
                    shared.slots.failed(&requests);
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
            () = shared.slots.changed() => {}
            () = tokio::time::sleep_until(next_poll.into()) => {
                next_poll = Instant::now() + poll(shared);
                shared.slots.wake();
            }
        }
    }
}

/// Waits until a claim can fill several slots, but not longer than [`GATHER_SLOTS`].
async fn gather_slots(shared: &Shared, shutdown: &CancellationToken) {
    let deadline = tokio::time::Instant::now() + GATHER_SLOTS;
    while shared.slots.are_nearly_full() {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep_until(deadline) => return,
            () = shared.slots.changed() => {}
        }
    }
}

/// Claims once and starts the claimed jobs. Returns their number. For the last quarter of a kind's
/// slots, jobs of tenants with fewer running jobs are claimed first.
async fn claim(
    shared: &Arc<Shared>,
    requests: &[ClaimRequest],
    runs: &mut JoinSet<()>,
    done: &mpsc::Sender<Completion>,
) -> Result<usize, crate::QueueError> {
    let (worker, lease) = (&shared.config.worker, shared.queue.config().lease);
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
        let sent = Instant::now();
        let jobs = with_time_limit(
            lease,
            shared.queue.claim_of_other_tenants(&other_tenants, &running, worker, never_alone),
        )
        .await?;
        telemetry::claimed(sent.elapsed());
        for job in &jobs {
            *counts.entry(job.kind.clone()).or_default() += 1;
        }
        counts.keys().for_each(|kind| shared.slots.found_other_tenants(kind));
        start(shared, jobs, sent, runs, done);
    }
    let any_tenant: Vec<(&str, i64)> = (requests.iter())
        .map(|request| {
            (request.kind.as_str(), request.any_after(counts.get(&request.kind).copied().unwrap_or(0)) as i64)
        })
        .filter(|(_, limit)| *limit > 0)
        .collect();
    let count: usize = counts.values().sum();
    if any_tenant.is_empty() {
        return Ok(count);
    }
    let sent = Instant::now();
    let jobs = with_time_limit(
        lease,
        shared.queue.claim_slots(&any_tenant, MAX_JOBS_PER_CLAIM, worker, never_alone),
    )
    .await?;
    telemetry::claimed(sent.elapsed());
    Ok(count + start(shared, jobs, sent, runs, done))
}

/// Starts the jobs of a claim that was sent at `sent`. Returns their number.
fn start(
    shared: &Arc<Shared>,
    jobs: Vec<ClaimedJob>,
    sent: Instant,
    runs: &mut JoinSet<()>,
    done: &mpsc::Sender<Completion>,
) -> usize {
    let count = jobs.len();
    // All slots are occupied before the first job runs, because a job that must run alone waits
    // until no other slot is occupied.
    for job in &jobs {
        shared.slots.occupy(&job.kind, job.tenant);
        if shared.runs_alone(job) {
            shared.slots.reserve();
        }
    }
    for job in jobs {
        let cancel = shared.active_claims.add(job.claim, sent + shared.queue.config().lease);
        runs.spawn(settling::run(Arc::clone(shared), job, cancel, done.clone()));
    }
    count
}

fn poll(shared: &Shared) -> Duration {
    shared.config.poll.clamp(MIN_PAUSE, MAX_PAUSE)
}

/// Returns the pause after an empty claim: the poll interval, or less if a job is due earlier.
async fn pause(shared: &Shared) -> Duration {
    let poll = poll(shared);
    let kinds = shared.slots.kinds_with_free_slots();
    match with_time_limit(poll, shared.queue.next_due(&kinds)).await {
        Ok(Some(due)) => due.clamp(MIN_PAUSE, poll),
        // If the database failed, the next claim reports it.
        Ok(None) | Err(_) => poll,
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
                    telemetry::failed("release");
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
