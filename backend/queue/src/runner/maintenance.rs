//! Background tasks of a runner: heartbeats, rescue, statistics, purge, unparking, notifications.
use super::{Backoff, Shared, telemetry};
use crate::CHANNEL;
use crate::queue::with_time_limit;
use sqlx::postgres::PgListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// Maximum interval between two rescues, so that jobs with expired leases return in seconds.
const MAX_RESCUE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which the depth of the queue is published.
const STATS_INTERVAL: Duration = Duration::from_secs(15);
/// Interval between two purges of jobs that have ended.
const PURGE_INTERVAL: Duration = Duration::from_secs(60);
/// Notifications within this time after the first are handled together.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Minimum interval between two passes over the partition keys.
const MIN_UNPARK_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum interval after a pass that unparked nothing. Usually no job is parked.
const IDLE_UNPARK_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum of all intervals of the background tasks, regardless of the lease.
const MIN_INTERVAL: Duration = Duration::from_millis(20);

/// Rescues expired leases of all workers and publishes the queue's depth. Every process does this;
/// rows that another process is rescuing are skipped.
pub(super) async fn run_maintenance(shared: Arc<Shared>) {
    let lease = shared.queue.config().lease;
    let mut rescue = new_interval((lease / 6).clamp(MIN_INTERVAL, MAX_RESCUE_INTERVAL));
    let mut stats = new_interval(STATS_INTERVAL);
    let depth = telemetry::Depth::default();
    let limit = lease.max(MAX_RESCUE_INTERVAL);
    loop {
        let (call, result) = tokio::select! {
            _ = rescue.tick() => ("rescue", with_time_limit(limit, shared.queue.rescue()).await.map(|count| {
                if count > 0 {
                    telemetry::count_rescued(count);
                    tracing::info!(count, "rescued jobs whose lease expired");
                }
            })),
            _ = stats.tick() => ("stats", with_time_limit(limit, depth.publish(&shared)).await),
        };
        if let Err(error) = result {
            telemetry::count_failure(call);
            tracing::warn!(%error, call, "queue maintenance failed; retrying at the next interval");
        }
    }
}

/// Purges ended jobs. This is a separate task, because deleting ten million old jobs takes minutes.
pub(super) async fn purge_periodically(shared: Arc<Shared>) {
    let mut interval = new_interval(PURGE_INTERVAL);
    loop {
        interval.tick().await;
        match shared.queue.purge().await {
            Ok(count) => telemetry::count_purged(count),
            Err(error) => {
                telemetry::count_failure("purge");
                tracing::warn!(%error, "failed to purge ended jobs; retrying at the next interval");
            }
        }
    }
}

/// Creates an interval that skips missed ticks. After an outage of a minute, one rescue is enough.
fn new_interval(period: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Unparks jobs after runs have ended, and at each poll interval, because runs also end in other
/// processes.
pub(super) async fn unpark_periodically(shared: Arc<Shared>) {
    let poll_interval = shared.config.poll_interval.max(MIN_INTERVAL);
    let mut backoff = Backoff::default();
    loop {
        let start = Instant::now();
        let pause = match with_time_limit(shared.queue.config().lease, shared.queue.unpark()).await {
            Ok(count) => {
                backoff.reset();
                // With many partition keys a pass takes longer, so passes become less frequent.
                let min_interval = if count > 0 { MIN_UNPARK_INTERVAL } else { IDLE_UNPARK_INTERVAL };
                min_interval.max(start.elapsed() * 5)
            }
            Err(error) => {
                telemetry::count_failure("unpark");
                tracing::warn!(%error, "failed to unpark jobs; retrying");
                backoff.next()
            }
        };
        tokio::time::sleep(pause).await;
        let _ = tokio::time::timeout(poll_interval, shared.run_ended.notified()).await;
    }
}

/// Wakes the claim loop for each burst of notifications, and after each reconnection, because
/// notifications sent during the interruption are lost.
pub(super) async fn listen_for_jobs(shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    loop {
        if let Err(error) = listen_once(&shared, &mut backoff).await {
            telemetry::count_failure("listen");
            tracing::warn!(%error, "job notification listener failed; polling until it recovers");
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

async fn listen_once(shared: &Shared, backoff: &mut Backoff) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(&shared.queue.pool).await?;
    listener.listen(CHANNEL).await?;
    backoff.reset();
    shared.slots.wake();
    // `None` means that the connection was lost.
    while listener.try_recv().await?.is_some() {
        shared.slots.wake();
        tokio::time::sleep(DEBOUNCE).await;
        let mut has_more = false;
        while listener.next_buffered().is_some() {
            has_more = true;
        }
        if has_more {
            shared.slots.wake();
        }
    }
    Ok(())
}

/// Extends all leases every third of the lease time, and more often after a failure.
pub(super) async fn send_heartbeats(shared: Arc<Shared>) {
    let lease = shared.queue.config().lease;
    let interval = (lease / 3).max(MIN_INTERVAL);
    let mut backoff = Backoff::default();
    let mut pause = interval;
    loop {
        tokio::time::sleep(pause).await;
        let claims = shared.active_claims.to_vec();
        let sent_at = Instant::now();
        match with_time_limit(interval, shared.queue.heartbeat(&claims)).await {
            Ok(lost) => {
                shared.active_claims.apply_heartbeat(&claims, &lost, sent_at, lease);
                backoff.reset();
                pause = interval;
            }
            Err(error) => {
                telemetry::count_failure("heartbeat");
                tracing::warn!(%error, claims = claims.len(), "failed to send heartbeat; retrying");
                pause = backoff.next().min(interval);
            }
        }
    }
}
