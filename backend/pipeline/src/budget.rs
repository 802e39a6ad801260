//! A bound on memory that many hold a part of at once: decoded pictures, bodies of requests.
//!
//! Whoever is about to make something large takes a share of the budget first, and the share goes where the bytes go: it is dropped with them. Shares are given in
//! the order in which they were asked for, so that small ones do not keep a large one waiting for ever. Nobody may wait for a share of a budget while he holds
//! another of the same budget: those who wait would wait for each other.

use inference::Lane;
use metrics::{Gauge, Unit, describe_gauge, gauge};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Bytes are counted in KiB, so that 32 bits are enough for every share.
const UNIT: u64 = 1 << 10;
/// Before the end of a caller's time the wait is given up while the refusal can still be sent. What began so late would not end in time.
const MARGIN: Duration = Duration::from_millis(250);
/// When a refused caller comes back.
const PAUSE: Duration = Duration::from_secs(1);

/// There was no room before the caller's time was over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too much memory is held by {what}; there was no room in time")]
pub struct Exhausted {
    /// Whose memory.
    pub what: &'static str,
    /// When to come back.
    pub retry_after: Duration,
}

/// Bytes that may be held at once; cheap to clone.
#[derive(Clone)]
pub struct Budget {
    what: &'static str,
    units: u32,
    background_units: u32,
    /// Room for everyone.
    all: Arc<Semaphore>,
    /// Room for background work.
    background: Arc<Semaphore>,
    held: Gauge,
    waiting: Gauge,
}

/// A part of a budget, given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    all: OwnedSemaphorePermit,
    background: Option<OwnedSemaphorePermit>,
    held: Raised,
}

impl Budget {
    /// `bytes` in all, of which background work may hold three quarters, so that interactive callers always come through. `what` names it in errors and in
    /// the gauges `facecrawl_held_bytes`, `facecrawl_held_limit_bytes` and `facecrawl_held_waiting`.
    pub fn new(what: &'static str, bytes: u64) -> Self {
        describe_gauge!("facecrawl_held_bytes", Unit::Bytes, "Memory taken from a budget, by what holds it");
        describe_gauge!("facecrawl_held_limit_bytes", Unit::Bytes, "The budget, by what it is for");
        describe_gauge!(
            "facecrawl_held_waiting",
            Unit::Count,
            "Waiting for a share of a budget, by what for"
        );
        gauge!("facecrawl_held_limit_bytes", "what" => what).set(bytes as f64);
        let units = units(bytes).max(1);
        let background_units = (units - units / 4).max(1);
        Self {
            what,
            units,
            background_units,
            all: semaphore(units),
            background: semaphore(background_units),
            held: gauge!("facecrawl_held_bytes", "what" => what),
            waiting: gauge!("facecrawl_held_waiting", "what" => what),
        }
    }

    /// The same, where background work may hold at least `bytes`: the largest thing that it works on. For use before any share is taken.
    #[must_use]
    pub fn with_background_room(mut self, bytes: u64) -> Self {
        self.background_units = self.background_units.max(units(bytes).min(self.units));
        self.background = semaphore(self.background_units);
        self
    }

    /// Bytes that there are in all.
    pub fn limit(&self) -> u64 {
        u64::from(self.units) * UNIT
    }

    /// Returns a share of `bytes` for an interactive caller if there is room at once.
    pub fn try_take(&self, bytes: u64) -> Option<Share> {
        let units = units(bytes).min(self.units);
        let all = self.all.clone().try_acquire_many_owned(units).ok()?;
        let held = Raised::by(&self.held, in_bytes(all.num_permits()));
        Some(Share { all, background: None, held })
    }

    /// The refusal of a caller for whom there is no room, and who cannot wait for it.
    pub fn exhausted(&self) -> Exhausted {
        Exhausted { what: self.what, retry_after: PAUSE }
    }

    /// A share of `bytes`, as soon as there is room and everyone who asked before has his. What is larger than all there is counts as all there is, and so is
    /// held alone. A caller who goes away while he waits leaves nothing behind.
    ///
    /// # Errors
    /// [`Exhausted`] shortly before `deadline`; without one the wait has no end.
    pub async fn take(&self, bytes: u64, lane: Lane, deadline: Option<Instant>) -> Result<Share, Exhausted> {
        let permits = async {
            let (units, background) = match lane {
                Lane::Interactive => (units(bytes).min(self.units), None),
                Lane::Background => {
                    let units = units(bytes).min(self.background_units);
                    (units, Some(self.background.clone().acquire_many_owned(units).await?))
                }
            };
            Ok::<_, AcquireError>((self.all.clone().acquire_many_owned(units).await?, background))
        };
        let waiting = Raised::by(&self.waiting, 1.0);
        let permits = match deadline {
            None => permits.await,
            Some(deadline) => {
                let until = deadline.checked_sub(MARGIN).unwrap_or(deadline);
                let exhausted = |_| self.exhausted();
                tokio::time::timeout_at(until.into(), permits).await.map_err(exhausted)?
            }
        };
        drop(waiting);
        let (all, background) = permits.expect("the semaphores are never closed");
        let held = Raised::by(&self.held, in_bytes(all.num_permits()));
        Ok(Share { all, background, held })
    }
}

impl Share {
    /// Gives back what is more than `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let surplus = self.all.num_permits().saturating_sub(units(bytes) as usize);
        drop(self.part(surplus));
    }

    /// Takes a share of its own of `bytes`, or of all there is where that is less, out of this one.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        self.part(self.all.num_permits().min(units(bytes) as usize))
    }

    /// Adds another share of the same budget, taken for the same kind of caller.
    pub fn join(&mut self, other: Self) {
        let Self { all, background, held } = other;
        self.all.merge(all);
        match (&mut self.background, background) {
            (Some(mine), Some(theirs)) => mine.merge(theirs),
            (mine @ None, theirs) => *mine = theirs,
            (Some(_), None) => {}
        }
        self.held.join(held);
    }

    fn part(&mut self, units: usize) -> Self {
        let take = |permit: &mut OwnedSemaphorePermit| permit.split(units).expect("it holds as many");
        Self {
            all: take(&mut self.all),
            background: self.background.as_mut().map(take),
            held: self.held.part(in_bytes(units)),
        }
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

fn in_bytes(units: usize) -> f64 {
    units as f64 * UNIT as f64
}

fn semaphore(units: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new((units as usize).min(Semaphore::MAX_PERMITS)))
}

/// A gauge that is higher as long as this lives.
struct Raised {
    gauge: Gauge,
    by: f64,
}

impl Raised {
    fn by(gauge: &Gauge, by: f64) -> Self {
        gauge.increment(by);
        Self { gauge: gauge.clone(), by }
    }

    /// Both in one; the gauge stays where it is.
    fn join(&mut self, mut other: Self) {
        self.by += std::mem::take(&mut other.by);
    }

    /// So much of it, apart; the gauge stays where it is.
    fn part(&mut self, by: f64) -> Self {
        self.by -= by;
        Self { gauge: self.gauge.clone(), by }
    }
}

impl std::fmt::Debug for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.by)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.gauge.decrement(self.by);
    }
}
