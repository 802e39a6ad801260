//! The steps in which the frames of a video are analysed, and what remains of them after an
//! interruption.

use video::shots::ReducedFrame;
use video::{Looks, Segment};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// The frames of a segment.
    Decode(Segment),
    /// A frame that was analysed before and has no face.
    Known(KnownFrame),
}

/// A frame without a face.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownFrame {
    pub(super) at_us: i64,
    /// Width and height of the frame in pixels.
    pub(super) size: (u32, u32),
    /// What is compared with other frames to find cuts.
    pub(super) reduced: ReducedFrame,
}

/// Returns what remains of the steps after the frame at `after_us`. The next frame that is returned
/// is the one that would have followed.
pub(super) fn remaining(steps: Vec<Step>, after_us: i64) -> Vec<Step> {
    let rest = |step| match step {
        Step::Decode(segment) => rest_of(segment, after_us).map(Step::Decode),
        Step::Known(frame) => (frame.at_us > after_us).then_some(Step::Known(frame)),
    };
    steps.into_iter().filter_map(rest).collect()
}

fn rest_of(segment: Segment, after_us: i64) -> Option<Segment> {
    if segment.from_us > after_us {
        return Some(segment);
    }
    // Each cell yields one frame, and the frame of this cell was already returned. Cells are
    // counted with a tolerance of a millisecond.
    let cell = segment.cell_us.max(1);
    let next_cell = after_us.saturating_add(1_000).div_euclid(cell).saturating_add(1);
    let from_us = next_cell.saturating_mul(cell).saturating_sub(1_000).max(after_us.saturating_add(1));
    // A listed frame is returned at any position in its cell.
    let also_us: Vec<i64> = segment.also_us.iter().copied().filter(|at| *at > after_us).collect();
    let from_us = also_us.first().map_or(from_us, |listed| from_us.min(*listed));
    let last_us = match segment.looks {
        Looks::Keyframes => after_us,
        // The decoder may return a frame of the last cell, because its start is not exact.
        Looks::All => from_us - 1,
    };
    (from_us < segment.to_us).then_some(Segment { from_us, also_us, last_us: Some(last_us), ..segment })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(from_us: i64, to_us: i64, cell_us: i64) -> Segment {
        Segment {
            from_us,
            to_us,
            looks: Looks::All,
            cell_us,
            also_us: Vec::new(),
            max_gap_us: 0,
            last_us: None,
        }
    }

    #[test]
    fn the_rest_of_a_video_continues_with_the_next_frame() {
        let rest = |from_us, to_us, cell_us| {
            Step::Decode(Segment { last_us: Some(from_us - 1), ..segment(from_us, to_us, cell_us) })
        };
        let all = [segment(0, 4_000_000, 200_000), segment(4_000_000, i64::MAX, 2_000_000)];
        let all = all.map(Step::Decode).to_vec();
        // The frame at 1.04 s is the first one of the cell from 1.0 s.
        let expected = [rest(1_199_000, 4_000_000, 200_000), all[1].clone()];
        assert_eq!(remaining(all.clone(), 1_040_000), expected);
        // A frame at 0.9995 s counts to the cell from 1 s.
        assert_eq!(remaining(all.clone(), 999_500)[0], expected[0]);
        assert_eq!(remaining(all.clone(), 3_999_500), [all[1].clone()]);
        assert_eq!(remaining(all, 5_000_000), [rest(5_999_000, i64::MAX, 2_000_000)]);
    }

    #[test]
    fn the_rest_of_keyframes_does_not_contain_the_last_one() {
        let keyframes = Segment { looks: Looks::Keyframes, ..segment(0, i64::MAX, 1) };
        let rest = Segment { from_us: 78, last_us: Some(77), ..keyframes.clone() };
        assert_eq!(remaining(vec![Step::Decode(keyframes)], 77), [Step::Decode(rest)]);
    }

    #[test]
    fn listed_frames_and_known_ones_remain_if_they_are_later() {
        let reduced = ReducedFrame::of(&vision::Frame::filled(8, 8, [0; 3]));
        let known = |at_us| Step::Known(KnownFrame { at_us, size: (640, 360), reduced: reduced.clone() });
        let listed =
            Segment { also_us: vec![500_000, 610_000, 910_000], ..segment(400_000, 2_000_000, 250_000) };
        let steps = vec![known(300_000), Step::Decode(listed.clone()), known(2_000_000)];
        let rest = |from_us: i64, also_us: &[i64]| {
            let (also_us, last_us) = (also_us.to_vec(), Some(from_us - 1));
            Step::Decode(Segment { from_us, also_us, last_us, ..listed.clone() })
        };
        assert_eq!(remaining(steps.clone(), 520_000), [rest(610_000, &[610_000, 910_000]), known(2_000_000)]);
        assert_eq!(remaining(steps.clone(), 610_000), [rest(749_000, &[910_000]), known(2_000_000)]);
        // This frame counts to the cell from 2 s.
        assert_eq!(remaining(steps.clone(), 1_999_500), [known(2_000_000)]);
        assert_eq!(remaining(steps.clone(), 299_999), steps);
    }
}
