//! Reserves the memory of request bodies, each from the budget of all bodies and the share of its
//! sender. `middleware::bodies` counts the bytes of a body.
use crate::ApiError;
use crate::shares::{CallerShare, KIB, Shares};
use inference::Priority;
use pipeline::{Budget, Exhausted, Share};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why a partly read body could not get more memory.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ReservationError {
    /// The bodies of all callers together use the whole budget.
    #[error(transparent)]
    All(#[from] Exhausted),
    /// The other bodies of the same sender use its whole share.
    #[error("the caller's other bodies use its whole share of {0}")]
    Share(&'static str, Exhausted),
}

impl From<ReservationError> for ApiError {
    fn from(error: ReservationError) -> Self {
        match error {
            ReservationError::All(exhausted) => exhausted.into(),
            ReservationError::Share(_, ref exhausted) => {
                Self::overloaded(error.to_string(), exhausted.retry_after)
            }
        }
    }
}

/// The oldest partly read body that waits for more memory. The entry holds the age of the body and
/// a token that ends the wait. A lower age means an older body.
#[derive(Clone, Default)]
struct OldestWaitingBody(Arc<Mutex<Option<(u64, CancellationToken)>>>);

/// Represents the entry of the waiting body. Dropping it removes the entry.
struct WaitingSlot<'a> {
    oldest: &'a OldestWaitingBody,
    age: u64,
}

impl OldestWaitingBody {
    fn next_age() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for `memory`. Returns `None` if an older body is already waiting, or when an older
    /// body starts to wait.
    async fn wait<T>(
        &self,
        age: u64,
        memory: impl Future<Output = Result<T, Exhausted>>,
    ) -> Option<Result<T, Exhausted>> {
        let displaced = CancellationToken::new();
        {
            let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match &*slot {
                Some((other, _)) if *other < age => return None,
                Some((_, other)) => other.cancel(),
                None => {}
            }
            *slot = Some((age, displaced.clone()));
        }
        let _slot = WaitingSlot { oldest: self, age };
        tokio::select! {
            memory = memory => Some(memory),
            () = displaced.cancelled() => None,
        }
    }
}

impl Drop for WaitingSlot<'_> {
    fn drop(&mut self) {
        let mut slot = self.oldest.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|(age, _)| *age == self.age) {
            *slot = None;
        }
    }
}

pub(crate) struct BodyMemory {
    budget: Budget,
    oldest: OldestWaitingBody,
    shares: Shares,
}

impl BodyMemory {
    /// Returns a `BodyMemory` with a budget of `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        let budget = Budget::new("request_bodies", limit);
        Self {
            shares: Shares::three_quarters_of(budget.limit(), KIB),
            budget,
            oldest: OldestWaitingBody::default(),
        }
    }

    /// Returns the empty reservation of a body of the current caller. The body may wait for memory
    /// until `until`.
    pub(crate) fn reservation(&self, until: Option<Instant>) -> BodyReservation {
        BodyReservation {
            budget: self.budget.clone(),
            oldest: self.oldest.clone(),
            age: OldestWaitingBody::next_age(),
            until,
            share: self.shares.open(),
            held: None,
            bytes: 0,
        }
    }
}

pub(crate) struct BodyReservation {
    budget: Budget,
    oldest: OldestWaitingBody,
    age: u64,
    until: Option<Instant>,
    share: CallerShare,
    held: Option<Share>,
    bytes: u64,
}

impl BodyReservation {
    /// Returns the reserved bytes; `u64::MAX` if the body holds the whole budget and needs no more.
    pub(crate) fn bytes(&self) -> u64 {
        if self.bytes >= self.budget.limit() { u64::MAX } else { self.bytes }
    }

    /// Raises the reservation to `bytes` in total. After an error, the previous one remains.
    pub(crate) async fn grow(&mut self, bytes: u64) -> Result<(), ReservationError> {
        // Round up to whole units of the budget, so that the partial reservations of a body do not
        // add up to more than the body.
        let bytes = bytes.next_multiple_of(KIB).min(self.budget.limit());
        let more = bytes.saturating_sub(self.bytes);
        let Some(held) = &mut self.held else {
            // This body holds no memory that others wait for, so it may wait.
            let begin = self.share.begin(bytes);
            let begun = match self.until {
                Some(until) => tokio::time::timeout_at(until.into(), begin).await.is_ok(),
                None => {
                    begin.await;
                    true
                }
            };
            if !begun {
                return Err(self.share_exhausted());
            }
            let share = self.budget.take(bytes, Priority::Interactive, self.until).await?;
            (self.held, self.bytes) = (Some(share), bytes);
            return Ok(());
        };
        if !self.share.grow(bytes) {
            return Err(self.share_exhausted());
        }
        let share = match self.budget.try_take(more) {
            Some(share) => share,
            None => {
                let memory = self.budget.take(more, Priority::Interactive, self.until);
                self.oldest.wait(self.age, memory).await.ok_or_else(|| self.budget.exhausted())??
            }
        };
        held.join(share);
        self.bytes = bytes;
        Ok(())
    }

    fn share_exhausted(&self) -> ReservationError {
        let exhausted = self.budget.exhausted();
        ReservationError::Share(exhausted.what, exhausted)
    }

    /// Releases the part that exceeds `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        if let Some(held) = &mut self.held {
            held.shrink(bytes);
            self.share.shrink(bytes);
            self.bytes = self.bytes.min(bytes);
        }
    }

    pub(crate) fn release(&mut self) {
        self.shrink(0);
    }
}
