//! The bounded queue in front of a model. It has two priority classes and serves requesters in
//! turn. A batch contains inputs of one shape. Abandoned requests occupy no room. This module does
//! not manage threads or devices.
use super::request::Priority;
use crate::fair_queue::{FairQueue, Requester};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// Maximum number of consecutive batches that start with interactive work while background work
/// waits. The next batch then starts with background work.
const INTERACTIVE_STREAK: u32 = 8;

/// An entry that can wait in a queue.
pub(super) trait Waiting {
    /// Returns the input's shape; only entries of one shape share a batch.
    fn shape(&self) -> [usize; 3];
    /// Returns whether the caller abandoned the request or its deadline has passed.
    fn left(&self) -> bool;
    /// Returns the time at which the entry was queued.
    fn since(&self) -> Instant;
    /// Returns the requester of the entry.
    fn requester(&self) -> Requester;
}

/// Why the queue did not accept an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The queue is full. Contains the number of waiting entries.
    Full(usize),
    /// The engine is stopping.
    Closed,
}

/// Device-ready signal: whether a device can run a batch immediately. It changes under the queue's
/// lock (see [`Queue::change`]), so no waiting thread misses a change.
#[derive(Debug)]
pub(super) struct DeviceReady {
    /// Number of batches that the device requested and has not received yet. It is a count and not
    /// a flag because the two threads may report in either order.
    asked: AtomicI64,
    gone: AtomicBool,
}

impl DeviceReady {
    /// Creates a signal; `free` means that the device can run a batch immediately.
    pub(super) fn new(free: bool) -> Self {
        Self { asked: AtomicI64::new(free.into()), gone: AtomicBool::new(false) }
    }
    fn is_free(&self) -> bool {
        self.asked.load(Ordering::Acquire) > 0
    }
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
    /// Records that the device requests a batch.
    pub(super) fn ask(&self) {
        self.asked.fetch_add(1, Ordering::AcqRel);
    }
    /// Records that the device received a batch.
    pub(super) fn give(&self) {
        self.asked.fetch_sub(1, Ordering::AcqRel);
    }
    /// Records that the device will not request any more batches.
    pub(super) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }
}

/// A reservation of room for one entry, released on drop.
pub(super) struct Place {
    _room: OwnedSemaphorePermit,
    _crawl_room: Option<OwnedSemaphorePermit>,
}

/// An entry and its reservation. An entry that was put back has no reservation.
struct Placed<E> {
    entry: E,
    _place: Option<Place>,
}

pub(super) struct Queue<E> {
    state: Mutex<State<E>>,
    /// Room for entries of both classes, granted in the order of arrival.
    room: Arc<Semaphore>,
    /// Room for background entries.
    crawl_room: Arc<Semaphore>,
    /// Wakes one idle worker.
    arrived: Condvar,
    /// Wakes workers whose batch has room, and workers whose device is busy.
    more: Condvar,
}

struct State<E> {
    interactive: FairQueue<Placed<E>>,
    background: FairQueue<Placed<E>>,
    streak: u32,
    idle: usize,
    closed: bool,
}

impl<E: Waiting> State<E> {
    fn waiting(&self) -> usize {
        self.interactive.len() + self.background.len()
    }

    /// Drops abandoned entries and entries whose deadline has passed.
    fn forget_left(&mut self) {
        self.interactive.retain(|placed| !placed.entry.left());
        self.background.retain(|placed| !placed.entry.left());
    }
}

impl<E: Waiting> Queue<E> {
    /// Creates a queue for `capacity` entries (at least one). Background work may occupy at most
    /// three quarters of it, so a crawl never blocks interactive callers.
    pub(super) fn new(capacity: usize) -> Self {
        let state = State {
            interactive: FairQueue::default(),
            background: FairQueue::default(),
            streak: 0,
            idle: 0,
            closed: false,
        };
        let capacity = capacity.max(1);
        Self {
            state: Mutex::new(state),
            room: Arc::new(Semaphore::new(capacity)),
            crawl_room: Arc::new(Semaphore::new((capacity - capacity / 4).max(1))),
            arrived: Condvar::new(),
            more: Condvar::new(),
        }
    }

    /// Reserves room for one entry without waiting.
    pub(super) fn place_now(&self, priority: Priority) -> Result<Place, Refused> {
        let place = || {
            let crawl_room = match priority {
                Priority::Interactive => None,
                Priority::Background => Some(self.crawl_room.clone().try_acquire_owned()?),
            };
            Ok(Place { _room: self.room.clone().try_acquire_owned()?, _crawl_room: crawl_room })
        };
        let refuse = |error| match error {
            TryAcquireError::Closed => Refused::Closed,
            TryAcquireError::NoPermits => Refused::Full(self.waiting()),
        };
        place().or_else(|_| {
            self.state.lock().forget_left();
            place().map_err(refuse)
        })
    }

    /// Reserves room for one entry and waits until there is room. Waiters are served in the order
    /// of arrival.
    pub(super) async fn place(&self, priority: Priority) -> Result<Place, Refused> {
        if let Ok(place) = self.place_now(priority) {
            return Ok(place);
        }
        let crawl_room = match priority {
            Priority::Interactive => None,
            Priority::Background => {
                Some(self.crawl_room.clone().acquire_owned().await.map_err(|_| Refused::Closed)?)
            }
        };
        let room = self.room.clone().acquire_owned().await.map_err(|_| Refused::Closed)?;
        Ok(Place { _room: room, _crawl_room: crawl_room })
    }

