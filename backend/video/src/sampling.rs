//! Selects the frames of a video that are decoded, as a pure function of its keyframes. Decoding a
//! keyframe takes about three times as long as decoding another frame, but it needs no other frame.
//! Between two keyframes, all frames must be decoded to reach the last one. Keyframes that are
//! close together are omitted, as long as no gap between others becomes too long.
use crate::index::{Index, Timeline};
use std::collections::VecDeque;
use vision::Frame;

/// The frames that are analysed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sampling {
    /// Only keyframes, however far apart they are.
    Keyframes,
    /// This number of frames a second, from [`MIN_FPS`] to [`MAX_FPS`].
    Fps(f64),
    /// Keyframes where they are at most `max_gap_us` apart, and otherwise frames at this distance.
    /// A face that is visible for this time is in an analysed frame.
    #[default]
    Auto,
}

/// Lowest rate of [`Sampling::Fps`] in frames a second.
pub const MIN_FPS: f64 = 0.1;
/// Highest rate of [`Sampling::Fps`] in frames a second.
pub const MAX_FPS: f64 = 30.0;
/// Default of the longest time without an analysed frame, in microseconds.
pub const MAX_GAP_US: i64 = 2_000_000;
/// Longest time between two closer looks (see [`crate::refine()`]), in microseconds.
pub(crate) const MAX_CLOSER_GAP_US: i64 = 250_000;

/// Maximum number of segments of one video. Each needs a process that searches for its start.
const MAX_SEGMENTS: usize = 100;
/// Time for starting a process and finding its place in a file of 1920x1080, in microseconds.
pub(crate) const PROCESS_START_US: i64 = 120_000;
/// Time for decoding a pixel in nanoseconds: 9 ms for a frame of 1920x1080.
const NANOSECONDS_PER_PIXEL: i64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it must be auto, keyframes, or fps=N with N from {MIN_FPS} to {MAX_FPS}, such as fps=5")]
pub struct UnknownSampling;

impl std::str::FromStr for Sampling {
    type Err = UnknownSampling;

    fn from_str(text: &str) -> Result<Self, UnknownSampling> {
        let fps = |text: &str| text.parse().ok().filter(|fps| (MIN_FPS..=MAX_FPS).contains(fps));
        match text {
            "auto" => Ok(Self::Auto),
            "keyframes" => Ok(Self::Keyframes),
            other => other.strip_prefix("fps=").and_then(fps).map(Self::Fps).ok_or(UnknownSampling),
        }
    }
}

impl std::fmt::Display for Sampling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Keyframes => f.write_str("keyframes"),
            Self::Fps(fps) => write!(f, "fps={fps}"),
        }
    }
}

/// The frames that are decoded in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSet {
    Keyframes,
    All,
}

/// A part of a video that is decoded in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Start in microseconds, inclusive.
    pub from_us: i64,
    /// End in microseconds, exclusive; `i64::MAX` for the end of the file.
    pub to_us: i64,
    pub decoded: FrameSet,
    /// Length of a cell in microseconds. The reader gets the first decoded frame of each cell.
    /// Cells start at time 0.
    pub cell_us: i64,
    /// With all frames: times in microseconds, ascending, of further frames that the reader gets,
    /// at any position in their cell.
    pub listed_us: Vec<i64>,
    /// With keyframes: those that are closer than half of this time, in microseconds, are omitted
    /// if no gap between others becomes longer than this time. 0 returns all keyframes.
    pub max_gap_us: i64,
    /// If this is the rest of a longer segment: no frame at or before this time, in microseconds,
    /// is returned. With keyframes, it is the time of the last frame that was returned before.
    pub last_us: Option<i64>,
}

