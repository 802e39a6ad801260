//! Leaves out keyframes that are close together, as long as no gap between others becomes too long.

use crate::sampling::{Looks, Segment};
use std::collections::VecDeque;
use vision::Frame;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedFrame {
    /// Time in microseconds from the first frame of the video.
    pub at_us: i64,
    /// The pixels, as a player shows the frame (rotation applied).
    pub frame: Frame,
}

/// An item that has a time in a video.
pub(crate) trait Timed {
    /// Returns the time in microseconds from the first frame of the video.
    fn at_us(&self) -> i64;
}

impl Timed for TimedFrame {
    fn at_us(&self) -> i64 {
        self.at_us
    }
}

/// The time of a frame that is not decoded.
impl Timed for i64 {
    fn at_us(&self) -> i64 {
        *self
    }
}

/// Holds a frame back until it is known whether a later one can take its place.
pub(crate) struct Selection<F> {
    /// 0 selects all frames.
    max_gap_us: i64,
    to_us: i64,
    selected_us: Option<i64>,
    /// The last frame, if it was not selected.
    held: Option<F>,
    /// Selected frames that were not taken yet, at most two.
    ready: VecDeque<F>,
}

impl<F: Timed> Selection<F> {
    pub(crate) fn new(segment: &Segment) -> Self {
        // Of cells of all frames, one is decoded each, so none can be left out.
        let max_gap_us = if segment.looks == Looks::Keyframes { segment.max_gap_us } else { 0 };
        let selected_us = segment.last_us;
        Self { max_gap_us, to_us: segment.to_us, selected_us, held: None, ready: VecDeque::new() }
    }

    /// Adds the next frame. Returns a frame that was left out, if any.
    pub(crate) fn add(&mut self, frame: F) -> Option<F> {
        if self.is_too_far(frame.at_us()) {
            self.select_held();
        }
        let is_near = |selected: i64| frame.at_us().saturating_sub(selected) < self.max_gap_us / 2;
        if self.selected_us.is_some_and(is_near) {
            self.held.replace(frame)
        } else {
            self.select(frame);
            self.held.take()
        }
    }

    /// Returns the next selected frame.
    pub(crate) fn take(&mut self) -> Option<F> {
        self.ready.pop_front()
    }

    /// Returns the last frame if it is needed before the first one of the next segment, or before
    /// the end of the video, which is not known exactly.
    pub(crate) fn finish(&mut self) -> Option<F> {
        if self.is_too_far(self.to_us) {
            self.select_held();
        }
        self.take()
    }

    /// Returns whether a frame at this time would leave a gap after the last selected frame.
    fn is_too_far(&self, at_us: i64) -> bool {
        self.selected_us.is_none_or(|selected| at_us.saturating_sub(selected) > self.max_gap_us)
    }

    fn select_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.select(held);
        }
    }

    fn select(&mut self, frame: F) {
        self.selected_us = Some(frame.at_us());
        self.ready.push_back(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the times that are selected from `times`.
    fn select(times: &[i64], to_us: i64, max_gap_us: i64) -> Vec<i64> {
        select_in(times, &whole(to_us, max_gap_us))
    }

    fn whole(to_us: i64, max_gap_us: i64) -> Segment {
        Segment {
            from_us: 0,
            to_us,
            looks: Looks::Keyframes,
            cell_us: 1,
            also_us: Vec::new(),
            max_gap_us,
            last_us: None,
        }
    }

    fn select_in(times: &[i64], segment: &Segment) -> Vec<i64> {
        let mut selection = Selection::new(segment);
        let mut selected = Vec::new();
        for &at_us in times {
            selection.add(at_us);
            selected.extend(std::iter::from_fn(|| selection.take()));
        }
        selected.extend(selection.finish());
        assert!(selection.finish().is_none() && selection.ready.is_empty());
        selected
    }

    #[test]
    fn the_rest_of_a_segment_is_selected_as_in_the_whole() {
        let times = [0, 3, 9, 12, 25, 29, 30, 31, 40, 49, 55];
        let all = select(&times, 60, 20);
        for (at, &last_us) in all.iter().enumerate() {
            let rest: Vec<i64> = times.into_iter().filter(|time| *time > last_us).collect();
            let segment = Segment { from_us: last_us + 1, last_us: Some(last_us), ..whole(60, 20) };
            assert_eq!(select_in(&rest, &segment), all[at + 1..], "after {last_us}");
        }
    }

    #[test]
    fn close_frames_are_left_out_unless_they_shorten_a_gap() {
        assert_eq!(select(&[0, 9, 29, 30, 40, 49], 50, 20), [0, 9, 29, 40]);
        assert_eq!(select(&[0, 8, 16, 24, 32, 40], 48, 20), [0, 16, 32]);
        assert_eq!(select(&[0, 8, 16], i64::MAX, 20), [0, 16]);
        assert_eq!(select(&[5], i64::MAX, 20), [5]);
        assert_eq!(select(&[0, 1, 2], 3, 0), [0, 1, 2]);
        assert_eq!(select(&[], 3, 5), Vec::<i64>::new());
    }

    proptest! {
        #[test]
        fn no_gap_is_longer_than_necessary(
            steps in proptest::collection::vec(1..40_i64, 1..50),
            after in 1..40_i64,
            max_gap in 1..60_i64,
        ) {
            let times: Vec<i64> = steps.iter().scan(0, |at, step| Some(std::mem::replace(at, *at + step))).collect();
            let end = times[times.len() - 1] + after;
            let mut selected = select(&times, end, max_gap);
            prop_assert_eq!(selected[0], 0);
            selected.push(end);
            for gap in selected.windows(2).filter(|pair| pair[1] - pair[0] > max_gap) {
                let between = times.iter().any(|at| *at > gap[0] && *at < gap[1]);
                prop_assert!(!between, "{selected:?} of {times:?}");
            }
        }
    }
}
