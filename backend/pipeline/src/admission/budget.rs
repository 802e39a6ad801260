//! Limits on memory that many callers share, for example for decoded images and request bodies.
//!
//! A caller acquires a share of the budget before it allocates a large amount of memory, and stores
//! the share with the bytes. Shares are granted in the order of the requests, so small requests do
//! not block a large one forever. A caller that holds a share must not wait for another share of
//! the same budget: such callers could wait for each other forever.
use inference::Priority;
use metrics::{Gauge, Unit, describe_gauge, gauge};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// A budget is counted in KiB, so that the size of every share fits into 32 bits.
const UNIT_BYTES: u64 = 1 << 10;
/// Time before a caller's deadline at which the wait ends, so that the error still reaches the
/// caller. Work that started later could not finish in time.
const DEADLINE_MARGIN: Duration = Duration::from_millis(250);
/// Time after which a rejected caller should try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The budget had no free memory before the caller's deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory budget for {budget} is exhausted; try again later")]
pub struct BudgetExhausted {
    pub budget: &'static str,
    pub retry_after: Duration,
}

/// Limits the number of bytes that are in use at a time. Cloning it is cheap.
#[derive(Clone)]
pub struct Budget {
    name: &'static str,
    units: u32,
    background_units: u32,
    /// Free units for all callers.
    total: Arc<Semaphore>,
    /// Free units for background work.
    background: Arc<Semaphore>,
    held: Gauge,
    waiting: Gauge,
}

/// A part of a budget. Dropping it returns the part to the budget.
#[derive(Debug)]
pub struct Share {
    total: OwnedSemaphorePermit,
    background: Option<OwnedSemaphorePermit>,
    /// Includes the bytes of `total`.
    held: Gauge,
}

impl Budget {
    /// Creates a budget of `bytes`. Background work may use three quarters of it, so that a part is
    /// always available to interactive callers. `name` identifies the budget in errors and in the
    /// gauges `facecrawl_held_bytes`, `facecrawl_held_limit_bytes` and `facecrawl_held_waiting`.
    pub fn new(name: &'static str, bytes: u64) -> Self {
        describe_gauge!("facecrawl_held_bytes", Unit::Bytes, "Bytes of a memory budget in use, by budget");
        describe_gauge!("facecrawl_held_limit_bytes", Unit::Bytes, "Size of a memory budget, by budget");
        describe_gauge!(
            "facecrawl_held_waiting",
            Unit::Count,
            "Callers that wait for memory of a budget, by budget"
        );
        gauge!("facecrawl_held_limit_bytes", "what" => name).set(bytes as f64);
        let units = units(bytes).max(1);
        let background_units = (units - units / 4).max(1);
        Self {
            name,
            units,
            background_units,
            total: semaphore(units),
            background: semaphore(background_units),
            held: gauge!("facecrawl_held_bytes", "what" => name),
            waiting: gauge!("facecrawl_held_waiting", "what" => name),
        }
    }

    /// Returns the same budget, but lets background work use at least `bytes`, the size of the
    /// largest item that it processes. Call it before any share is acquired.
    #[must_use]
    pub fn with_background_room(mut self, bytes: u64) -> Self {
        self.background_units = self.background_units.max(units(bytes).min(self.units));
        self.background = semaphore(self.background_units);
        self
    }

    /// Returns the size of the budget in bytes.
    pub fn limit(&self) -> u64 {
        u64::from(self.units) * UNIT_BYTES
    }

    /// Returns a share of `bytes` for an interactive caller, or `None` if they are not free now.
    pub fn try_acquire(&self, bytes: u64) -> Option<Share> {
        let units = units(bytes).min(self.units);
        let total = self.total.clone().try_acquire_many_owned(units).ok()?;
        Some(self.new_share(total, None))
    }

    /// Returns the error for a caller that found no free memory and cannot wait.
    pub fn exhausted_error(&self) -> BudgetExhausted {
        BudgetExhausted { budget: self.name, retry_after: RETRY_AFTER }
    }

    /// Waits until `bytes` are free and all earlier callers have received their shares, then
    /// returns a share. A request larger than the budget is reduced to the whole budget. No other
    /// share exists at the same time as such a share. Dropping the future cancels the request.
    ///
    /// # Errors
    /// Fails with [`BudgetExhausted`] shortly before `deadline`. Without one the wait has no limit.
    pub async fn acquire(
        &self,
        bytes: u64,
        priority: Priority,
        deadline: Option<Instant>,
    ) -> Result<Share, BudgetExhausted> {
        let permits = async {
            let (units, background) = match priority {
                Priority::Interactive => (units(bytes).min(self.units), None),
                Priority::Background => {
                    let units = units(bytes).min(self.background_units);
                    (units, Some(self.background.clone().acquire_many_owned(units).await?))
                }
            };
            Ok::<_, AcquireError>((self.total.clone().acquire_many_owned(units).await?, background))
        };
        let waiting = WaitingCaller::new(&self.waiting);
        let permits = match deadline {
            None => permits.await,
            Some(deadline) => {
                let until = deadline.checked_sub(DEADLINE_MARGIN).unwrap_or(deadline);
                let exhausted = |_| self.exhausted_error();
                tokio::time::timeout_at(until.into(), permits).await.map_err(exhausted)?
            }
        };
        drop(waiting);
        let (total, background) = permits.expect("the semaphores are never closed");
        Ok(self.new_share(total, background))
    }

