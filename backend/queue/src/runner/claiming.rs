//! The claim loop, and the shutdown.
use super::backoff::{Backoff, within};
use super::settling::{self, Done};
use super::{Shared, keeping, telemetry};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Most jobs of one claim.
const LARGEST_CLAIM: i64 = 1000;
/// Completions that may wait before handlers wait for them.
const INBOX: usize = 10_000;
/// How long handlers that were told to stop have to do so.
const GRACE: Duration = Duration::from_secs(1);
/// How long the last completions and releases may take: the database may be what is shutting down.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Shortest pause after a claim that brought nothing, also when a job is due: another worker is at it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause, whatever the poll interval says.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// The whole life of a runner.
pub(super) async fn supervise(shared: Arc<Shared>, shutdown: CancellationToken) {
    let (done, inbox) = mpsc::channel(INBOX);
    let mut completions = tokio::spawn(settling::completions(Arc::clone(&shared), inbox));
    let mut keepers = JoinSet::new();
    keepers.spawn(keeping::heartbeats(Arc::clone(&shared)));
    keepers.spawn(keeping::maintenance(Arc::clone(&shared)));
    keepers.spawn(keeping::purges(Arc::clone(&shared)));
    keepers.spawn(keeping::listen(Arc::clone(&shared)));
    keepers.spawn(keeping::lanes(Arc::clone(&shared)));

    let mut runs = JoinSet::new();
    claim_until(&shared, &shutdown, &mut runs, &done).await;

    tracing::info!(running = runs.len(), "stopping: no more claims");
    let finished = tokio::time::timeout(shared.config.drain, all_ended(&mut runs)).await;
    if finished.is_err() {
        tracing::warn!(running = runs.len(), "the time to finish is over: telling the running jobs to stop");
        shared.forced.cancel();
        shared.holdings.cancel_all();
        let _ = tokio::time::timeout(GRACE, all_ended(&mut runs)).await;
        runs.shutdown().await;
    }
    drop(done);
    if tokio::time::timeout(LAST_WORDS, &mut completions).await.is_err() {
        completions.abort();
        tracing::error!("the last completions could not be written; those jobs will run again");
    }
    release_rest(&shared).await;
    keepers.shutdown().await;
    let _ = tokio::time::timeout(LAST_WORDS, shared.queue.pool.close()).await;
}

async fn all_ended(runs: &mut JoinSet<()>) {
    while runs.join_next().await.is_some() {}
}

/// Claims whatever there is room for, until the shutdown.
async fn claim_until(
    shared: &Arc<Shared>,
    shutdown: &CancellationToken,
    runs: &mut JoinSet<()>,
    done: &mpsc::Sender<Done>,
) {
    let mut backoff = Backoff::default();
    let mut look_again = Instant::now();
    while !shutdown.is_cancelled() {
        while runs.try_join_next().is_some() {}
        let wanted = shared.slots.wanted();
        if !wanted.is_empty() {
            // Not in a select with the shutdown: dropped half-way, a claim could be made and nobody know of it.
            match claim(shared, &wanted, runs, done).await {
                Ok(0) => look_again = Instant::now() + pause(shared).await,
                Ok(_) => backoff.reset(),
                Err(error) => {
                    telemetry::failed("claim");
                    tracing::warn!(%error, "claiming failed; trying again");
                    shared.slots.more(wanted.iter().map(|(kind, _)| kind.as_str()));
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
            () = tokio::time::sleep_until(look_again.into()) => {
                look_again = Instant::now() + poll(shared);
                shared.slots.wake();
            }
        }
    }
}

/// Claims once and starts what came; the number.
async fn claim(
    shared: &Arc<Shared>,
    wanted: &[(String, usize)],
    runs: &mut JoinSet<()>,
    done: &mpsc::Sender<Done>,
) -> Result<usize, crate::QueueError> {
    let slots: Vec<(&str, i64)> = wanted.iter().map(|(kind, free)| (kind.as_str(), *free as i64)).collect();
    let lease = shared.queue.config().lease;
    let sent = Instant::now();
    shared.slots.asked(wanted);
    let jobs = within(lease, shared.queue.claim_slots(&slots, LARGEST_CLAIM, &shared.config.worker)).await?;
    telemetry::claimed(sent.elapsed());
    shared.slots.more(jobs.iter().map(|job| job.kind.as_str()).collect::<HashSet<_>>().into_iter());
    let count = jobs.len();
    for job in jobs {
        shared.slots.take(&job.kind);
        if job.runs_alone() {
            shared.slots.reserve();
        }
        let cancel = shared.holdings.add(job.claim, sent + lease);
        runs.spawn(settling::run(Arc::clone(shared), job, cancel, done.clone()));
    }
    Ok(count)
}

fn poll(shared: &Shared) -> Duration {
    shared.config.poll.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// How long to wait after an empty claim: until the next poll, or less when a job is due before it.
async fn pause(shared: &Shared) -> Duration {
    let poll = poll(shared);
    let kinds = shared.slots.with_room();
    match within(poll, shared.queue.next_due(&kinds)).await {
        Ok(Some(due)) => due.clamp(SHORTEST_PAUSE, poll),
        // A failure is the next claim's to report.
        Ok(None) | Err(_) => poll,
    }
}

/// Puts back what no handler settled; no attempt is burned.
async fn release_rest(shared: &Shared) {
    let left = shared.holdings.held();
    if left.is_empty() {
        return;
    }
    let mut backoff = Backoff::default();
    let released = tokio::time::timeout(LAST_WORDS, async {
        loop {
            match shared.queue.release(&left).await {
                Ok(count) => return count,
                Err(error) => {
                    telemetry::failed("release");
                    tracing::warn!(%error, "releasing failed; trying again");
                    tokio::time::sleep(backoff.next()).await;
                }
            }
        }
    });
    match released.await {
        Ok(count) => tracing::info!(count, "released jobs that were still running"),
        Err(_) => tracing::error!(
            jobs = left.len(),
            "could not release the jobs; they return when their leases run out"
        ),
    }
}
