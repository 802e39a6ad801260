//! What runs beside the jobs: heartbeats, maintenance, and the ear for new jobs.
use super::backoff::{Backoff, within};
use super::{Shared, telemetry};
use crate::CHANNEL;
use sqlx::postgres::PgListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// Longest pause between two rescues: an expired lease is back in the queue within seconds.
const RESCUE_EVERY: Duration = Duration::from_secs(5);
/// Between two looks at the depth of the queue.
const STATS_EVERY: Duration = Duration::from_secs(15);
/// Between two purges of ended jobs.
const PURGE_EVERY: Duration = Duration::from_secs(60);
/// Notifications that come within this time after one are answered together.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Shortest pause between two looks at the lanes.
const LANES_EVERY: Duration = Duration::from_millis(50);
/// Shortest interval of anything here, whatever the lease.
const SHORTEST: Duration = Duration::from_millis(20);

/// Extends all leases three times as often as they would run out; after a failure, more often still.
pub(super) async fn heartbeats(shared: Arc<Shared>) {
    let lease = shared.queue.config().lease;
    let every = (lease / 3).max(SHORTEST);
    let mut backoff = Backoff::default();
    let mut pause = every;
    loop {
        tokio::time::sleep(pause).await;
        let claims = shared.holdings.held();
        let sent = Instant::now();
        match within(every, shared.queue.heartbeat(&claims)).await {
            Ok(lost) => {
                shared.holdings.heartbeat(&claims, &lost, sent, lease);
                backoff.reset();
                pause = every;
            }
            Err(error) => {
                telemetry::failed("heartbeat");
                tracing::warn!(%error, claims = claims.len(), "the heartbeat failed; trying again");
                pause = backoff.next().min(every);
            }
        }
    }
}

/// Rescues expired leases of all workers, publishes the depth. Every process does it; the rows are
/// skipped that another is at.
pub(super) async fn maintenance(shared: Arc<Shared>) {
    let lease = shared.queue.config().lease;
    let mut rescue = ticks((lease / 6).clamp(SHORTEST, RESCUE_EVERY));
    let mut stats = ticks(STATS_EVERY);
    let depth = telemetry::Depth::default();
    let limit = lease.max(RESCUE_EVERY);
    loop {
        let (call, done) = tokio::select! {
            _ = rescue.tick() => ("rescue", within(limit, shared.queue.rescue()).await.map(|count| {
                if count > 0 {
                    telemetry::rescued(count);
                    tracing::info!(count, "rescued jobs whose lease ran out");
                }
            })),
            _ = stats.tick() => ("stats", within(limit, depth.publish(&shared)).await),
        };
        if let Err(error) = done {
            telemetry::failed(call);
            tracing::warn!(%error, call, "the queue's maintenance failed; trying again at its next turn");
        }
    }
}

/// Purges ended jobs. Apart from the rest of the maintenance: when a process comes back to ten million old jobs it is at it for minutes.
pub(super) async fn purges(shared: Arc<Shared>) {
    let mut tick = ticks(PURGE_EVERY);
    loop {
        tick.tick().await;
        match shared.queue.purge().await {
            Ok(count) => telemetry::purged(count),
            Err(error) => {
                telemetry::failed("purge");
                tracing::warn!(%error, "purging ended jobs failed; trying again at its next turn");
            }
        }
    }
}

/// Ticks that do not catch up: after a minute without a database, one rescue is enough.
fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Lets parked jobs join their lines, after runs have ended and at each poll (for those that other processes ended).
pub(super) async fn lanes(shared: Arc<Shared>) {
    let poll = shared.config.poll.max(SHORTEST);
    let mut backoff = Backoff::default();
    loop {
        let begun = Instant::now();
        let pause = match within(shared.queue.config().lease, shared.queue.unpark()).await {
            Ok(_) => {
                backoff.reset();
                // Many lanes take longer to look at, and are looked at less often.
                LANES_EVERY.max(begun.elapsed() * 5)
            }
            Err(error) => {
                telemetry::failed("unpark");
                tracing::warn!(%error, "parked jobs cannot join their lines; trying again");
                backoff.next()
            }
        };
        tokio::time::sleep(pause).await;
        let _ = tokio::time::timeout(poll, shared.ended.notified()).await;
    }
}

/// Wakes the claim loop for each burst of notifications, and after each reconnection, because what was sent in between
/// is lost.
pub(super) async fn listen(shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    loop {
        if let Err(error) = listen_once(&shared, &mut backoff).await {
            telemetry::failed("listen");
            tracing::warn!(%error, "listening for new jobs failed; polling until it works again");
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

async fn listen_once(shared: &Shared, backoff: &mut Backoff) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(&shared.queue.pool).await?;
    listener.listen(CHANNEL).await?;
    backoff.reset();
    shared.slots.wake();
    // `None` is a lost connection.
    while listener.try_recv().await?.is_some() {
        shared.slots.wake();
        tokio::time::sleep(DEBOUNCE).await;
        let mut more = false;
        while listener.next_buffered().is_some() {
            more = true;
        }
        if more {
            shared.slots.wake();
        }
    }
    Ok(())
}
