//! The bounded queue in front of a model: two lanes, batches of one shape, no room for those who left.
use crate::engine::Lane;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many batches go to interactive callers in a row while crawl work waits; then one goes to the crawl work.
const INTERACTIVE_STREAK: u32 = 8;

/// What can wait in a queue.
pub(super) trait Waiting {
    /// Only entries of one shape share a batch.
    fn shape(&self) -> [usize; 3];
    /// Whether nobody waits for the answer any more.
    fn left(&self) -> bool;
    /// When it was queued.
    fn since(&self) -> Instant;
}

/// Why an entry was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// So many wait already.
    Full(usize),
    /// The engine is stopping.
    Closed,
}

pub(super) struct Queue<E> {
    state: Mutex<State<E>>,
    /// Wakes one idle worker.
    arrived: Condvar,
    /// Wakes workers that hold a batch with room.
    more: Condvar,
    capacity: usize,
}

struct State<E> {
    interactive: VecDeque<E>,
    background: VecDeque<E>,
    streak: u32,
    idle: usize,
    closed: bool,
}

impl<E> State<E> {
    fn waiting(&self) -> usize {
        self.interactive.len() + self.background.len()
    }
}

impl<E: Waiting> Queue<E> {
    /// A queue for `capacity` entries (at least one). Background work may fill three quarters of it, so that a crawl never
    /// keeps interactive callers out.
    pub(super) fn new(capacity: usize) -> Self {
        let state = State {
            interactive: VecDeque::new(),
            background: VecDeque::new(),
            streak: 0,
            idle: 0,
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            more: Condvar::new(),
            capacity: capacity.max(1),
        }
    }

    fn room(&self, lane: Lane) -> usize {
        match lane {
            Lane::Interactive => self.capacity,
            Lane::Background => (self.capacity - self.capacity / 4).max(1),
        }
    }

    /// Adds an entry. Returns how many wait now.
    pub(super) fn push(&self, entry: E, lane: Lane) -> Result<usize, Refused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.waiting() >= self.room(lane) {
            state.interactive.retain(|e| !e.left());
            state.background.retain(|e| !e.left());
            if state.waiting() >= self.room(lane) {
                return Err(Refused::Full(state.waiting()));
            }
        }
        match lane {
            Lane::Interactive => state.interactive.push_back(entry),
            Lane::Background => state.background.push_back(entry),
        }
        let waiting = state.waiting();
        if state.idle > 0 {
            self.arrived.notify_one();
        } else {
            self.more.notify_all();
        }
        Ok(waiting)
    }

    /// Waits for work and takes up to `most` entries of one shape: what waits now, and what arrives until the first of them
    /// has waited for `delay`. `None` when the queue was closed and is empty.
    pub(super) fn take(&self, most: usize, delay: Duration) -> Option<Vec<E>> {
        let mut state = self.state.lock();
        let first = loop {
            if let Some(first) = first(&mut state) {
                break first;
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            self.arrived.wait(&mut state);
            state.idle -= 1;
        };
        let shape = first.shape();
        let until = first.since() + delay;
        let mut batch = vec![first];
        loop {
            gather(&mut state, shape, most, &mut batch);
            if batch.len() >= most || state.closed || Instant::now() >= until {
                break;
            }
            self.more.wait_until(&mut state, until);
        }
        // Entries of another shape are left for somebody who may have slept through their arrival.
        if state.waiting() > 0 && state.idle > 0 {
            self.arrived.notify_one();
        }
        Some(batch)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting()
    }

    /// Takes no more entries; workers finish what waits.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_all();
        self.more.notify_all();
    }

    /// Takes no more entries and drops those that wait.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.interactive.clear();
        state.background.clear();
    }
}

/// The entry whose turn it is, without those whose callers left.
fn first<E: Waiting>(state: &mut State<E>) -> Option<E> {
    state.interactive.retain(|e| !e.left());
    state.background.retain(|e| !e.left());
    let crawl_turn = state.streak >= INTERACTIVE_STREAK && !state.background.is_empty();
    if !crawl_turn && let Some(entry) = state.interactive.pop_front() {
        state.streak = if state.background.is_empty() { 0 } else { state.streak + 1 };
        return Some(entry);
    }
    state.streak = 0;
    state.background.pop_front()
}

/// Moves entries of `shape` into `batch` until it holds `most`.
fn gather<E: Waiting>(state: &mut State<E>, shape: [usize; 3], most: usize, batch: &mut Vec<E>) {
    for lane in [&mut state.interactive, &mut state.background] {
        let mut at = 0;
        while batch.len() < most && at < lane.len() {
            if lane[at].left() {
                lane.remove(at);
            } else if lane[at].shape() == shape {
                batch.extend(lane.remove(at));
            } else {
                at += 1;
            }
        }
    }
}
