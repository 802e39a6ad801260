//! The bounded queue in front of a model. It has two priority classes and serves requesters in
//! turn. A batch contains inputs of one shape. Abandoned requests occupy no room. This module does
//! not manage threads or devices.
use super::{Entry, Priority, RequestOptions};
use crate::fair_queue::FairQueue;
use crate::models::Model;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// Maximum number of consecutive batches that start with interactive work while background work
/// waits. The next batch then starts with background work.
const MAX_INTERACTIVE_STREAK: u32 = 8;

/// Why the queue did not accept an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueError {
    /// The queue is full. Contains the number of waiting entries.
    Full(usize),
    /// The engine is stopping.
    Closed,
}

/// Device-ready signal of a device. It changes under the queue's lock (see
/// [`Queue::update_signal`]), so no waiting thread misses a change.
pub(super) type DeviceReady = Mutex<Readiness>;

/// Whether a device can run a batch immediately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Readiness {
    /// Number of batches that the device requested and has not received yet. It is a count and not
    /// a flag because the two threads may report in either order.
    pub(super) requested_batches: i64,
    /// Whether the device will not request any more batches.
    pub(super) is_stopped: bool,
}

/// A reservation of room for one entry, released on drop.
pub(super) type QueuePermit = Vec<OwnedSemaphorePermit>;

/// An entry and its reservation. An entry that was put back has no reservation.
struct QueuedEntry<M: Model> {
    entry: Entry<M>,
    _permit: QueuePermit,
}

pub(super) struct Queue<M: Model> {
    state: Mutex<State<M>>,
    /// Room for background entries, and room for entries of both priority classes. It is granted in
    /// the order of arrival.
    rooms: [Arc<Semaphore>; 2],
    /// Wakes one idle worker.
    work_arrived: Condvar,
    /// Wakes workers whose batch has room, and workers whose device is busy.
    state_changed: Condvar,
}

struct State<M: Model> {
    /// The waiting entries of each [`Priority`].
    waiting: [FairQueue<QueuedEntry<M>>; 2],
    /// Number of consecutive batches that started with interactive work.
    interactive_streak: u32,
    idle_workers: usize,
    is_closed: bool,
}

impl<M: Model> State<M> {
    fn queue_depth(&self) -> usize {
        self.waiting.iter().map(FairQueue::len).sum()
    }

    fn remove_abandoned(&mut self) {
        for class in &mut self.waiting {
            class.retain(|queued| !queued.entry.is_abandoned());
        }
    }

    /// Takes the next entry and removes abandoned ones.
    fn pop_next(&mut self) -> Option<Entry<M>> {
        self.remove_abandoned();
        let [interactive, background] = &mut self.waiting;
        let is_background_turn = self.interactive_streak >= MAX_INTERACTIVE_STREAK && !background.is_empty();
        if !is_background_turn && let Some(queued) = interactive.pop() {
            self.interactive_streak = if background.is_empty() { 0 } else { self.interactive_streak + 1 };
            return Some(queued.entry);
        }
        self.interactive_streak = 0;
        background.pop().map(|queued| queued.entry)
    }

    /// Moves entries of `shape` into `batch` until it contains `max_entries` entries.
    fn gather(&mut self, shape: [usize; 3], max_entries: usize, batch: &mut Vec<Entry<M>>) {
        for class in &mut self.waiting {
            while batch.len() < max_entries
                && let Some(queued) = class.pop_if(|queued| queued.entry.shape == shape)
            {
                batch.push(queued.entry);
            }
        }
    }
}

