//! What is known about a video before any frame is decoded, and the conversion of its times.

use crate::cpu::CpuBudget;
use crate::error::Damage;

/// Where the times of frames come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Timeline {
    /// The timestamps of the file.
    #[default]
    Stored,
    /// ffmpeg continues the timestamps where they jump, as in recordings that were joined. Decoding
    /// must start at the beginning of the file.
    Continued,
}

/// What is known about a video before any frame is decoded.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// Names of the container's format in ffmpeg, such as `matroska,webm`.
    pub container: String,
    /// Name of the codec in ffmpeg, such as `h264`.
    pub codec: String,
    /// Width of the coded picture in pixels, before rotation.
    pub width: u32,
    /// Height of the coded picture in pixels, before rotation.
    pub height: u32,
    /// Duration in microseconds, as the container reports it.
    pub duration_us: Option<i64>,
    /// Times of the keyframes in microseconds, ascending.
    pub keyframes_us: Vec<i64>,
    /// What the decoder says about damage, before it decoded anything.
    pub damage: Option<Damage>,
    /// Time of the first frame in the time of the container, in microseconds.
    pub origin_us: i64,
    /// End of the last frame in microseconds, according to the times of the frames.
    pub(crate) end_us: i64,
    /// Mean time from one frame to the next in microseconds; 0 if there is only one.
    pub(crate) frame_us: i64,
    pub(crate) timeline: Timeline,
    /// Whether the video has high dynamic range.
    pub(crate) hdr: bool,
    /// The processor time for this video. What was used to list its frames counts.
    pub(crate) budget: CpuBudget,
}

impl Index {
    /// Returns the time of the last keyframe at or before `at_us` at which decoding can start.
    pub(crate) fn keyframe_before(&self, at_us: i64) -> i64 {
        if self.timeline == Timeline::Continued {
            return 0;
        }
        let after = self.keyframes_us.partition_point(|keyframe| *keyframe <= at_us);
        after.checked_sub(1).and_then(|last| self.keyframes_us.get(last)).copied().unwrap_or(0)
    }
}

/// Parses a time base such as `1/12800`.
pub(crate) fn parse_ratio(text: &str) -> Option<(i64, i64)> {
    let (numerator, denominator) = text.trim().split_once('/')?;
    let (numerator, denominator) = (numerator.parse().ok()?, denominator.parse().ok()?);
    (numerator > 0 && denominator > 0).then_some((numerator, denominator))
}

/// Converts a timestamp to microseconds, rounded down; `None` beyond 146,000 years.
pub(crate) fn microseconds(timestamp: i64, (numerator, denominator): (i64, i64)) -> Option<i64> {
    const YEARS: i128 = i64::MAX as i128 / 2;
    let scaled = (i128::from(timestamp) * i128::from(numerator)).checked_mul(1_000_000)?;
    let us = scaled.div_euclid(i128::from(denominator));
    (us.abs() <= YEARS).then_some(us as i64)
}
