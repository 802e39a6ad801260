//! Defines the properties of a video before any frame is decoded, and converts its times.

use crate::cpu::CpuBudget;
use crate::error::Damage;
use crate::gpu::GpuFacts;

/// The source of the times of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Timeline {
    /// The timestamps of the file.
    #[default]
    Stored,
    /// ffmpeg continues the timestamps where they jump, as in recordings that were joined. Decoding
    /// must start at the beginning of the file.
    Continued,
}

/// The colour properties that a video with high dynamic range declares. ffmpeg needs both values to
/// convert colours, so the value of BT.2100 replaces a missing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hdr {
    pub(crate) has_matrix: bool,
    pub(crate) has_primaries: bool,
}

impl Hdr {
    /// Parses the description of a stream, such as `yuv420p10le(tv, bt2020nc/bt2020/smpte2084)`. If
    /// all three values have the same name, it occurs only once.
    pub(crate) fn parse(stream: &str) -> Option<Self> {
        let is_part = |c: char| c == '/' || c == '-' || c.is_ascii_alphanumeric();
        let mut words = stream.split(|c| !is_part(c));
        let colours = words.find(|word| word.ends_with("smpte2084") || word.ends_with("arib-std-b67"))?;
        let mut values = colours.split('/').map(|value| !matches!(value, "unknown" | "reserved"));
        match (values.next(), values.next(), values.next()) {
            (Some(has_matrix), Some(has_primaries), Some(_)) => Some(Self { has_matrix, has_primaries }),
            _ => Some(Self { has_matrix: false, has_primaries: false }),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Index {
    /// Names of the container's format in ffmpeg, such as `matroska,webm`.
    pub container: String,
    /// Name of the codec in ffmpeg, such as `h264`.
    pub codec: String,
    /// Width of a frame in pixels, before rotation. If pixels are not square, frames are enlarged
    /// in one direction, as players show them.
    pub width: u32,
    /// Height of a frame in pixels, before rotation.
    pub height: u32,
    /// Duration in microseconds, as the container reports it.
    pub duration_us: Option<i64>,
    /// Times of the keyframes in microseconds, ascending.
    pub keyframes_us: Vec<i64>,
    /// The damage that the decoder reported before it decoded a frame.
    pub damage: Option<Damage>,
    /// Timestamp of the first frame in the container, in microseconds.
    pub origin_us: i64,
    /// Number of the stream among the video streams, from 0.
    pub(crate) stream: usize,
    /// Time of the last frame that is shown, in microseconds.
    pub(crate) last_us: i64,
    /// End of the last frame in microseconds, according to the times of the frames.
    pub(crate) end_us: i64,
    /// Mean time from one frame to the next in microseconds; 0 if there is only one.
    pub(crate) frame_us: i64,
    pub(crate) timeline: Timeline,
    /// The colours, if the video has high dynamic range.
    pub(crate) hdr: Option<Hdr>,
    /// Width of a pixel divided by its height.
    pub(crate) aspect: f64,
    /// The properties that decide whether a GPU decodes the video.
    pub(crate) gpu: GpuFacts,
    /// The processor time for this video, including the time for listing its frames.
    pub(crate) budget: CpuBudget,
}

impl Index {
    /// Returns the time of the last keyframe at or before `at_us` at which decoding can start.
    pub(crate) fn keyframe_before(&self, at_us: i64) -> i64 {
        if self.timeline == Timeline::Continued {
            return 0;
        }
        let next = self.keyframes_us.partition_point(|keyframe| *keyframe <= at_us);
        next.checked_sub(1).and_then(|last| self.keyframes_us.get(last)).copied().unwrap_or(0)
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
    const MAX_US: i128 = i64::MAX as i128 / 2;
    let scaled = (i128::from(timestamp) * i128::from(numerator)).checked_mul(1_000_000)?;
    let us = scaled.div_euclid(i128::from(denominator));
    (us.abs() <= MAX_US).then_some(us as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_missing_hdr_colour_properties() {
        let parse_colours = |colours: &str| {
            Hdr::parse(&format!(
                "  Stream #0:0: Video: hevc (Main 10), yuv420p10le({colours}), 64x64, 25 fps"
            ))
            .map(|hdr| (hdr.has_matrix, hdr.has_primaries))
        };
        assert_eq!(parse_colours("tv, bt2020nc/bt2020/smpte2084"), Some((true, true)));
        assert_eq!(parse_colours("tv, unknown/unknown/arib-std-b67, progressive"), Some((false, false)));
        assert_eq!(parse_colours("bt2020nc/unknown/smpte2084"), Some((true, false)));
        assert_eq!(parse_colours("tv, smpte2084"), Some((false, false)));
        assert_eq!(parse_colours("tv, bt709"), None);
    }
}
