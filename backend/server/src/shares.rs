//! Limits the share that one caller holds of a common resource, such as memory, running analyses or
//! database connections. Other modules limit the total amounts.
use crate::auth::CallerId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit of memory budgets, in bytes.
pub(crate) const KIB: u64 = 1 << 10;

/// Contains the shares of all callers that currently use the resource.
pub(crate) struct Shares {
    unit: u64,
    units: u32,
    open: Arc<Mutex<HashMap<CallerId, Entry>>>,
}

struct Entry {
    semaphore: Arc<Semaphore>,
    holders: usize,
}

/// Represents the part of a caller's share that one holder, such as a request, uses.
pub(crate) struct CallerShare {
    unit: u64,
    units: u32,
    caller: CallerId,
    semaphore: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    open: Arc<Mutex<HashMap<CallerId, Entry>>>,
}

impl Shares {
    /// Returns shares of three quarters of `limit` for each caller, counted in units of `unit`. The
    /// last quarter remains available to other callers.
    pub(crate) fn three_quarters_of(limit: u64, unit: u64) -> Self {
        let units = u32::try_from(limit / unit).unwrap_or(u32::MAX);
        Self { unit, units: (units - units / 4).max(1), open: Arc::default() }
    }

    /// Opens the share of the current request's caller. The new holder uses nothing yet.
    pub(crate) fn open(&self) -> CallerShare {
        let caller = CallerId::current();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Entry { semaphore: Arc::new(Semaphore::new(self.units as usize)), holders: 0 };
        let entry = open.entry(caller).or_insert_with(new);
        entry.holders += 1;
        let (semaphore, held) = (entry.semaphore.clone(), None);
        CallerShare { unit: self.unit, units: self.units, caller, semaphore, held, open: self.open.clone() }
    }
}

impl CallerShare {
    fn units_of(&self, amount: u64) -> u32 {
        u32::try_from(amount.div_ceil(self.unit)).unwrap_or(u32::MAX).min(self.units)
    }

    fn held_units(&self) -> usize {
        self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Waits until `amount` of the caller's share is free, then reserves it. Call it only on a
    /// holder that uses nothing yet.
    pub(crate) async fn begin(&mut self, amount: u64) {
        let units = self.units_of(amount);
        // The semaphore is never closed.
        self.held = self.semaphore.clone().acquire_many_owned(units).await.ok();
    }

    /// Raises the amount of this holder to `amount`. Returns `false` if the caller's share is
    /// exhausted. An amount above the whole share is reduced to it, so that a caller's only holder
    /// always succeeds.
    pub(crate) fn grow(&mut self, amount: u64) -> bool {
        let held = u32::try_from(self.held_units()).unwrap_or(u32::MAX);
        let more = self.units_of(amount).saturating_sub(held);
        let Ok(permit) = self.semaphore.clone().try_acquire_many_owned(more) else { return false };
        match &mut self.held {
            Some(held) => held.merge(permit),
            held @ None => *held = Some(permit),
        }
        true
    }

    /// Releases the part that exceeds `amount`.
    pub(crate) fn shrink(&mut self, amount: u64) {
        let surplus = self.held_units().saturating_sub(self.units_of(amount) as usize);
        drop(self.held.as_mut().and_then(|held| held.split(surplus)));
    }
}

impl Drop for CallerShare {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = open.get_mut(&self.caller) {
            entry.holders -= 1;
            if entry.holders == 0 {
                open.remove(&self.caller);
            }
        }
    }
}