impl<M: Model> Queue<M> {
    /// Creates a queue for `capacity` entries (at least one). Background work may occupy at most
    /// three quarters of it, so a crawl never blocks interactive callers.
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        let rooms = [(capacity - capacity / 4).max(1), capacity];
        let waiting = [FairQueue::default(), FairQueue::default()];
        Self {
            state: Mutex::new(State { waiting, interactive_streak: 0, idle_workers: 0, is_closed: false }),
            rooms: rooms.map(|room| Arc::new(Semaphore::new(room))),
            work_arrived: Condvar::new(),
            state_changed: Condvar::new(),
        }
    }

    /// Returns the semaphores of which an entry of this priority needs a permit.
    fn rooms(&self, priority: Priority) -> impl Iterator<Item = Arc<Semaphore>> {
        let first = match priority {
            Priority::Interactive => 1,
            Priority::Background => 0,
        };
        self.rooms[first..].iter().cloned()
    }

    pub(super) fn try_reserve(&self, priority: Priority) -> Result<QueuePermit, QueueError> {
        let acquire =
            || self.rooms(priority).map(Semaphore::try_acquire_owned).collect::<Result<QueuePermit, _>>();
        acquire().or_else(|_| {
            self.state.lock().remove_abandoned();
            acquire().map_err(|error| match error {
                TryAcquireError::Closed => QueueError::Closed,
                TryAcquireError::NoPermits => QueueError::Full(self.queue_depth()),
            })
        })
    }

    /// Waits for room for one entry and reserves it. Callers are served in the order of arrival.
    pub(super) async fn reserve(&self, priority: Priority) -> Result<QueuePermit, QueueError> {
        if let Ok(permit) = self.try_reserve(priority) {
            return Ok(permit);
        }
        let mut permit = QueuePermit::new();
        for room in self.rooms(priority) {
            permit.push(room.acquire_owned().await.map_err(|_| QueueError::Closed)?);
        }
        Ok(permit)
    }

    /// Adds an entry and returns the number of waiting entries.
    pub(super) fn push(&self, entry: Entry<M>, permit: QueuePermit) -> Result<usize, QueueError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(QueueError::Closed);
        }
        let RequestOptions { priority, requester, .. } = entry.options;
        state.waiting[priority as usize].push(requester, QueuedEntry { entry, _permit: permit });
        self.wake_next(&state);
        Ok(state.queue_depth())
    }

    /// Waits for work and passes up to `max_entries` entries of one shape to `add`: those that are
    /// waiting, and those that arrive while the device is busy or before the first one has waited
    /// for `delay`. Returns `false` when the queue is closed and empty, or the device requests no
    /// more batches.
    pub(super) fn take(
        &self,
        max_entries: usize,
        delay: Duration,
        device_ready: &DeviceReady,
        mut add: impl FnMut(Vec<Entry<M>>),
    ) -> bool {
        let Some(first) = self.wait_for_first(max_entries, device_ready) else { return false };
        let (shape, until) = (first[0].shape, first[0].queued_at + delay);
        let mut room = max_entries - first.len();
        add(first);
        while room > 0 {
            let added = self.gather_more(shape, room, until, device_ready);
            if added.is_empty() {
                break;
            }
            room -= added.len();
            add(added);
        }
        true
    }

    /// Waits for the next entry and takes up to `max_entries` entries of its shape. Returns `None`
    /// when the queue is closed and empty, or the device requests no more batches. While the device
    /// is busy, entries are left to idle workers, if there are any.
    fn wait_for_first(&self, max_entries: usize, device_ready: &DeviceReady) -> Option<Vec<Entry<M>>> {
        let mut state = self.state.lock();
        loop {
            let Readiness { requested_batches, is_stopped } = *device_ready.lock();
            let is_free = requested_batches > 0;
            if is_stopped {
                return None;
            }
            if (is_free || state.idle_workers == 0 || state.is_closed)
                && let Some(first) = state.pop_next()
            {
                let shape = first.shape;
                let mut batch = vec![first];
                state.gather(shape, max_entries, &mut batch);
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
    fn gather_more(
        &self,
        shape: [usize; 3],
        room: usize,
        until: Instant,
        device_ready: &DeviceReady,
    ) -> Vec<Entry<M>> {
        let mut state = self.state.lock();
        let mut batch = Vec::new();
        loop {
            let Readiness { requested_batches, is_stopped } = *device_ready.lock();
            let is_free = requested_batches > 0;
            if is_free || state.idle_workers == 0 || state.is_closed {
                state.remove_abandoned();
                state.gather(shape, room, &mut batch);
            }
            let is_complete = state.is_closed || is_stopped || is_free && Instant::now() >= until;
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
    fn wake_next(&self, state: &State<M>) {
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
    pub(super) fn put_back(&self, entries: Vec<Entry<M>>) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        for entry in entries.into_iter().rev() {
            let queued = QueuedEntry { entry, _permit: QueuePermit::new() };
            state.waiting[Priority::Interactive as usize].put_back(queued);
        }
        self.wake_next(&state);
    }

    /// Updates the signal of a device, and wakes the threads that wait for a change.
    pub(super) fn update_signal(&self, device_ready: &DeviceReady, update: impl FnOnce(&mut Readiness)) {
        let _state = self.state.lock();
        update(&mut device_ready.lock());
        self.state_changed.notify_all();
    }

    pub(super) fn queue_depth(&self) -> usize {
        self.state.lock().queue_depth()
    }

    /// Rejects new entries. Workers still process the waiting entries.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        // Callers that wait for room receive an error.
        self.rooms.iter().for_each(|room| room.close());
        self.work_arrived.notify_all();
        self.state_changed.notify_all();
    }

    /// Rejects new entries and drops the waiting ones.
    pub(super) fn close_and_clear(&self) {
        self.close();
        self.state.lock().waiting.iter_mut().for_each(|class| class.retain(|_| false));
    }
}
