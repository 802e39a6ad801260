//! The bounded queue in front of a model. It has two lanes (priority classes) and serves requesters
//! in turn. A batch holds inputs of one shape. Requests whose callers left take no room.
use crate::engine::Lane;
use crate::fair_queue::{FairQueue, Requester};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

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
    /// Returns on whose behalf it waits.
    fn requester(&self) -> Requester;
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

/// Room for one entry; given back when the entry leaves the queue.
pub(super) struct Place {
    _room: OwnedSemaphorePermit,
    _crawl_room: Option<OwnedSemaphorePermit>,
}

/// An entry and its room. What was put back has none.
struct Placed<E> {
    entry: E,
    _place: Option<Place>,
}

pub(super) struct Queue<E> {
    state: Mutex<State<E>>,
    /// Room for all entries; those who wait for it are served in order.
    room: Arc<Semaphore>,
    /// Room for background work.
    crawl_room: Arc<Semaphore>,
    /// Wakes one idle worker.
    arrived: Condvar,
    /// Wakes workers that hold a batch with room, and those whose device is busy.
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

    /// Lets go of those whose callers left.
    fn forget_left(&mut self) {
        self.interactive.retain(|placed| !placed.entry.left());
        self.background.retain(|placed| !placed.entry.left());
    }
}

impl<E: Waiting> Queue<E> {
    /// A queue for `capacity` entries (at least one). Background work may fill three quarters of it, so that a crawl never
    /// keeps interactive callers out.
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

    /// Room for one entry, if there is some now.
    pub(super) fn place_now(&self, lane: Lane) -> Result<Place, Refused> {
        let place = || {
            let crawl_room = match lane {
                Lane::Interactive => None,
                Lane::Background => Some(self.crawl_room.clone().try_acquire_owned()?),
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

    /// Room for one entry, as soon as there is some; who waits is served in the order of arrival.
    pub(super) async fn place(&self, lane: Lane) -> Result<Place, Refused> {
        if let Ok(place) = self.place_now(lane) {
            return Ok(place);
        }
        let crawl_room = match lane {
            Lane::Interactive => None,
            Lane::Background => {
                Some(self.crawl_room.clone().acquire_owned().await.map_err(|_| Refused::Closed)?)
            }
        };
        let room = self.room.clone().acquire_owned().await.map_err(|_| Refused::Closed)?;
        Ok(Place { _room: room, _crawl_room: crawl_room })
    }

    /// Adds an entry. Returns how many wait now.
    pub(super) fn push(&self, entry: E, lane: Lane, place: Place) -> Result<usize, Refused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        let (requester, placed) = (entry.requester(), Placed { entry, _place: Some(place) });
        match lane {
            Lane::Interactive => state.interactive.push(requester, placed),
            Lane::Background => state.background.push(requester, placed),
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
                state.forget_left();
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
            state.interactive.put_back(Placed { entry, _place: None });
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
        self.close_rooms();
        self.arrived.notify_all();
        self.more.notify_all();
    }

    /// Takes no more entries and drops those that wait.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.interactive = FairQueue::default();
        state.background = FairQueue::default();
        self.close_rooms();
    }

    /// Nobody waits for room in a closed queue.
    fn close_rooms(&self) {
        self.room.close();
        self.crawl_room.close();
    }
}

/// The entry whose turn it is, without those whose callers left.
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

/// Moves entries of `shape` into `batch` until it holds `most`.
fn gather<E: Waiting>(state: &mut State<E>, shape: [usize; 3], most: usize, batch: &mut Vec<E>) {
    for lane in [&mut state.interactive, &mut state.background] {
        while batch.len() < most
            && let Some(placed) = lane.pop_if(|placed| placed.entry.shape() == shape)
        {
            batch.push(placed.entry);
        }
    }
}