    fn new_share(&self, total: OwnedSemaphorePermit, background: Option<OwnedSemaphorePermit>) -> Share {
        self.held.increment(units_to_bytes(total.num_permits()));
        Share { total, background, held: self.held.clone() }
    }
}

impl Share {
    /// Reduces the share to `bytes` and returns the rest to the budget.
    pub fn shrink(&mut self, bytes: u64) {
        let surplus = self.total.num_permits().saturating_sub(units(bytes) as usize);
        drop(self.take_units(surplus));
    }

    /// Splits a separate share of `bytes` off this one, or the whole share if it is smaller.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        self.take_units(self.total.num_permits().min(units(bytes) as usize))
    }

    /// Adds another share of the same budget. Both must have been acquired with the same priority.
    pub fn join(&mut self, mut other: Self) {
        // The bytes of the permits that are taken out of `other` remain in the gauge.
        let units = other.total.num_permits();
        self.total.merge(other.total.split(units).expect("all units are held"));
        match (&mut self.background, other.background.take()) {
            (Some(own), Some(added)) => own.merge(added),
            (own @ None, added) => *own = added,
            (Some(_), None) => {}
        }
    }

    fn take_units(&mut self, units: usize) -> Self {
        let split = |permit: &mut OwnedSemaphorePermit| permit.split(units).expect("too few units held");
        Self {
            total: split(&mut self.total),
            background: self.background.as_mut().map(split),
            held: self.held.clone(),
        }
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

fn units_to_bytes(units: usize) -> f64 {
    units as f64 * UNIT_BYTES as f64
}

fn semaphore(units: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new((units as usize).min(Semaphore::MAX_PERMITS)))
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.decrement(units_to_bytes(self.total.num_permits()));
    }
}

/// Counts a waiting caller until it is dropped.
struct WaitingCaller(Gauge);

impl WaitingCaller {
    fn new(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Adds bytes to a total until this value is dropped. The total has no limit.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl HeldBytes {
    pub(crate) fn new(total: &Arc<AtomicUsize>, bytes: usize) -> Self {
        total.fetch_add(bytes, Ordering::Relaxed);
        Self { total: total.clone(), bytes }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

pub(crate) struct AnalysisMemory {
    pub(crate) images: DecodedImageBudget,
    /// Memory of processes that decode videos. Acquire it before the memory for their frames.
    pub(crate) decoders: Budget,
}

/// The additional budget for small images is the common budget divided by this number.
const SMALL_BUDGET_DIVISOR: u64 = 8;
/// Minimum number of small images that fit into the additional budget together.
const MIN_SMALL_IMAGES: u64 = 2;

/// Limits the memory of decoded images. A small image of an interactive caller does not wait for a
/// large image that waits for memory.
pub(crate) struct DecodedImageBudget {
    total: Budget,
    small: Budget,
}

impl DecodedImageBudget {
    /// Creates a budget of `bytes` for all images, and an additional budget of an eighth of `bytes`
    /// for small images. One image takes at most `largest` bytes.
    pub(crate) fn new(bytes: u64, largest: u64) -> Self {
        Self {
            total: Budget::new("decoded_pictures", bytes).with_background_room(largest),
            small: Budget::new("small_decoded_pictures", bytes / SMALL_BUDGET_DIVISOR),
        }
    }

    /// Waits until `bytes` are free for one image.
    ///
    /// # Errors
    /// Fails with [`BudgetExhausted`] shortly before `deadline`.
    pub(crate) async fn acquire(
        &self,
        bytes: u64,
        priority: Priority,
        deadline: Option<Instant>,
    ) -> Result<Share, BudgetExhausted> {
        if priority == Priority::Background || bytes > self.small.limit() / MIN_SMALL_IMAGES {
            return self.total.acquire(bytes, priority, deadline).await;
        }
        tokio::select! {
            biased;
            share = self.small.acquire(bytes, priority, deadline) => share,
            share = self.total.acquire(bytes, priority, deadline) => share,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use futures::FutureExt;

    const MIB: u64 = 1 << 20;

    fn try_share(memory: &DecodedImageBudget, mib: u64, priority: Priority) -> Option<Share> {
        memory.acquire(mib * MIB, priority, None).now_or_never().transpose().unwrap()
    }

    #[test]
    fn small_image_does_not_wait_behind_large_image() {
        let memory = DecodedImageBudget::new(80 * MIB, 60 * MIB);
        let _held = try_share(&memory, 80, Priority::Interactive).unwrap();
        let mut waiting = Box::pin(memory.acquire(60 * MIB, Priority::Interactive, None));
        assert!((&mut waiting).now_or_never().is_none());
        let small: Vec<_> = (0..2).map(|_| try_share(&memory, 5, Priority::Interactive).unwrap()).collect();
        assert!(
            try_share(&memory, 5, Priority::Interactive).is_none(),
            "the budget for small images is full"
        );
        drop(small);
        assert!(
            try_share(&memory, 6, Priority::Interactive).is_none(),
            "6 MiB is more than half of the budget for small images"
        );
        assert!(
            try_share(&memory, 5, Priority::Background).is_none(),
            "background work has no access to the budget for small images"
        );
    }
}
