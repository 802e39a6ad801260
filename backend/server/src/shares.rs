//! What one caller holds of a budget that is for all.
use crate::auth::CallerId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes are counted in KiB, as the budget does.
const UNIT: u64 = 1 << 10;

/// The shares of all callers who hold anything.
pub(crate) struct Shares {
    units: u32,
    open: Arc<Mutex<HashMap<CallerId, Entry>>>,
}

struct Entry {
    room: Arc<Semaphore>,
    bodies: usize,
}

/// The share of one caller, as one of his bodies or answers sees it.
pub(crate) struct Mine {
    units: u32,
    caller: CallerId,
    room: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    open: Arc<Mutex<HashMap<CallerId, Entry>>>,
}

impl Shares {
    /// Three quarters of `limit` for one caller: the rest is for the others.
    pub(crate) fn of(limit: u64) -> Self {
        let units = u32::try_from(limit / UNIT).unwrap_or(u32::MAX);
        Self { units: (units - units / 4).max(1), open: Arc::default() }
    }

    pub(crate) fn open(&self, caller: CallerId) -> Mine {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Entry { room: Arc::new(Semaphore::new(self.units as usize)), bodies: 0 };
        let entry = open.entry(caller).or_insert_with(new);
        entry.bodies += 1;
        let (room, held) = (entry.room.clone(), None);
        Mine { units: self.units, caller, room, held, open: self.open.clone() }
    }
}

impl Mine {
    fn units_of(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.units)
    }

    fn held_units(&self) -> usize {
        self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Waits until the caller's other bodies leave room. Only for a body that holds nothing yet.
    pub(super) async fn begin(&mut self, bytes: u64) {
        let units = self.units_of(bytes);
        // The semaphore is never closed.
        self.held = self.room.clone().acquire_many_owned(units).await.ok();
    }

    /// Returns whether the caller may hold `bytes` for this body. A caller's only body may use the
    /// whole budget.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let more = self.units_of(bytes) as usize - self.held_units().min(self.units_of(bytes) as usize);
        let Ok(permit) = self.room.clone().try_acquire_many_owned(u32::try_from(more).unwrap_or(u32::MAX))
        else {
            return false;
        };
        match &mut self.held {
            Some(held) => held.merge(permit),
            held @ None => *held = Some(permit),
        }
        true
    }

    /// Gives back what is more than `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let surplus = self.held_units().saturating_sub(self.units_of(bytes) as usize);
        drop(self.held.as_mut().and_then(|held| held.split(surplus)));
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = open.get_mut(&self.caller) {
            entry.bodies -= 1;
            if entry.bodies == 0 {
                open.remove(&self.caller);
            }
        }
    }
}