/// Returns the segments of a video in order. They do not overlap and cover the whole video.
/// `max_gap_us` is the longest time without an analysed frame with [`Sampling::Auto`].
pub fn plan(index: &Index, sampling: Sampling, max_gap_us: i64) -> Vec<Segment> {
    let max_gap_us = max_gap_us.max(1);
    match sampling {
        Sampling::Keyframes => vec![whole_video(FrameSet::Keyframes, 1)],
        Sampling::Fps(fps) => with_last_frame(vec![whole_video(FrameSet::All, cell_for_rate(fps))], index),
        Sampling::Auto => with_last_frame(auto_segments(index, max_gap_us), index),
    }
}

/// Returns the longest time, in microseconds, by which a face can be visible before the first or
/// after the last analysed frame that shows it. Returns `None` if the distance between analysed
/// frames has no limit.
pub fn tolerance_us(sampling: Sampling, max_gap_us: i64, refine: bool) -> Option<i64> {
    match sampling {
        Sampling::Keyframes => None,
        Sampling::Fps(fps) => Some(cell_for_rate(fps)),
        Sampling::Auto if refine => Some(max_gap_us.min(MAX_CLOSER_GAP_US)),
        Sampling::Auto => Some(max_gap_us),
    }
}

fn cell_for_rate(fps: f64) -> i64 {
    (1e6 / fps.clamp(MIN_FPS, MAX_FPS)).round() as i64
}

/// Adds the last frame of the video to the selected frames, so that a track of a face that is
/// visible to the end has the right end.
pub(crate) fn with_last_frame(mut segments: Vec<Segment>, index: &Index) -> Vec<Segment> {
    let last_us = index.last_us;
    match segments.last_mut() {
        Some(last) if last.decoded == FrameSet::All && last_us > last.from_us => last.listed_us.push(last_us),
        // The last frame is a keyframe, so it is selected already.
        _ if index.keyframes_us.last().is_none_or(|keyframe| *keyframe >= last_us) => {}
        // Decoding it would take as long as decoding all frames.
        Some(_) if index.timeline == Timeline::Continued => {}
        Some(last) if last_us > last.from_us => {
            last.to_us = last_us;
            segments.push(Segment {
                from_us: last_us,
                listed_us: vec![last_us],
                ..whole_video(FrameSet::All, 1)
            });
        }
        _ => {}
    }
    segments
}

/// Returns the segment of a whole video that is decoded in this way.
pub(crate) fn whole_video(decoded: FrameSet, cell_us: i64) -> Segment {
    Segment {
        from_us: 0,
        to_us: i64::MAX,
        decoded,
        cell_us,
        listed_us: Vec::new(),
        max_gap_us: 0,
        last_us: None,
    }
}

/// Consecutive groups of pictures that are decoded in the same way.
struct Run {
    segment: Segment,
    keyframes: i64,
}

/// Returns the segments of [`Sampling::Auto`]: keyframes where they are close enough, and otherwise
/// all frames. With all frames, the first one of each cell is analysed. Cells are `max_gap_us`
/// long, so a face that is visible for this time is in the first frame of a cell.
fn auto_segments(index: &Index, max_gap_us: i64) -> Vec<Segment> {
    let mut runs: Vec<Run> = Vec::new();
    let starts = &index.keyframes_us;
    for (at, &start) in starts.iter().enumerate() {
        let end = starts.get(at + 1).copied();
        let length = end.unwrap_or(index.end_us).saturating_sub(start);
        let decoded = if length <= max_gap_us { FrameSet::Keyframes } else { FrameSet::All };
        let from_us = if at == 0 { 0 } else { start };
        let to_us = end.unwrap_or(i64::MAX);
        match runs.last_mut() {
            Some(last) if last.segment.decoded == decoded => {
                last.segment.to_us = to_us;
                last.keyframes += 1;
            }
            _ => {
                let segment = Segment { from_us, to_us, max_gap_us, ..whole_video(decoded, max_gap_us) };
                runs.push(Run { segment, keyframes: 1 });
            }
        }
    }
    join_runs(&mut runs, index);
    let mut segments: Vec<Segment> = Vec::new();
    for Run { segment, .. } in runs {
        match segments.last_mut() {
            Some(last) if last.decoded == segment.decoded => last.to_us = segment.to_us,
            _ => segments.push(segment),
        }
    }
    for segment in segments.iter_mut().filter(|segment| segment.decoded == FrameSet::Keyframes) {
        segment.cell_us = cell_of_keyframes(index, segment);
    }
    segments
}

