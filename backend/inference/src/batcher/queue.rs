//! The bounded queue in front of a model. It has two priority classes and serves requesters in
//! turn. A batch contains inputs of one shape. Abandoned requests occupy no room. This module does
//! not manage threads or devices.
use crate::batcher::Priority;
use crate::fair_queue::{FairQueue, Requester};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// Maximum number of consecutive batches that start with interactive work while background work
/// waits. The next batch then starts with background work.
const MAX_INTERACTIVE_STREAK: u32 = 8;

pub(super) trait QueueItem {
    /// Returns the input's shape; only entries of one shape share a batch.
    fn shape(&self) -> [usize; 3];
    /// Returns whether the caller abandoned the request or its deadline has passed.
    fn is_abandoned(&self) -> bool;
    fn queued_at(&self) -> Instant;
    fn requester(&self) -> Requester;
}

/// Why the queue did not accept an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueError {
    /// The queue is full. Contains the number of waiting entries.
    Full(usize),
    /// The engine is stopping.
    Closed,
}

/// Device-ready signal: whether a device can run a batch immediately. It changes under the queue's
/// lock (see [`Queue::update_signal`]), so no waiting thread misses a change.
#[derive(Debug)]
pub(super) struct DeviceReady {
    /// Number of batches that the device requested and has not received yet. It is a count and not
    /// a flag because the two threads may report in either order.
    requested_batches: AtomicI64,
    is_stopped: AtomicBool,
}

impl DeviceReady {
    /// Creates a signal; `is_free` means that the device can run a batch immediately.
    pub(super) fn new(is_free: bool) -> Self {
        Self { requested_batches: AtomicI64::new(is_free.into()), is_stopped: AtomicBool::new(false) }
    }
    fn is_free(&self) -> bool {
        self.requested_batches.load(Ordering::Acquire) > 0
    }
    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }
    pub(super) fn request_batch(&self) {
        self.requested_batches.fetch_add(1, Ordering::AcqRel);
    }
    pub(super) fn receive_batch(&self) {
        self.requested_batches.fetch_sub(1, Ordering::AcqRel);
    }
    /// Records that the device will not request any more batches.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }
}

/// A reservation of room for one entry, released on drop.
pub(super) struct QueuePermit {
    _room: OwnedSemaphorePermit,
    _background_room: Option<OwnedSemaphorePermit>,
}

/// An entry and its reservation. An entry that was put back has no reservation.
struct QueuedEntry<E> {
    entry: E,
    _permit: Option<QueuePermit>,
}

pub(super) struct Queue<E> {
    state: Mutex<State<E>>,
    /// Room for entries of both priority classes, granted in the order of arrival.
    room: Arc<Semaphore>,
    /// Room for background entries.
    background_room: Arc<Semaphore>,
    /// Wakes one idle worker.
    work_arrived: Condvar,
    /// Wakes workers whose batch has room, and workers whose device is busy.
    state_changed: Condvar,
}

struct State<E> {
    interactive: FairQueue<QueuedEntry<E>>,
    background: FairQueue<QueuedEntry<E>>,
    /// Number of consecutive batches that started with interactive work.
    interactive_streak: u32,
    idle_workers: usize,
    is_closed: bool,
}

impl<E: QueueItem> State<E> {
    fn queue_depth(&self) -> usize {
        self.interactive.len() + self.background.len()
    }

    fn remove_abandoned(&mut self) {
        self.interactive.retain(|queued| !queued.entry.is_abandoned());
        self.background.retain(|queued| !queued.entry.is_abandoned());
    }
}

