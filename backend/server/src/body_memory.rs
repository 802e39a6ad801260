//! Reserves the memory of request bodies, each from the budget of all bodies and the share of its
//! sender. `middleware::bodies` counts the bytes of a body.
use crate::ApiError;
use crate::shares::{KIB, Mine, Shares};
use inference::Priority;
use pipeline::{Budget, Exhausted, Share};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why a partly read body could not get more memory.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NoRoom {
    /// The bodies of all callers together use the whole budget.
    #[error(transparent)]
    All(#[from] Exhausted),
    /// The other bodies of the same sender use its whole share.
    #[error("the caller's other bodies use its whole share of {0}")]
    Share(&'static str, Exhausted),
}

impl From<NoRoom> for ApiError {
    fn from(error: NoRoom) -> Self {
        match error {
            NoRoom::All(exhausted) => exhausted.into(),
            NoRoom::Share(_, ref exhausted) => Self::overloaded(error.to_string(), exhausted.retry_after),
        }
    }
}

/// The oldest partly read body that waits for more memory. The entry holds the age of the body and
/// a token that ends the wait. A lower age means an older body.
#[derive(Clone, Default)]
struct Elder(Arc<Mutex<Option<(u64, CancellationToken)>>>);

/// Represents the entry of the waiting body. Dropping it removes the entry.
struct Place<'a> {
    elder: &'a Elder,
    age: u64,
}

impl Elder {
    fn next_age() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for `room`. Returns `None` if an older body is already waiting, or when an older body
    /// starts to wait.
    async fn wait<T>(
        &self,
        age: u64,
        room: impl Future<Output = Result<T, Exhausted>>,
    ) -> Option<Result<T, Exhausted>> {
        let sent_away = CancellationToken::new();
        {
            let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match &*place {
                Some((other, _)) if *other < age => return None,
                Some((_, other)) => other.cancel(),
                None => {}
            }
            *place = Some((age, sent_away.clone()));
        }
        let _place = Place { elder: self, age };
        tokio::select! {
            room = room => Some(room),
            () = sent_away.cancelled() => None,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut place = self.elder.0.lock().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_some_and(|(age, _)| *age == self.age) {
            *place = None;
        }
    }
}

/// The memory for all request bodies.
pub(crate) struct BodyMemory {
    budget: Budget,
    /// The partly read body that waits for more memory.
    elder: Elder,
    /// Each caller's share.
    shares: Shares,
}

impl BodyMemory {
    /// Returns a `BodyMemory` with a budget of `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        let budget = Budget::new("request_bodies", limit);
        Self { shares: Shares::of(budget.limit(), KIB), budget, elder: Elder::default() }
    }

    /// Returns the empty reservation of a body of the current caller. The body may wait for memory
    /// until `until`.
    pub(crate) fn room(&self, until: Option<Instant>) -> Room {
        Room {
            budget: self.budget.clone(),
            elder: self.elder.clone(),
            age: Elder::next_age(),
            until,
            share: self.shares.open(),
            held: None,
            bytes: 0,
        }
    }
}

/// Represents the memory that one body holds.
pub(crate) struct Room {
    budget: Budget,
    elder: Elder,
    age: u64,
    until: Option<Instant>,
    share: Mine,
    held: Option<Share>,
    bytes: u64,
}

impl Room {
    /// Returns the reserved bytes. If the body holds the whole budget, it needs no further memory,
    /// and the result is `u64::MAX`.
    pub(crate) fn bytes(&self) -> u64 {
        if self.bytes >= self.budget.limit() { u64::MAX } else { self.bytes }
    }

    /// Raises the reservation to `bytes` in total.
    ///
    /// # Errors
    /// Fails with [`NoRoom`]. The previous reservation is kept.
    pub(crate) async fn grow(&mut self, bytes: u64) -> Result<(), NoRoom> {
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
                return Err(self.no_share());
            }
            let share = self.budget.take(bytes, Priority::Interactive, self.until).await?;
            (self.held, self.bytes) = (Some(share), bytes);
            return Ok(());
        };
        if !self.share.grow(bytes) {
            return Err(self.no_share());
        }
        let share = match self.budget.try_take(more) {
            Some(share) => share,
            None => {
                let room = self.budget.take(more, Priority::Interactive, self.until);
                self.elder.wait(self.age, room).await.ok_or_else(|| self.budget.exhausted())??
            }
        };
        held.join(share);
        self.bytes = bytes;
        Ok(())
    }

    fn no_share(&self) -> NoRoom {
        let exhausted = self.budget.exhausted();
        NoRoom::Share(exhausted.what, exhausted)
    }

    /// Releases the part that exceeds `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        if let Some(held) = &mut self.held {
            held.shrink(bytes);
            self.share.shrink(bytes);
            self.bytes = self.bytes.min(bytes);
        }
    }

    /// Releases everything.
    pub(crate) fn release(&mut self) {
        self.shrink(0);
    }
}
