//! The claims this process holds, and what it knows about their leases.
use crate::Claim;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

struct Holding {
    cancel: CancellationToken,
    /// When the lease ends, by this process's clock and on the safe side: counted from before the call that set it.
    expires: Instant,
    lost: bool,
}

/// All claims from the moment they are made until they are settled.
#[derive(Default)]
pub(super) struct Holdings(Mutex<HashMap<Claim, Holding>>);

impl Holdings {
    /// A new claim; the answer is the token its handler gets.
    pub(super) fn add(&self, claim: Claim, expires: Instant) -> CancellationToken {
        let cancel = CancellationToken::new();
        let holding = Holding { cancel: cancel.clone(), expires, lost: false };
        self.0.lock().insert(claim, holding);
        cancel
    }

    /// The claim is settled, one way or the other.
    pub(super) fn remove(&self, claim: Claim) {
        self.0.lock().remove(&claim);
    }

    /// Claims that, as far as is known, are still held.
    pub(super) fn held(&self) -> Vec<Claim> {
        self.0.lock().iter().filter(|(_, holding)| !holding.lost).map(|(claim, _)| *claim).collect()
    }

    /// Whether it makes sense to go on trying to settle this claim.
    pub(super) fn may_hold(&self, claim: Claim) -> bool {
        self.0.lock().get(&claim).is_some_and(|holding| !holding.lost && Instant::now() < holding.expires)
    }

    /// A heartbeat for `asked`, sent at `sent`, found `lost` gone: their handlers are told.
    pub(super) fn heartbeat(&self, asked: &[Claim], lost: &[Claim], sent: Instant, lease: Duration) {
        let lost: HashSet<&Claim> = lost.iter().collect();
        let mut holdings = self.0.lock();
        for claim in asked {
            let Some(holding) = holdings.get_mut(claim) else { continue };
            if lost.contains(claim) {
                holding.lost = true;
                holding.cancel.cancel();
            } else {
                holding.expires = sent + lease;
            }
        }
    }

    /// Tells all handlers to stop.
    pub(super) fn cancel_all(&self) {
        self.0.lock().values().for_each(|holding| holding.cancel.cancel());
    }
}
