//! Admission control: limits the resources that all callers together, and each caller alone, use at
//! a time.
//!
//! - A request waits for its caller's share of the database connections ([`Shares`]).
//! - A request body waits for memory while it arrives ([`BodyMemory`]).
//! - A fetch of an image waits for memory for an image of the maximum size ([`FetchMemory`]).
//! - A response to a change waits for memory; any other response fails ([`ResponseMemory`]).
//! - An unknown key waits for its look-up in a short queue ([`KeyLookups`]).
//! - An analysis ([`Analyses`]), an upload ([`Uploads`]) and an event stream ([`EventStreams`])
//!   never wait: they are admitted, or fail with 429.
//!
//! The limit on connections is in `serve`, and the limit on the rate of a key in `auth::rate`.
mod callers;
mod memory;

pub(crate) use callers::{KeyedLimit, KeyedPermit, Shares};
pub(crate) use memory::{
    BodyMemory, BodyReservation, FetchMemory, FetchReservation, ReservationError, ResponseMemory,
    ResponseReservation,
};

use crate::request::{CallerId, Peer};
use crate::telemetry::GaugeGuard;
use crate::{ApiError, Code, Result};
use callers::CallerShare;
use metrics::{Gauge, describe_gauge, gauge};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of uploads at the same time. Each one takes a file of the maximum size on disk.
const MAX_UPLOADS: usize = 8;
const MAX_UPLOADS_PER_CALLER: usize = 4;
/// Time after which a caller with too many uploads or event streams may try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Maximum number of look-ups at a time. Each reads one row by a unique index, on one connection of
/// the pool.
const MAX_LOOKUPS: usize = 2;
/// Maximum number of requests in the queue, including those whose look-up runs.
const MAX_QUEUED_LOOKUPS: usize = 256;
const MAX_QUEUED_LOOKUPS_PER_ADDRESS: usize = MAX_QUEUED_LOOKUPS / 4 * 3;
const MAX_LOOKUP_WAIT: Duration = Duration::from_secs(2);

/// Limits the running and waiting analyses.
pub(crate) struct Analyses {
    max: usize,
    permits: Arc<Semaphore>,
    shares: Shares,
}

impl Analyses {
    pub(crate) fn new(max: usize) -> Self {
        let permits = max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            max: max.max(1),
            permits: Arc::new(Semaphore::new(permits)),
            shares: Shares::three_quarters_of(permits as u64, 1),
        }
    }

    /// Admits `images` analyses of the current caller. Hold the permits until they have ended.
    ///
    /// One caller gets at most three quarters of the admitted analyses. A batch that is larger than
    /// the limit is admitted only while no other analysis is admitted.
    ///
    /// # Errors
    /// Fails with 429 if the limit of all analyses or the caller's share is reached.
    pub(crate) fn admit(&self, images: usize) -> Result<(OwnedSemaphorePermit, CallerShare)> {
        let overloaded = |reason: &str| ApiError::overloaded(reason, Duration::from_secs(1));
        let count = images.clamp(1, self.max);
        let mut share = self.shares.open();
        if !share.grow(count as u64) {
            return Err(overloaded("the caller has too many analyses in progress"));
        }
        let permits = self.permits.clone().try_acquire_many_owned(u32::try_from(count).unwrap_or(u32::MAX));
        let permits = permits.map_err(|_| overloaded("too many analyses are in progress"))?;
        Ok((permits, share))
    }
}

/// Limits the uploads of videos.
pub(crate) struct Uploads {
    callers: KeyedLimit<CallerId>,
    permits: Arc<Semaphore>,
}

impl Default for Uploads {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(MAX_UPLOADS));
        Self { callers: KeyedLimit::new(MAX_UPLOADS_PER_CALLER), permits }
    }
}

impl Uploads {
    /// Admits an upload of the current caller. Hold the permits until it has ended.
    ///
    /// # Errors
    /// Fails with 429 if the caller or the service has too many.
    pub(crate) fn admit(&self) -> Result<(KeyedPermit<CallerId>, OwnedSemaphorePermit)> {
        let overloaded = |reason: &str| ApiError::overloaded(reason, RETRY_AFTER);
        let caller = self.callers.try_acquire(CallerId::current());
        let caller = caller.ok_or_else(|| overloaded("the caller has too many uploads in progress"))?;
        let permits = self.permits.clone().try_acquire_owned();
        let permits = permits.map_err(|_| overloaded("too many uploads are in progress"))?;
        Ok((caller, permits))
    }
}

/// Limits the event streams of each caller.
pub(crate) struct EventStreams {
    max: usize,
    callers: KeyedLimit<CallerId>,
    open: Gauge,
}

/// An open stream, which counts towards the limit of its caller.
pub(crate) struct EventStream {
    _open: GaugeGuard,
    _permit: KeyedPermit<CallerId>,
}

impl EventStreams {
    pub(crate) fn new(max: usize) -> Self {
        describe_gauge!("facecrawl_event_streams", "Number of open event streams.");
        let open = gauge!("facecrawl_event_streams");
        open.set(0.0);
        Self { max, callers: KeyedLimit::new(max), open }
    }

    /// Counts a stream of the current caller.
    ///
    /// # Errors
    /// Fails with 429 if the caller has the maximum number of streams.
    pub(crate) fn admit(&self) -> Result<EventStream> {
        let permit = self.callers.try_acquire(CallerId::current()).ok_or_else(|| {
            let max = self.max;
            let message = format!(
                "the caller already has {max} open event streams, the maximum per caller (MAX_EVENT_STREAMS)"
            );
            ApiError::overloaded(message, RETRY_AFTER)
        })?;
        Ok(EventStream { _open: GaugeGuard::new(self.open.clone()), _permit: permit })
    }
}

/// Limits the look-ups of keys that this process has not seen. Only a few look-ups run at a time,
/// regardless of the number of requests.
///
/// The service cannot know before the look-up whether such a key exists, so it cannot reject
/// requests by key. The requests wait in a short queue instead, and one address can occupy only a
/// part of it.
pub(crate) struct KeyLookups {
    queued: Semaphore,
    per_address: KeyedLimit<Peer>,
    running: Semaphore,
}

impl Default for KeyLookups {
    fn default() -> Self {
        Self {
            queued: Semaphore::new(MAX_QUEUED_LOOKUPS),
            per_address: KeyedLimit::new(MAX_QUEUED_LOOKUPS_PER_ADDRESS),
            running: Semaphore::new(MAX_LOOKUPS),
        }
    }
}

impl KeyLookups {
    /// Waits for permission to run a look-up. Hold the permits until the look-up has ended.
    ///
    /// # Errors
    /// Fails with 429 if the queue is full, if the address reached its maximum, or if the wait
    /// takes too long.
    pub(crate) async fn admit(&self, peer: Peer) -> Result<impl Sized> {
        let full = || {
            let message = "too many look-ups of unknown keys are in progress; try again later";
            ApiError::new(Code::RateLimited, message).retry_after(MAX_LOOKUP_WAIT)
        };
        let per_address = self.per_address.try_acquire(peer).ok_or_else(full)?;
        let queued = self.queued.try_acquire().map_err(|_| full())?;
        let running = tokio::time::timeout(MAX_LOOKUP_WAIT, self.running.acquire()).await;
        let running = running.ok().and_then(Result::ok).ok_or_else(full)?;
        Ok((running, queued, per_address))
    }
}