/// Changes runs of keyframes to all frames if they save less time than the start of another process
/// takes, and also the shortest ones if there are too many. If each process must start at the
/// beginning of the file, changes all runs.
fn join_runs(runs: &mut [Run], index: &Index) {
    if runs.len() < 2 {
        return;
    }
    let saved_us = |run: &Run| {
        let end = run.segment.to_us.min(index.end_us);
        let all_us = decoding_us(index, end.saturating_sub(run.segment.from_us));
        all_us.saturating_sub(run.keyframes.saturating_mul(frame_decoding_us(index)))
    };
    let mut saved: Vec<i64> =
        runs.iter().filter(|run| run.segment.decoded == FrameSet::Keyframes).map(saved_us).collect();
    saved.sort_unstable_by(|a, b| b.cmp(a));
    // Each run needs a process, and so does the segment after it.
    let min_saved_us = saved.get(MAX_SEGMENTS / 2 - 1).copied().unwrap_or(0).max(2 * PROCESS_START_US);
    let limit = if index.timeline == Timeline::Continued { 0 } else { MAX_SEGMENTS / 2 };
    let mut count = 0;
    for run in runs.iter_mut().filter(|run| run.segment.decoded == FrameSet::Keyframes) {
        if saved_us(run) >= min_saved_us && count < limit {
            count += 1;
        } else {
            run.segment.decoded = FrameSet::All;
        }
    }
}

/// Returns the time for decoding all frames of `length_us`, in microseconds.
pub(crate) fn decoding_us(index: &Index, length_us: i64) -> i64 {
    (length_us / index.frame_us.max(1)).saturating_mul(frame_decoding_us(index))
}

fn frame_decoding_us(index: &Index) -> i64 {
    i64::from(index.width) * i64::from(index.height) * NANOSECONDS_PER_PIXEL / 1_000
}

/// Returns the length of the cells of a segment of keyframes. The decoder returns one keyframe of
/// each cell, and the reader selects from those. If keyframes are much closer than the gap, for
/// example if every frame is one, most of them are not converted.
fn cell_of_keyframes(index: &Index, segment: &Segment) -> i64 {
    let cell = segment.max_gap_us / 8;
    let times = index.keyframes_us.iter().chain([&index.end_us]);
    let mut times = times.copied().filter(|at| (segment.from_us..=segment.to_us).contains(at));
    let first = times.next().unwrap_or(0);
    let longest = times.scan(first, |last, at| Some(at - std::mem::replace(last, at))).max();
    if longest.is_some_and(|longest| longest <= cell) { cell.max(1) } else { 1 }
}

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

/// Delays the selection of a frame until it is known whether a later frame can replace it.
pub(crate) struct Selection<F> {
    /// 0 selects all frames.
    max_gap_us: i64,
    to_us: i64,
    selected_us: Option<i64>,
    /// The last frame, if it was not selected.
    candidate: Option<F>,
    /// Selected frames that were not taken yet, at most two.
    ready: VecDeque<F>,
}

impl<F: Timed> Selection<F> {
    pub(crate) fn new(segment: &Segment) -> Self {
        // If all frames are decoded, the reader gets one frame of each cell, and none is omitted.
        let max_gap_us = if segment.decoded == FrameSet::Keyframes { segment.max_gap_us } else { 0 };
        let selected_us = segment.last_us;
        Self { max_gap_us, to_us: segment.to_us, selected_us, candidate: None, ready: VecDeque::new() }
    }

    /// Adds the next frame. Returns a frame that is omitted, if any.
    pub(crate) fn add(&mut self, frame: F) -> Option<F> {
        if self.would_leave_gap(frame.at_us()) {
            self.select_candidate();
        }
        let is_near = |selected: i64| frame.at_us().saturating_sub(selected) < self.max_gap_us / 2;
        if self.selected_us.is_some_and(is_near) {
            self.candidate.replace(frame)
        } else {
            self.select(frame);
            self.candidate.take()
        }
    }

