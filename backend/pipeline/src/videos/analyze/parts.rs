//! Divides a video into parts. Nothing continues from one part to the next except the numbers of
//! tracks and people, so the analysis can be stored after each part and resumed there.
//!
//! Where a part ends depends only on its own frames. An analysis that is resumed therefore finds
//! the same tracks as one that was not interrupted.

use super::result::VideoTrack;
use video::shots::{CutDetector, ReducedFrame};

/// After this time or number of frames, a part ends at the next cut, where all tracks end anyway.
const MIN_US: i64 = 30_000_000;
const MIN_FRAMES: u32 = 300;
/// Longest part. All tracks end with it. A video lets one of another collection continue only at
/// the end of a part, so a part with many frames must not take minutes.
const MAX_US: i64 = 60_000_000;
const MAX_FRAMES: u32 = 600;

/// Decides which frames begin a part.
#[derive(Debug, Default)]
struct PartClock {
    /// Time of the first frame of the part.
    started_us: Option<i64>,
    /// Number of frames of the part.
    frames: u32,
}

impl PartClock {
    /// Returns whether a frame begins a new part. `cut` is whether it begins a new shot, and `full`
    /// is whether the part before must end. The first frame does not begin a new part.
    fn begins(&mut self, at_us: i64, cut: bool, full: bool) -> bool {
        let length = at_us.saturating_sub(*self.started_us.get_or_insert(at_us));
        let (us, frames) = if cut { (MIN_US, MIN_FRAMES) } else { (MAX_US, MAX_FRAMES) };
        let begins = full || length >= us || self.frames >= frames;
        if begins {
            *self = Self { started_us: Some(at_us), frames: 0 };
        }
        self.frames += 1;
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
    pub(super) shot: bool,
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_part_ends_at_a_cut_after_300_frames_or_after_600() {
        let mut clock = PartClock::default();
        let cuts = [200, 350, 700];
        let found: Vec<i64> =
            (0..2_000).filter(|frame| clock.begins(frame * 33_333, cuts.contains(frame), false)).collect();
        assert_eq!(found, [350, 700, 1_300, 1_900]);
    }
}