impl<E: QueueItem> Queue<E> {
    /// Creates a queue for `capacity` entries (at least one). Background work may occupy at most
    /// three quarters of it, so a crawl never blocks interactive callers.
    pub(super) fn new(capacity: usize) -> Self {
        let state = State {
            interactive: FairQueue::default(),
            background: FairQueue::default(),
            interactive_streak: 0,
            idle_workers: 0,
            is_closed: false,
        };
        let capacity = capacity.max(1);
        Self {
            state: Mutex::new(state),
            room: Arc::new(Semaphore::new(capacity)),
            background_room: Arc::new(Semaphore::new((capacity - capacity / 4).max(1))),
            work_arrived: Condvar::new(),
            state_changed: Condvar::new(),
        }
    }

    pub(super) fn try_reserve(&self, priority: Priority) -> Result<QueuePermit, QueueError> {
        let acquire = || {
            let background_room = match priority {
                Priority::Interactive => None,
                Priority::Background => Some(self.background_room.clone().try_acquire_owned()?),
            };
            Ok(QueuePermit {
                _room: self.room.clone().try_acquire_owned()?,
                _background_room: background_room,
            })
        };
        let to_queue_error = |error| match error {
            TryAcquireError::Closed => QueueError::Closed,
            TryAcquireError::NoPermits => QueueError::Full(self.queue_depth()),
        };
        acquire().or_else(|_| {
            self.state.lock().remove_abandoned();
            acquire().map_err(to_queue_error)
        })
    }

    /// Waits for room for one entry and reserves it. Callers are served in the order of arrival.
    pub(super) async fn reserve(&self, priority: Priority) -> Result<QueuePermit, QueueError> {
        if let Ok(permit) = self.try_reserve(priority) {
            return Ok(permit);
        }
        let background_room = match priority {
            Priority::Interactive => None,
            Priority::Background => {
                Some(self.background_room.clone().acquire_owned().await.map_err(|_| QueueError::Closed)?)
            }
        };
        let room = self.room.clone().acquire_owned().await.map_err(|_| QueueError::Closed)?;
        Ok(QueuePermit { _room: room, _background_room: background_room })
    }

