//! Divides a video into parts. Nothing continues from one part to the next except the numbers of
//! tracks and people, so the analysis can be stored after each part and resumed there.
//!
//! Where a part ends depends only on its own frames. An analysis that is resumed therefore finds
//! the same tracks as one that was not interrupted.

use super::result::VideoTrack;
use video::Segment;
use video::shots::{CutDetector, ReducedFrame};

/// After this time, a part ends at the next cut, where all tracks end anyway.
const MIN_US: i64 = 30_000_000;
/// Longest part. All tracks end with it.
const MAX_US: i64 = 60_000_000;

/// Decides which frames begin a part.
#[derive(Debug, Default)]
struct PartClock {
    /// Time of the first frame of the part.
    started_us: Option<i64>,
}

impl PartClock {
    /// Returns whether a frame begins a new part. `cut` is whether it begins a new shot, and `full`
    /// is whether the part before must end. The first frame does not begin a new part.
    fn begins(&mut self, at_us: i64, cut: bool, full: bool) -> bool {
        let length = at_us.saturating_sub(*self.started_us.get_or_insert(at_us));
        let begins = full || length >= if cut { MIN_US } else { MAX_US };
        if begins {
            self.started_us = Some(at_us);
        }
        begins
    }
}

/// Finds the shots and the parts of a video.
#[derive(Debug, Default)]
pub(super) struct Boundaries {
    cuts: CutDetector,
    parts: PartClock,
}

/// What begins with a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boundary {
    /// Whether a new shot begins.
    pub(super) shot: bool,
    /// Whether a new part begins.
    pub(super) part: bool,
}

impl Boundaries {
    /// Returns what begins with the next frame. `full` is whether the part before must end.
    pub(super) fn next(&mut self, at_us: i64, frame: ReducedFrame, full: bool) -> Boundary {
        let shot = self.cuts.is_cut(at_us, frame);
        let part = self.parts.begins(at_us, shot, full);
        if part {
            // An analysis that is resumed here does not know the frames before.
            self.cuts.restart();
        }
        Boundary { shot, part }
    }
}

/// The tracks of one part.
#[derive(Clone, Debug)]
pub struct VideoPart {
    /// Time of the last frame of the part in microseconds.
    pub until_us: i64,
    /// Number of frames that were analysed up to then.
    pub frames: u64,
    /// The tracks in order of their start. The people are not numbered yet.
    pub tracks: Vec<VideoTrack>,
}

/// Where an analysis continues: after the last part that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Time of the last frame of the part in microseconds.
    pub after_us: i64,
    /// Number of frames that were analysed up to then.
    pub frames: u64,
    /// Highest number of a track.
    pub tracks: u32,
}

/// Returns what remains of the segments after the frame at `after_us`. The next frame that is
/// returned is the one that would have followed.
pub(super) fn remaining(segments: Vec<Segment>, after_us: i64) -> Vec<Segment> {
    let rest = segments.into_iter().filter(|segment| segment.to_us > after_us).filter_map(|segment| {
        if segment.from_us > after_us {
            return Some(segment);
        }
        // Each cell gives one frame, and this one is taken. Cells are counted with a tolerance of
        // a millisecond.
        let cell = segment.cell_us.max(1);
        let next_cell = after_us.saturating_add(1_000).div_euclid(cell).saturating_add(1);
        let from_us = next_cell.saturating_mul(cell).saturating_sub(1_000).max(after_us.saturating_add(1));
        let from_us = segment.from_us.max(from_us);
        let last_us = Some(after_us);
        (from_us < segment.to_us).then_some(Segment { from_us, last_us, ..segment })
    });
    rest.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use video::sampling::Looks;

    #[test]
    fn a_part_ends_at_a_cut_after_half_a_minute_or_after_a_minute() {
        let mut clock = PartClock::default();
        let second = 1_000_000;
        let cuts = [20, 31, 40, 70];
        let found: Vec<i64> = (0..200)
            .filter(|at| clock.begins(5_000_000 + at * second, cuts.contains(at), *at == 80))
            .collect();
        // The part that began at 70 s is full after 10 s.
        assert_eq!(found, [31, 70, 80, 140]);
    }

    #[test]
    fn the_rest_of_a_video_continues_with_the_next_frame() {
        let segment = |from_us, to_us, cell_us| Segment {
            from_us,
            to_us,
            looks: Looks::All,
            cell_us,
            max_gap_us: 0,
            last_us: None,
        };
        let rest = |from_us, to_us, cell_us, last_us| Segment {
            last_us: Some(last_us),
            ..segment(from_us, to_us, cell_us)
        };
        let all = vec![segment(0, 4_000_000, 200_000), segment(4_000_000, i64::MAX, 2_000_000)];
        // The frame at 1.04 s is the first one of the cell from 1.0 s.
        assert_eq!(
            remaining(all.clone(), 1_040_000),
            [rest(1_199_000, 4_000_000, 200_000, 1_040_000), all[1].clone()]
        );
        // A frame at 0.9995 s counts to the cell from 1 s.
        assert_eq!(remaining(all.clone(), 999_500)[0].from_us, 1_199_000);
        assert_eq!(remaining(all.clone(), 3_999_500), [all[1].clone()]);
        assert_eq!(remaining(all, 5_000_000), [rest(5_999_000, i64::MAX, 2_000_000, 5_000_000)]);
        assert_eq!(remaining(vec![segment(0, i64::MAX, 1)], 77), [rest(78, i64::MAX, 1, 77)]);
    }
}
