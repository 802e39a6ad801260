//! The bounded queue in front of a model: two lanes, batches of one shape, no room for those who left.
use crate::engine::Lane;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// So many batches go to interactive callers in a row while crawl work waits; then one goes to the crawl work.
const INTERACTIVE_STREAK: u32 = 8;

/// What can wait in a queue.
pub(super) trait Waiting {
    /// Only entries of one shape share a batch.
    fn shape(&self) -> [usize; 3];
    /// Whether nobody waits for the answer any more, or it would come too late.
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

/// Whether a device could run a batch at once. Changed under the queue's lock (see [`Queue::change`]), so that nobody misses it.
#[derive(Debug)]
pub(super) struct Desk {
    /// Batches the device asked for and was not given yet. A count and not a flag: whoever gives and whoever asks may be
    /// first to say so.
    asked: AtomicI64,
    gone: AtomicBool,
}

impl Desk {
    /// A device that can run a batch at once, or one that is not ready yet.
    pub(super) fn new(free: bool) -> Self {
        Self { asked: AtomicI64::new(free.into()), gone: AtomicBool::new(false) }
    }
    fn is_free(&self) -> bool {
        self.asked.load(Ordering::Acquire) > 0
    }
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
    /// The device asks for a batch.
    pub(super) fn ask(&self) {
        self.asked.fetch_add(1, Ordering::AcqRel);
    }
    /// It was given one.
    pub(super) fn give(&self) {
        self.asked.fetch_sub(1, Ordering::AcqRel);
    }
    /// It will never ask again.
    pub(super) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }
}

pub(super) struct Queue<E> {
    state: Mutex<State<E>>,
    /// Wakes one idle worker.
    arrived: Condvar,
    /// Wakes workers that hold a batch with room, and those whose device is busy.
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
        let desk = Desk::new(true);
        let mut batch = self.first(most, &desk)?;
        let (shape, until) = (batch[0].shape(), batch[0].since() + delay);
        while batch.len() < most {
            let more = self.more(shape, most - batch.len(), until, &desk);
            if more.is_empty() {
                break;
            }
            batch.extend(more);
        }
        Some(batch)
    }

    /// Waits for the entry whose turn it is, and takes up to `most` of its shape. `None` when the queue was closed and is
    /// empty, or the desk's device is gone. While the device is busy, entries are left to those who could run them at once.
    pub(super) fn first(&self, most: usize, desk: &Desk) -> Option<Vec<E>> {
        let mut state = self.state.lock();
        loop {
            let free = desk.is_free();
            if desk.is_gone() {
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

    /// Waits for up to `room` entries of `shape` for a batch that was begun. Empty when the batch shall be run as it is: the
    /// device is free and the time is `until`, or the queue was closed.
    pub(super) fn more(&self, shape: [usize; 3], room: usize, until: Instant, desk: &Desk) -> Vec<E> {
        let mut state = self.state.lock();
        let mut found = Vec::new();
        loop {
            let free = desk.is_free();
            if free || state.idle == 0 || state.closed {
                gather(&mut state, shape, room, &mut found);
            }
            let complete = state.closed || desk.is_gone() || free && Instant::now() >= until;
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

    /// What is left is for somebody who may have slept through its arrival.
    fn pass_on(&self, state: &State<E>) {
        if state.waiting() > 0 {
            if state.idle > 0 {
                self.arrived.notify_one();
            } else {
                self.more.notify_all();
            }
        }
    }

    /// Puts entries back that were taken and could not be run; they go first. A closed queue drops them.
    pub(super) fn put_back(&self, entries: Vec<E>) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        for entry in entries.into_iter().rev() {
            state.interactive.push_front(entry);
        }
        self.pass_on(&state);
    }

    /// Changes what a desk says, and tells those who wait for it.
    pub(super) fn change(&self, desk: &Desk, change: impl FnOnce(&Desk)) {
        let _state = self.state.lock();
        change(desk);
        self.more.notify_all();
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