    /// Adds an entry and returns the number of waiting entries.
    pub(super) fn push(
        &self,
        entry: E,
        priority: Priority,
        permit: QueuePermit,
    ) -> Result<usize, QueueError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(QueueError::Closed);
        }
        let (requester, queued) = (entry.requester(), QueuedEntry { entry, _permit: Some(permit) });
        match priority {
            Priority::Interactive => state.interactive.push(requester, queued),
            Priority::Background => state.background.push(requester, queued),
        }
        self.wake_next(&state);
        Ok(state.queue_depth())
    }

    /// Waits for work and takes up to `max_entries` entries of one shape. It takes the entries that
    /// are waiting, and those that arrive before the first one has waited for `delay`. Returns
    /// `None` when the queue is closed and empty.
    pub(super) fn take(&self, max_entries: usize, delay: Duration) -> Option<Vec<E>> {
        let device_ready = DeviceReady::new(true);
        let mut batch = self.wait_for_first(max_entries, &device_ready)?;
        let (shape, until) = (batch[0].shape(), batch[0].queued_at() + delay);
        while batch.len() < max_entries {
            let added = self.gather_more(shape, max_entries - batch.len(), until, &device_ready);
            if added.is_empty() {
                break;
            }
            batch.extend(added);
        }
        Some(batch)
    }

    /// Waits for the next entry and takes up to `max_entries` entries of its shape. Returns `None`
    /// when the queue is closed and empty, or the device requests no more batches. While the device
    /// is busy, entries are left to idle workers, if there are any.
    pub(super) fn wait_for_first(&self, max_entries: usize, device_ready: &DeviceReady) -> Option<Vec<E>> {
        let mut state = self.state.lock();
        loop {
            let is_free = device_ready.is_free();
            if device_ready.is_stopped() {
                return None;
            }
            if (is_free || state.idle_workers == 0 || state.is_closed)
                && let Some(first) = pop_next(&mut state)
            {
                let shape = first.shape();
                let mut batch = vec![first];
                gather(&mut state, shape, max_entries, &mut batch);
                self.wake_next(&state);
                return Some(batch);
            }
            if state.is_closed {
                return None;
            }
            if is_free {
                state.idle_workers += 1;
                self.work_arrived.wait(&mut state);
                state.idle_workers -= 1;
            } else {
                self.state_changed.wait(&mut state);
            }
        }
    }

    /// Waits for up to `room` more entries of `shape` for a batch. Returns no entries if the batch
    /// should run as it is. This is the case if the device is ready at or after `until`, the device
    /// requests no more batches, or the queue is closed.
    pub(super) fn gather_more(
        &self,
        shape: [usize; 3],
        room: usize,
        until: Instant,
        device_ready: &DeviceReady,
    ) -> Vec<E> {
        let mut state = self.state.lock();
        let mut batch = Vec::new();
        loop {
            let is_free = device_ready.is_free();
            if is_free || state.idle_workers == 0 || state.is_closed {
                state.remove_abandoned();
                gather(&mut state, shape, room, &mut batch);
            }
            let is_complete =
                state.is_closed || device_ready.is_stopped() || is_free && Instant::now() >= until;
            if !batch.is_empty() || is_complete {
                self.wake_next(&state);
                return batch;
            }
            if is_free {
                self.state_changed.wait_until(&mut state, until);
            } else {
                self.state_changed.wait(&mut state);
            }
        }
    }

    /// Wakes a thread if the queue is not empty. The thread that was notified of the arrival of an
    /// entry may have taken other entries.
    fn wake_next(&self, state: &State<E>) {
        if state.queue_depth() == 0 {
            return;
        }
        if state.idle_workers > 0 {
            self.work_arrived.notify_one();
        } else {
            self.state_changed.notify_all();
        }
    }

    /// Puts back entries that could not run; they are served first. A closed queue drops them.
    pub(super) fn put_back(&self, entries: Vec<E>) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        for entry in entries.into_iter().rev() {
            state.interactive.put_back(QueuedEntry { entry, _permit: None });
        }
        self.wake_next(&state);
    }

    /// Updates the signal of a device, and wakes the threads that wait for a change.
    pub(super) fn update_signal(&self, device_ready: &DeviceReady, update: impl FnOnce(&DeviceReady)) {
        let _state = self.state.lock();
        update(device_ready);
        self.state_changed.notify_all();
    }

    pub(super) fn queue_depth(&self) -> usize {
        self.state.lock().queue_depth()
    }

    /// Rejects new entries. Workers still process the waiting entries.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.close_semaphores();
        self.work_arrived.notify_all();
        self.state_changed.notify_all();
    }

    /// Rejects new entries and drops the waiting ones.
    pub(super) fn close_and_clear(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.interactive = FairQueue::default();
        state.background = FairQueue::default();
        self.close_semaphores();
    }

    /// Closes the semaphores, so that callers that wait for room receive an error.
    fn close_semaphores(&self) {
        self.room.close();
        self.background_room.close();
    }
}

/// Takes the next entry and removes abandoned ones.
fn pop_next<E: QueueItem>(state: &mut State<E>) -> Option<E> {
    state.remove_abandoned();
    let is_background_turn =
        state.interactive_streak >= MAX_INTERACTIVE_STREAK && !state.background.is_empty();
    if !is_background_turn && let Some(queued) = state.interactive.pop() {
        state.interactive_streak = if state.background.is_empty() { 0 } else { state.interactive_streak + 1 };
        return Some(queued.entry);
    }
    state.interactive_streak = 0;
    state.background.pop().map(|queued| queued.entry)
}

/// Moves entries of `shape` into `batch` until it contains `max_entries` entries.
fn gather<E: QueueItem>(state: &mut State<E>, shape: [usize; 3], max_entries: usize, batch: &mut Vec<E>) {
    for priority in [&mut state.interactive, &mut state.background] {
        while batch.len() < max_entries
            && let Some(queued) = priority.pop_if(|queued| queued.entry.shape() == shape)
        {
            batch.push(queued.entry);
        }
    }
}