    pub(crate) fn take(&mut self) -> Option<F> {
        self.ready.pop_front()
    }

    /// Returns the last frame if it is needed before the first one of the next segment, or before
    /// the end of the video, which is not known exactly.
    pub(crate) fn finish(&mut self) -> Option<F> {
        if self.would_leave_gap(self.to_us) {
            self.select_candidate();
        }
        self.take()
    }

    /// Returns whether a frame at this time would leave a gap after the last selected frame.
    fn would_leave_gap(&self, at_us: i64) -> bool {
        self.selected_us.is_none_or(|selected| at_us.saturating_sub(selected) > self.max_gap_us)
    }

    fn select_candidate(&mut self) {
        if let Some(candidate) = self.candidate.take() {
            self.select(candidate);
        }
    }

    fn select(&mut self, frame: F) {
        self.selected_us = Some(frame.at_us());
        self.ready.push_back(frame);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const SECOND: i64 = 1_000_000;

    /// Returns the index of a video whose last frame is a keyframe.
    fn index(keyframes_us: Vec<i64>, end_us: i64) -> Index {
        let last_us = keyframes_us.last().copied().unwrap_or_default();
        let (frame_us, width, height) = (40_000, 1920, 1080);
        Index { keyframes_us, last_us, end_us, frame_us, width, height, ..Index::default() }
    }

    fn segment(from: i64, to: i64, decoded: FrameSet, cell_us: i64) -> Segment {
        Segment { from_us: from, to_us: to, max_gap_us: 2 * SECOND, ..whole_video(decoded, cell_us) }
    }

    #[test]
    fn auto_sampling_decodes_only_long_keyframe_groups() {
        let index = index([0, 2, 4, 14, 15].map(|at| at * SECOND).into(), 16 * SECOND);
        assert_eq!(
            plan(&index, Sampling::Auto, 2 * SECOND),
            [
                segment(0, 4 * SECOND, FrameSet::Keyframes, 1),
                segment(4 * SECOND, 14 * SECOND, FrameSet::All, 2 * SECOND),
                segment(14 * SECOND, i64::MAX, FrameSet::Keyframes, 1)
            ]
        );
    }

    #[test]
    fn last_frame_is_always_sampled() {
        let last_us = 15_960_000;
        let plan_with = |keyframes: &[i64], sampling| {
            let keyframes = keyframes.iter().map(|at| at * SECOND).collect();
            let index = Index { last_us, ..index(keyframes, 16 * SECOND) };
            plan(&index, sampling, 2 * SECOND)
        };
        let [whole] = plan_with(&[0], Sampling::Auto).try_into().unwrap();
        assert_eq!((whole.decoded, whole.listed_us), (FrameSet::All, vec![last_us]));
        let [whole] = plan_with(&[0, 15], Sampling::Fps(4.0)).try_into().unwrap();
        assert_eq!((whole.cell_us, whole.listed_us), (SECOND / 4, vec![last_us]));
        let seconds: Vec<i64> = (0..16).collect();
        let [most, end] = plan_with(&seconds, Sampling::Auto).try_into().unwrap();
        assert_eq!((most.decoded, most.to_us, end.from_us), (FrameSet::Keyframes, last_us, last_us));
        assert_eq!((end.decoded, end.to_us, end.listed_us), (FrameSet::All, i64::MAX, vec![last_us]));
        assert_eq!(plan_with(&seconds, Sampling::Keyframes).len(), 1);
    }

    #[test]
    fn close_keyframes_are_omitted_before_decoding() {
        let index = index((0..100).map(|at| at * 40_000).collect(), 4 * SECOND);
        assert_eq!(
            plan(&index, Sampling::Auto, 2 * SECOND),
            [segment(0, i64::MAX, FrameSet::Keyframes, SECOND / 4)]
        );
    }

    #[test]
    fn sampling_starts_process_only_to_save_work() {
        // Long groups, two seconds with close keyframes, and two keyframes at a cut.
        let mut keyframes: Vec<i64> = (0..10).map(|at| at * 10 * SECOND).collect();
        keyframes.extend([41 * SECOND, 42 * SECOND, 50_200_000, 50_400_000]);
        keyframes.sort_unstable();
        let segments = plan(&index(keyframes, 100 * SECOND), Sampling::Auto, 2 * SECOND);
        assert_eq!(segments.iter().filter(|segment| segment.decoded == FrameSet::Keyframes).count(), 1);
        // Minutes of both kinds, alternating for six hours.
        let keyframes = (0..21_600).filter(|at| at / 60 % 2 == 0 || at % 10 == 0).map(|at| at * SECOND);
        let segments = plan(&index(keyframes.collect(), 21_600 * SECOND), Sampling::Auto, 2 * SECOND);
        assert!((MAX_SEGMENTS - 2..=MAX_SEGMENTS + 1).contains(&segments.len()), "{}", segments.len());
    }

    proptest! {
        #[test]
        fn sampling_segments_cover_video_in_order(
            mut keyframes in proptest::collection::vec(0..100_000_000_i64, 1..50),
            end in 0..100_000_000_i64,
            gap in 0..10_000_000_i64,
        ) {
            keyframes.push(0);
            keyframes.sort_unstable();
            keyframes.dedup();
            let last_us = keyframes[keyframes.len() - 1].max(end);
            let index = Index { last_us, ..index(keyframes, end) };
            let segments = plan(&index, Sampling::Auto, gap);
            prop_assert_eq!(segments[0].from_us, 0);
            prop_assert_eq!(segments[segments.len() - 1].to_us, i64::MAX);
            for pair in segments.windows(2) {
                prop_assert_eq!(pair[0].to_us, pair[1].from_us);
                prop_assert!(pair[0].decoded != pair[1].decoded);
            }
        }
    }

    /// Returns the times that are selected from `times`.
    fn select(times: &[i64], to_us: i64, max_gap_us: i64) -> Vec<i64> {
        select_in(times, &keyframes_until(to_us, max_gap_us))
    }

    fn keyframes_until(to_us: i64, max_gap_us: i64) -> Segment {
        Segment { to_us, max_gap_us, ..whole_video(FrameSet::Keyframes, 1) }
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
    fn selection_of_segment_rest_equals_whole_selection() {
        let times = [0, 3, 9, 12, 25, 29, 30, 31, 40, 49, 55];
        let all = select(&times, 60, 20);
        for (at, &last_us) in all.iter().enumerate() {
            let rest: Vec<i64> = times.into_iter().filter(|time| *time > last_us).collect();
            let segment = Segment { from_us: last_us + 1, last_us: Some(last_us), ..keyframes_until(60, 20) };
            assert_eq!(select_in(&rest, &segment), all[at + 1..], "after {last_us}");
        }
    }

    #[test]
    fn omits_close_frames_unless_they_shorten_gap() {
        assert_eq!(select(&[0, 9, 29, 30, 40, 49], 50, 20), [0, 9, 29, 40]);
        assert_eq!(select(&[0, 8, 16, 24, 32, 40], 48, 20), [0, 16, 32]);
        assert_eq!(select(&[0, 8, 16], i64::MAX, 20), [0, 16]);
        assert_eq!(select(&[5], i64::MAX, 20), [5]);
        assert_eq!(select(&[0, 1, 2], 3, 0), [0, 1, 2]);
        assert_eq!(select(&[], 3, 5), Vec::<i64>::new());
    }

    proptest! {
        #[test]
        fn selected_frames_leave_no_avoidable_long_gap(
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
                let is_avoidable = times.iter().any(|at| *at > gap[0] && *at < gap[1]);
                prop_assert!(!is_avoidable, "{selected:?} of {times:?}");
            }
        }
    }
}
