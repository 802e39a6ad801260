//! Which frames of a video are decoded: a pure function of its keyframes.
//!
//! A keyframe costs about three times as much to decode as another frame, but it needs no other
//! frame. Between two keyframes, all frames must be decoded to reach the last one.

use crate::index::Index;

/// Which frames are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sampling {
    /// Only keyframes, however far apart they are.
    Keyframes,
    /// This number of frames a second, from [`MIN_FPS`] to [`MAX_FPS`].
    Fps(f64),
    /// Keyframes where they are at most `max_gap_us` apart, and otherwise frames at this distance.
    /// A face that shows for this time is looked at.
    #[default]
    Auto,
}

/// Lowest rate of [`Sampling::Fps`] in frames a second.
pub const MIN_FPS: f64 = 0.1;
/// Highest rate of [`Sampling::Fps`] in frames a second.
pub const MAX_FPS: f64 = 30.0;
/// Default of the longest time without a look, in microseconds.
pub const MAX_GAP_US: i64 = 2_000_000;

/// The text is no sampling.
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

/// What the decoder returns in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// Keyframes; other frames are not decoded.
    Keyframes,
    /// Any frames; all frames are decoded.
    All,
}

/// A part of a video that is decoded in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Start in microseconds, inclusive.
    pub from_us: i64,
    /// End in microseconds, exclusive; `i64::MAX` for the end of the file.
    pub to_us: i64,
    /// Which frames are decoded.
    pub looks: Looks,
    /// Length of a cell in microseconds. Of each cell, the first of these frames is returned. Cells
    /// start at time 0.
    pub cell_us: i64,
}

/// Returns the segments of a video in order. They do not overlap and cover the whole video.
/// `max_gap_us` is the longest time without a look of [`Sampling::Auto`].
pub fn plan(index: &Index, sampling: Sampling, max_gap_us: i64) -> Vec<Segment> {
    let whole = |looks, cell_us| Segment { from_us: 0, to_us: i64::MAX, looks, cell_us };
    let max_gap_us = max_gap_us.max(1);
    match sampling {
        Sampling::Keyframes => vec![whole(Looks::Keyframes, 1)],
        Sampling::Fps(fps) => {
            vec![whole(Looks::All, (1e6 / fps.clamp(MIN_FPS, MAX_FPS)).round() as i64)]
        }
        Sampling::Auto => automatic(index, max_gap_us),
    }
}

fn automatic(index: &Index, max_gap_us: i64) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let starts = &index.keyframes_us;
    for (at, &start) in starts.iter().enumerate() {
        let end = starts.get(at + 1).copied();
        // The end of the last group is the end of the video, if it is known.
        let length = end.or(index.duration_us).map(|end| end.saturating_sub(start));
        let dense = length.is_some_and(|length| length <= max_gap_us);
        // Keyframes that are closer than half of the gap are thinned out: two of them in
        // neighbouring cells are less than two cells apart.
        let (looks, cell_us) =
            if dense { (Looks::Keyframes, (max_gap_us / 2).max(1)) } else { (Looks::All, max_gap_us) };
        let from_us = if at == 0 { 0 } else { start };
        let to_us = end.unwrap_or(i64::MAX);
        match segments.last_mut() {
            Some(last) if last.looks == looks => last.to_us = to_us,
            _ => segments.push(Segment { from_us, to_us, looks, cell_us }),
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(keyframes_us: Vec<i64>, duration_us: Option<i64>) -> Index {
        Index { keyframes_us, duration_us, ..Index::default() }
    }

    #[test]
    fn dense_keyframes_suffice_and_long_groups_are_decoded() {
        let second = 1_000_000;
        let index = index(vec![0, 2 * second, 4 * second, 14 * second, 15 * second], Some(16 * second));
        let segments = plan(&index, Sampling::Auto, 2 * second);
        let of = |from, to, looks, cell_us| Segment { from_us: from, to_us: to, looks, cell_us };
        assert_eq!(
            segments,
            [
                of(0, 4 * second, Looks::Keyframes, second),
                of(4 * second, 14 * second, Looks::All, 2 * second),
                of(14 * second, i64::MAX, Looks::Keyframes, second)
            ]
        );
    }

    proptest! {
        #[test]
        fn segments_cover_the_video_in_order(
            mut keyframes in proptest::collection::vec(0..100_000_000_i64, 1..50),
            duration in proptest::option::of(0..100_000_000_i64),
            gap in 0..10_000_000_i64,
        ) {
            keyframes.push(0);
            keyframes.sort_unstable();
            keyframes.dedup();
            let segments = plan(&index(keyframes, duration), Sampling::Auto, gap);
            prop_assert_eq!(segments[0].from_us, 0);
            prop_assert_eq!(segments[segments.len() - 1].to_us, i64::MAX);
            for pair in segments.windows(2) {
                prop_assert_eq!(pair[0].to_us, pair[1].from_us);
                prop_assert!(pair[0].looks != pair[1].looks);
            }
        }
    }
}