    /// Adds an entry and returns the number of waiting entries.
    pub(super) fn push(&self, entry: E, priority: Priority, place: Place) -> Result<usize, Refused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        let (requester, placed) = (entry.requester(), Placed { entry, _place: Some(place) });
        match priority {
            Priority::Interactive => state.interactive.push(requester, placed),
            Priority::Background => state.background.push(requester, placed),
        }
        let waiting = state.waiting();
        if state.idle > 0 {
            self.arrived.notify_one();
        } else {
            self.more.notify_all();
        }
        Ok(waiting)
    }

    /// Waits for work and takes up to `most` entries of one shape. It takes the entries that are
    /// waiting, and those that arrive before the first one has waited for `delay`. Returns `None`
    /// when the queue is closed and empty.
    pub(super) fn take(&self, most: usize, delay: Duration) -> Option<Vec<E>> {
        let device_ready = DeviceReady::new(true);
        let mut batch = self.first(most, &device_ready)?;
        let (shape, until) = (batch[0].shape(), batch[0].since() + delay);
        while batch.len() < most {
            let more = self.more(shape, most - batch.len(), until, &device_ready);
            if more.is_empty() {
                break;
            }
            batch.extend(more);
        }
        Some(batch)
    }

    /// Waits for the next entry and takes up to `most` entries of its shape. Returns `None` when
    /// the queue is closed and empty, or the device requests no more batches. While the device is
    /// busy, entries are left to idle workers, if there are any.
    pub(super) fn first(&self, most: usize, device_ready: &DeviceReady) -> Option<Vec<E>> {
        let mut state = self.state.lock();
        loop {
            let free = device_ready.is_free();
            if device_ready.is_gone() {
                return None;
            }
            if (free || state.idle == 0 || state.closed)
                && let Some(first) = first(&mut state)
            {
                let shape = first.shape();
                let mut batch = vec![first];
                gather(&mut state, shape, most, &mut batch);
                self.pass_on(&state);
                return Some(batch);
            }
            if state.closed {
                return None;
            }
            if free {
                state.idle += 1;
                self.arrived.wait(&mut state);
                state.idle -= 1;
            } else {
                self.more.wait(&mut state);
            }
        }
    }

    /// Waits for up to `room` more entries of `shape` for a batch. Returns no entries if the batch
    /// should run as it is. This is the case if the device is ready at or after `until`, the device
    /// requests no more batches, or the queue is closed.
    pub(super) fn more(
        &self,
        shape: [usize; 3],
        room: usize,
        until: Instant,
        device_ready: &DeviceReady,
    ) -> Vec<E> {
        let mut state = self.state.lock();
        let mut found = Vec::new();
        loop {
            let free = device_ready.is_free();
            if free || state.idle == 0 || state.closed {
                state.forget_left();
                gather(&mut state, shape, room, &mut found);
            }
            let complete = state.closed || device_ready.is_gone() || free && Instant::now() >= until;
            if !found.is_empty() || complete {
                self.pass_on(&state);
                return found;
            }
            if free {
                self.more.wait_until(&mut state, until);
            } else {
                self.more.wait(&mut state);
            }
        }
    }

    /// Wakes a thread for the remaining entries, because it may have missed their arrival.
    fn pass_on(&self, state: &State<E>) {
        if state.waiting() > 0 {
            if state.idle > 0 {
                self.arrived.notify_one();
            } else {
                self.more.notify_all();
            }
        }
    }

    /// Puts back entries that were taken and could not run; they are served first. A closed queue
    /// drops them.
    pub(super) fn put_back(&self, entries: Vec<E>) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        for entry in entries.into_iter().rev() {
            state.interactive.put_back(Placed { entry, _place: None });
        }
        self.pass_on(&state);
    }

    /// Changes the signal of a device, and wakes the threads that wait for a change.
    pub(super) fn change(&self, device_ready: &DeviceReady, change: impl FnOnce(&DeviceReady)) {
        let _state = self.state.lock();
        change(device_ready);
        self.more.notify_all();
    }

    /// Returns the number of waiting entries.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting()
    }

    /// Rejects new entries. Workers still process the waiting entries.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.close_rooms();
        self.arrived.notify_all();
        self.more.notify_all();
    }

    /// Rejects new entries and drops the waiting ones.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.interactive = FairQueue::default();
        state.background = FairQueue::default();
        self.close_rooms();
    }

    /// Closes the semaphores, so that callers that wait for room receive an error.
    fn close_rooms(&self) {
        self.room.close();
        self.crawl_room.close();
    }
}

/// Takes the next entry and drops abandoned ones.
fn first<E: Waiting>(state: &mut State<E>) -> Option<E> {
    state.forget_left();
    let crawl_turn = state.streak >= INTERACTIVE_STREAK && !state.background.is_empty();
    if !crawl_turn && let Some(placed) = state.interactive.pop() {
        state.streak = if state.background.is_empty() { 0 } else { state.streak + 1 };
        return Some(placed.entry);
    }
    state.streak = 0;
    state.background.pop().map(|placed| placed.entry)
}

/// Moves entries of `shape` into `batch` until it contains `most` entries.
fn gather<E: Waiting>(state: &mut State<E>, shape: [usize; 3], most: usize, batch: &mut Vec<E>) {
    for priority in [&mut state.interactive, &mut state.background] {
        while batch.len() < most
            && let Some(placed) = priority.pop_if(|placed| placed.entry.shape() == shape)
        {
            batch.push(placed.entry);
        }
    }
}
