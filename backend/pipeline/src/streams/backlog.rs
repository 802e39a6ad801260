//! Compressed frames that wait for the decoder.
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Longest time for which a frame waits. If the decoder is slower, it continues at the newest
/// keyframe.
const MAX_AGE: Duration = Duration::from_secs(2);
/// Maximum size of all waiting frames in bytes. A single larger one may wait.
const MAX_BYTES: usize = 32 << 20;

/// A compressed frame, or several of them.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) bytes: Bytes,
    pub(super) is_keyframe: bool,
    pub(super) received: Instant,
}

/// An item for the decoder.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) item: Item,
    /// Number of items that were removed before it.
    pub(super) dropped: u64,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Item>,
    bytes: usize,
    dropped: u64,
    /// Whether items are ignored until the next keyframe.
    needs_keyframe: bool,
    is_closed: bool,
    last_written: Instant,
}

/// A queue between the network and the decoder.
#[derive(Debug)]
pub(super) struct Backlog {
    state: Mutex<State>,
    changed: Condvar,
}

impl Backlog {
    pub(super) fn new() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            // A decoder can start only at a keyframe.
            needs_keyframe: true,
            is_closed: false,
            last_written: Instant::now(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds an item. If the oldest one has waited too long, or all together are too large, removes
    /// all items before the newest keyframe. If no newer keyframe waits, removes all items and
    /// ignores further ones until the next keyframe.
    pub(super) fn push(&self, item: Item) {
        let mut state = self.state.lock();
        if state.needs_keyframe && !item.is_keyframe {
            state.dropped += 1;
            return;
        }
        state.needs_keyframe = false;
        let now = item.received;
        state.bytes += item.bytes.len();
        state.waiting.push_back(item);
        let is_old =
            state.waiting.front().is_some_and(|item| now.saturating_duration_since(item.received) > MAX_AGE);
        if is_old || (state.bytes > MAX_BYTES && state.waiting.len() > 1) {
            state.skip_to_newest_keyframe();
        }
        self.changed.notify_one();
    }

    /// Waits for the next item. Returns `None` after [`Self::close`].
    pub(super) fn take(&self) -> Option<Taken> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(item) = state.waiting.pop_front() {
                state.bytes -= item.bytes.len();
                state.last_written = item.received;
                return Some(Taken { item, dropped: std::mem::take(&mut state.dropped) });
            }
            self.changed.wait(&mut state);
        }
    }

    /// Ends all calls of [`Self::take`].
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.waiting.clear();
        state.bytes = 0;
        self.changed.notify_all();
    }

    /// Returns whether all items were taken, and more may follow.
    pub(super) fn is_waiting_for_input(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && !state.is_closed
    }

    /// Returns the time at which the last taken item arrived.
    pub(super) fn last_written(&self) -> Instant {
        self.state.lock().last_written
    }
}

impl State {
    fn skip_to_newest_keyframe(&mut self) {
        let keyframe = self.waiting.iter().rposition(|item| item.is_keyframe);
        // The first item is part of what is too old, even if it is the only keyframe.
        let keep_from = keyframe.filter(|at| *at > 0).unwrap_or(self.waiting.len());
        self.needs_keyframe = keep_from == self.waiting.len();
        self.dropped += keep_from as u64;
        self.waiting.drain(..keep_from);
        self.bytes = self.waiting.iter().map(|item| item.bytes.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn item(number: u8, is_keyframe: bool, received: Instant) -> Item {
        Item { bytes: Bytes::from(vec![number]), is_keyframe, received }
    }

    /// Takes `count` items. Returns their numbers, and how many items were dropped.
    fn take(backlog: &Backlog, count: usize) -> (Vec<u8>, u64) {
        let taken: Vec<Taken> = (0..count).map(|_| backlog.take().unwrap()).collect();
        (
            taken.iter().map(|taken| taken.item.bytes[0]).collect(),
            taken.iter().map(|taken| taken.dropped).sum(),
        )
    }

    #[test]
    fn decoder_starts_at_keyframe() {
        let (backlog, now) = (Backlog::new(), Instant::now());
        for (number, is_keyframe) in [(1, false), (2, true), (3, false)] {
            backlog.push(item(number, is_keyframe, now));
        }
        assert_eq!(take(&backlog, 2), (vec![2, 3], 1));
    }

    #[test]
    fn old_frames_are_dropped_up_to_newest_keyframe() {
        let (backlog, start) = (Backlog::new(), Instant::now());
        for number in 0..8 {
            let received = start + Duration::from_millis(300) * u32::from(number);
            backlog.push(item(number, number % 3 == 0, received));
        }
        // After the eighth item, the first one has waited for 2.1 s, and item 6 is a keyframe.
        assert_eq!(take(&backlog, 2), (vec![6, 7], 6));
    }

    #[test]
    fn without_keyframe_all_old_frames_are_dropped() {
        let (backlog, start) = (Backlog::new(), Instant::now());
        backlog.push(item(0, true, start));
        backlog.push(item(1, false, start + Duration::from_secs(3)));
        backlog.push(item(2, false, start + Duration::from_secs(4)));
        backlog.push(item(3, true, start + Duration::from_secs(5)));
        assert_eq!(take(&backlog, 1), (vec![3], 3));
    }

    #[test]
    fn closing_ends_waiting_reader() {
        let backlog = std::sync::Arc::new(Backlog::new());
        let reader = std::thread::spawn({
            let backlog = backlog.clone();
            move || backlog.take().is_none()
        });
        backlog.close();
        assert!(reader.join().unwrap());
    }
}
