//! The active claims of this process and the state of their leases.
use crate::Claim;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

struct ActiveClaim {
    cancel: CancellationToken,
    /// Time at which the lease expires, by this process's clock. It is computed from the time
    /// before the call that set the lease, so it is never too late.
    expires_at: Instant,
    is_lost: bool,
}

/// All active claims, from claiming to settling.
#[derive(Default)]
pub(super) struct ActiveClaims(Mutex<HashMap<Claim, ActiveClaim>>);

impl ActiveClaims {
    /// Adds a claim. Returns the cancellation token for its handler.
    pub(super) fn add(&self, claim: Claim, expires_at: Instant) -> CancellationToken {
        let cancel = CancellationToken::new();
        let active = ActiveClaim { cancel: cancel.clone(), expires_at, is_lost: false };
        self.0.lock().insert(claim, active);
        cancel
    }

    /// Removes a claim that is settled or abandoned.
    pub(super) fn remove(&self, claim: Claim) {
        self.0.lock().remove(&claim);
    }

    /// Returns the claims that are not known to be lost.
    pub(super) fn to_vec(&self) -> Vec<Claim> {
        self.0.lock().iter().filter(|(_, active)| !active.is_lost).map(|(claim, _)| *claim).collect()
    }

    /// Returns `true` if the claim may still be held, so that settling it again is useful.
    pub(super) fn may_be_held(&self, claim: Claim) -> bool {
        self.0.lock().get(&claim).is_some_and(|active| !active.is_lost && Instant::now() < active.expires_at)
    }

    /// Applies the result of a heartbeat for `claims`, sent at `sent_at`. Cancels the handlers of
    /// the `lost` claims and extends the other leases.
    pub(super) fn apply_heartbeat(
        &self,
        claims: &[Claim],
        lost: &[Claim],
        sent_at: Instant,
        lease: Duration,
    ) {
        let lost: HashSet<&Claim> = lost.iter().collect();
        let mut active_claims = self.0.lock();
        for claim in claims {
            let Some(active) = active_claims.get_mut(claim) else { continue };
            if lost.contains(claim) {
                active.is_lost = true;
                active.cancel.cancel();
            } else {
                active.expires_at = sent_at + lease;
            }
        }
    }

    pub(super) fn cancel_all(&self) {
        self.0.lock().values().for_each(|active| active.cancel.cancel());
    }
}
