//! Limits the part of a common resource that one caller or address can hold. The total amounts are
//! limited by budgets and semaphores.
use crate::request::CallerId;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Contains the shares of all callers that currently use the resource.
pub(crate) struct Shares {
    unit: u64,
    units: u32,
    entries: Arc<Mutex<HashMap<CallerId, Entry>>>,
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
    permit: Option<OwnedSemaphorePermit>,
    entries: Arc<Mutex<HashMap<CallerId, Entry>>>,
}

impl Shares {
    /// Returns shares of three quarters of `limit` for each caller, counted in units of `unit`. The
    /// last quarter remains available to other callers.
    pub(crate) fn three_quarters_of(limit: u64, unit: u64) -> Self {
        let units = u32::try_from(limit / unit).unwrap_or(u32::MAX);
        Self { unit, units: (units - units / 4).max(1), entries: Arc::default() }
    }

    /// Opens the share of the current request's caller. The new holder uses nothing yet.
    pub(crate) fn open(&self) -> CallerShare {
        let caller = CallerId::current();
        let mut entries = lock(&self.entries);
        let new_entry = || Entry { semaphore: Arc::new(Semaphore::new(self.units as usize)), holders: 0 };
        let entry = entries.entry(caller).or_insert_with(new_entry);
        entry.holders += 1;
        let (semaphore, entries) = (entry.semaphore.clone(), self.entries.clone());
        CallerShare { unit: self.unit, units: self.units, caller, semaphore, permit: None, entries }
    }
}

impl CallerShare {
    fn to_units(&self, amount: u64) -> u32 {
        u32::try_from(amount.div_ceil(self.unit)).unwrap_or(u32::MAX).min(self.units)
    }

    fn held_units(&self) -> usize {
        self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Waits until `amount` of the caller's share is free, then reserves it. Call it only on a
    /// holder that uses nothing yet.
    pub(crate) async fn acquire(&mut self, amount: u64) {
        let units = self.to_units(amount);
        // The semaphore is never closed.
        self.permit = self.semaphore.clone().acquire_many_owned(units).await.ok();
    }

    /// Raises the amount of this holder to `amount`. Returns `false` if the caller's share is
    /// exhausted. An amount above the whole share is reduced to it, so that a caller's only holder
    /// always succeeds.
    pub(crate) fn grow(&mut self, amount: u64) -> bool {
        let held = u32::try_from(self.held_units()).unwrap_or(u32::MAX);
        let additional = self.to_units(amount).saturating_sub(held);
        let Ok(permit) = self.semaphore.clone().try_acquire_many_owned(additional) else { return false };
        match &mut self.permit {
            Some(held) => held.merge(permit),
            held @ None => *held = Some(permit),
        }
        true
    }

    /// Releases the part that exceeds `amount`.
    pub(crate) fn shrink(&mut self, amount: u64) {
        let surplus = self.held_units().saturating_sub(self.to_units(amount) as usize);
        drop(self.permit.as_mut().and_then(|permit| permit.split(surplus)));
    }
}

impl Drop for CallerShare {
    fn drop(&mut self) {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get_mut(&self.caller) {
            entry.holders -= 1;
            if entry.holders == 0 {
                entries.remove(&self.caller);
            }
        }
    }
}

/// Limits the permits of each holder. A holder without permits uses no memory.
pub(crate) struct KeyedLimit<K> {
    max_permits: usize,
    counts: Arc<Mutex<HashMap<K, usize>>>,
}

/// Represents one permit of a holder. Dropping it releases the permit.
pub(crate) struct KeyedPermit<K: Eq + Hash> {
    holder: K,
    counts: Arc<Mutex<HashMap<K, usize>>>,
}

impl<K: Copy + Eq + Hash> KeyedLimit<K> {
    pub(crate) fn new(max_permits: usize) -> Self {
        Self { max_permits, counts: Arc::default() }
    }

    /// Returns a permit, or `None` if the holder already has `max_permits` permits.
    pub(crate) fn try_acquire(&self, holder: K) -> Option<KeyedPermit<K>> {
        let mut counts = lock(&self.counts);
        let count = counts.get(&holder).copied().unwrap_or_default();
        if count >= self.max_permits {
            return None;
        }
        counts.insert(holder, count + 1);
        Some(KeyedPermit { holder, counts: self.counts.clone() })
    }
}

impl<K: Eq + Hash> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&self.holder) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.holder);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keyed_limit_counts_permits_per_holder() {
        let limit = KeyedLimit::new(2);
        let (first_holder, second_holder) = (1_u8, 2_u8);
        let first = limit.try_acquire(first_holder).unwrap();
        let second = limit.try_acquire(first_holder).unwrap();
        assert!(limit.try_acquire(first_holder).is_none());
        let _other_permit = limit.try_acquire(second_holder).unwrap();
        drop(first);
        let third = limit.try_acquire(first_holder).unwrap();
        assert!(limit.try_acquire(first_holder).is_none());
        drop((second, third));
        assert_eq!(lock(&limit.counts).len(), 1, "holders without permits are removed");
    }
}
