//! Reserves the memory of request bodies, fetched images and responses. Each reservation uses a
//! budget of all callers and the share of its own caller.
use super::callers::{CallerShare, Shares};
use crate::{ApiError, Result, request};
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use inference::Priority;
use pipeline::{Budget, BudgetExhausted, Share};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Unit of the callers' shares of memory, in bytes.
const KIB: u64 = 1 << 10;

/// The reason why a partly read body could not get more memory.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ReservationError {
    /// The bodies of all callers together use the whole budget.
    #[error(transparent)]
    Total(#[from] BudgetExhausted),
    /// The other bodies of the same sender use its whole share.
    #[error("the caller's other bodies use its whole share of {0}")]
    Share(&'static str, BudgetExhausted),
}

impl From<ReservationError> for ApiError {
    fn from(error: ReservationError) -> Self {
        match error {
            ReservationError::Total(exhausted) => exhausted.into(),
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
    /// Waits for `memory`. Returns `None` if an older body is already waiting, or when an older
    /// body starts to wait.
    async fn wait<T>(
        &self,
        age: u64,
        memory: impl Future<Output = Result<T, BudgetExhausted>>,
    ) -> Option<Result<T, BudgetExhausted>> {
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

/// Limits the memory of request bodies.
///
/// Only the oldest partly read body may wait for more memory. Other partly read bodies are rejected
/// and release their memory, so two of them never wait for each other.
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
    /// until `deadline`.
    pub(crate) fn reservation(&self, deadline: Option<Instant>) -> BodyReservation {
        static NEXT_AGE: AtomicU64 = AtomicU64::new(0);
        BodyReservation {
            budget: self.budget.clone(),
            oldest: self.oldest.clone(),
            age: NEXT_AGE.fetch_add(1, Ordering::Relaxed),
            deadline,
            share: self.shares.open(),
            held: None,
            bytes: 0,
        }
    }
}

/// The memory of one request body, which grows while the body arrives.
pub(crate) struct BodyReservation {
    budget: Budget,
    oldest: OldestWaitingBody,
    age: u64,
    deadline: Option<Instant>,
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
            let acquisition = self.share.acquire(bytes);
            let is_acquired = match self.deadline {
                Some(deadline) => tokio::time::timeout_at(deadline.into(), acquisition).await.is_ok(),
                None => {
                    acquisition.await;
                    true
                }
            };
            if !is_acquired {
                return Err(self.share_exhausted());
            }
            let share = self.budget.acquire(bytes, Priority::Interactive, self.deadline).await?;
            (self.held, self.bytes) = (Some(share), bytes);
            return Ok(());
        };
        if !self.share.grow(bytes) {
            return Err(self.share_exhausted());
        }
        let share = match self.budget.try_acquire(more) {
            Some(share) => share,
            None => {
                let memory = self.budget.acquire(more, Priority::Interactive, self.deadline);
                self.oldest.wait(self.age, memory).await.ok_or_else(|| self.budget.exhausted_error())??
            }
        };
        held.join(share);
        self.bytes = bytes;
        Ok(())
    }

    fn share_exhausted(&self) -> ReservationError {
        let exhausted = self.budget.exhausted_error();
        ReservationError::Share(exhausted.budget, exhausted)
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

/// Waits until the share of the current caller and then the budget have `bytes` for one reservation
/// of an operation. The timeout of the request ends the wait for the share.
async fn acquire(
    budget: &Budget,
    shares: &Shares,
    bytes: u64,
) -> Result<(Share, CallerShare), BudgetExhausted> {
    let mut share = shares.open();
    share.acquire(bytes).await;
    let held = budget.acquire(bytes, Priority::Interactive, request::deadline()).await?;
    Ok((held, share))
}

/// Limits the memory of images that are fetched for callers. It is separate from [`BodyMemory`],
/// because a body is still held while its images are fetched.
pub(crate) struct FetchMemory {
    budget: Budget,
    shares: Shares,
    /// Maximum size of an image in bytes.
    image_limit: u64,
}

impl FetchMemory {
    pub(crate) fn new(limit: u64, image_limit: u64) -> Self {
        let budget = Budget::new("fetched_images", limit);
        Self { budget, shares: Shares::three_quarters_of(limit, KIB), image_limit }
    }

    /// Waits for memory for `images` images of a request. Call it before the first fetch.
    ///
    /// The sizes are not known yet, so each image gets memory for the maximum size. All memory is
    /// reserved in one step, because a holder that waits for more could block others. The caller's
    /// share is smaller than the budget, so other callers can still fetch images.
    ///
    /// # Errors
    /// Fails with 429 if no memory becomes available until shortly before the request's deadline.
    pub(crate) async fn acquire(&self, images: u64) -> Result<FetchReservation> {
        let image_limit = self.image_limit;
        let (held, share) = acquire(&self.budget, &self.shares, images * image_limit).await?;
        Ok(FetchReservation { held, share: Arc::new(share), image_limit })
    }
}

/// Reserves memory for images that are about to be fetched.
pub(crate) struct FetchReservation {
    held: Share,
    /// The caller's share. It is released when the last of the images has arrived.
    share: Arc<CallerShare>,
    image_limit: u64,
}

impl FetchReservation {
    /// Splits off the memory for one image.
    pub(crate) fn split(&mut self) -> Self {
        Self { held: self.held.split(self.image_limit), share: self.share.clone(), ..*self }
    }

    /// Returns `image`, which keeps memory of its own size until its last reference is dropped.
    pub(crate) fn hold(self, image: Bytes) -> Bytes {
        let Self { mut held, share, .. } = self;
        drop(share);
        held.shrink(image.len() as u64);
        Bytes::from_owner(HeldBytes { bytes: image, _memory: held })
    }
}

/// Bytes with their memory, which is released when the last reference is dropped.
struct HeldBytes<M> {
    bytes: Bytes,
    _memory: M,
}

impl<M> AsRef<[u8]> for HeldBytes<M> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Limits the memory of responses until their readers have received them.
pub(crate) struct ResponseMemory {
    budget: Budget,
    shares: Shares,
}

impl ResponseMemory {
    pub(crate) fn new(limit: u64) -> Self {
        let budget = Budget::new("answers", limit);
        Self { budget, shares: Shares::three_quarters_of(limit, KIB) }
    }

    /// Reserves `bytes` or fails immediately. It does not wait, so it may be called while other
    /// memory is held.
    ///
    /// # Errors
    /// Fails with 429 if the budget or the caller's share has too little free memory.
    pub(crate) fn try_acquire(&self, bytes: u64) -> Result<ResponseReservation> {
        let mut share = self.shares.open();
        let held = if share.grow(bytes) { self.budget.try_acquire(bytes) } else { None };
        let held = held.ok_or_else(|| self.exhausted())?;
        Ok(ResponseReservation { held, share })
    }

    /// Reserves `bytes`, and waits for them until the deadline of the current request.
    ///
    /// # Errors
    /// Fails with 429 at the deadline.
    pub(crate) async fn acquire(&self, bytes: u64) -> Result<ResponseReservation> {
        let (held, share) = acquire(&self.budget, &self.shares, bytes).await?;
        Ok(ResponseReservation { held, share })
    }

    pub(crate) fn exhausted(&self) -> ApiError {
        self.budget.exhausted_error().into()
    }
}

/// The memory for one response.
pub(crate) struct ResponseReservation {
    held: Share,
    share: CallerShare,
}

impl ResponseReservation {
    /// Reduces the reservation to `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        self.held.shrink(bytes);
        self.share.shrink(bytes);
    }

    /// Returns `piece`, which keeps the reservation until it has been sent. The connection keeps
    /// pieces after it has dropped the body.
    pub(crate) fn hold_piece(self: Arc<Self>, piece: Bytes) -> Bytes {
        Bytes::from_owner(HeldBytes { bytes: piece, _memory: self })
    }

    /// Returns `body`, whose pieces keep the reservation until they have been sent.
    pub(crate) fn hold(self: Arc<Self>, body: Body) -> Body {
        Body::new(HeldBody { body, memory: self })
    }
}

struct HeldBody {
    body: Body,
    memory: Arc<ResponseReservation>,
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let hold = |piece| self.memory.clone().hold_piece(piece);
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(hold))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
