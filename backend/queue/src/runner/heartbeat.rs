use super::backoff::{Backoff, with_time_limit};
use super::maintenance::MIN_INTERVAL;
use super::{Shared, telemetry};
use std::sync::Arc;
use std::time::Instant;

/// Extends all leases every third of the lease time, and more often after a failure.
pub(super) async fn heartbeats(shared: Arc<Shared>) {
    let lease = shared.queue.config().lease;
    let every = (lease / 3).max(MIN_INTERVAL);
    let mut backoff = Backoff::default();
    let mut pause = every;
    loop {
        tokio::time::sleep(pause).await;
        let claims = shared.active_claims.held();
        let sent = Instant::now();
        match with_time_limit(every, shared.queue.heartbeat(&claims)).await {
            Ok(lost) => {
                shared.active_claims.heartbeat(&claims, &lost, sent, lease);
                backoff.reset();
                pause = every;
            }
            Err(error) => {
                telemetry::failed("heartbeat");
                tracing::warn!(%error, claims = claims.len(), "failed to send heartbeat; retrying");
                pause = backoff.next().min(every);
            }
        }
    }
}
