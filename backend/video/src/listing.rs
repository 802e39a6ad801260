//! Lists the keyframes of a video without decoding it.
//!
//! ffmpeg copies the packets to its format `framecrc`, a line for each packet:
//! `stream, dts, pts, duration, size, checksum[, F=0x0]`. Flags are written unless the packet is a
//! keyframe and nothing else: <https://ffmpeg.org/ffmpeg-formats.html#framecrc>.

use crate::child::Process;
use crate::cpu::CpuBudget;
use crate::error::{Damage, VideoError};
use crate::index::{Index, Timeline, microseconds, parse_ratio};
use crate::messages::{MAX_STREAMS, Messages};
use crate::{Decoder, arguments};
use std::fs::File;
use std::io::{BufRead, Read};
use std::process::ExitStatus;
use std::time::Duration;

/// Maximum number of keyframes: 6 hours with 60 keyframes per second.
const MAX_KEYFRAMES: usize = 1_300_000;
/// Flags of a packet: <https://ffmpeg.org/doxygen/trunk/group__lavc__packet.html>.
const KEY_FLAG: u32 = 1;
const CORRUPT_FLAG: u32 = 2;
/// The packet is decoded but not shown, for example before the start of an edit list.
const DISCARD_FLAG: u32 = 4;
/// Half of the time after which the clock of a transport stream overflows: 2^33 / 90 kHz.
const WRAP_US: u64 = 47_721_858_844;
/// Largest ratio of the sides of a pixel. Real formats stay below 3; other values are errors.
const MAX_ASPECT: f64 = 4.0;
/// Containers whose timestamps ffmpeg can continue after a jump.
const CONTINUABLE_CONTAINERS: [&str; 2] = ["mpegts", "mpeg"];
/// The accepted codecs, as ffmpeg names them.
const ACCEPTED_CODECS: [&str; 8] = ["h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mpeg2video", "mjpeg"];
/// Maximum length of the name of a codec, in characters.
const MAX_CODEC_CHARACTERS: usize = 30;
/// Maximum length of a line in bytes.
const MAX_LINE: u64 = 400;

impl Decoder {
    /// Lists the keyframes of `video`. It blocks until the file is read.
    ///
    /// # Errors
    /// Fails with [`VideoError`] if the file is not a video, or exceeds the limits.
    pub fn index(&self, video: &File) -> Result<Index, VideoError> {
        let budget = self.listing_budget(video.metadata()?.len());
        let mut listed = self.list_packets(video, Timeline::Stored, 0, &budget)?;
        if listed.messages.video_streams > 1 {
            // A cover image that is not marked as such can be the first stream.
            let stream = self.main_stream(video, &budget)?;
            if stream > 0 {
                listed = self.list_packets(video, Timeline::Stored, stream, &budget)?;
            }
        }
        let stream = listed.stream;
        let (mut index, mut timestamps_go_back) = self.build_index(listed, &budget)?;
        if timestamps_go_back && CONTINUABLE_CONTAINERS.contains(&index.container.as_str()) {
            let continued = self.list_packets(video, Timeline::Continued, stream, &budget)?;
            (index, timestamps_go_back) = self.build_index(continued, &budget)?;
        }
        if timestamps_go_back {
            let message = "timestamps go back; frames after that may be missing".into();
            index.damage.get_or_insert(Damage { truncated: false, message });
        }
        self.check_limits(&index)?;
        Ok(index)
    }

    fn list_packets(
        &self,
        video: &File,
        timeline: Timeline,
        stream: usize,
        budget: &CpuBudget,
    ) -> Result<ListedStream, VideoError> {
        let mut process = self.start(&arguments::index(1, timeline, stream), Some(video), budget)?;
        let listing = Listing::read(&mut process)?;
        let (status, messages) = process.finish()?;
        Ok(ListedStream { listing, timeline, stream, status, messages })
    }

    /// Also returns whether timestamps go back, so that frames would be missed.
    fn build_index(&self, listed: ListedStream, budget: &CpuBudget) -> Result<(Index, bool), VideoError> {
        let ListedStream { listing, timeline, stream, status, messages } = listed;
        let timestamps_go_back = messages.timestamps_go_back || listing.wraps;
        let budget = budget.for_frames(listing.frames, self.config().limits.max_cpu);
        let mut index = Index { budget, timeline, stream, ..listing.into_index(messages, stream)? };
        if timeline == Timeline::Continued {
            index.duration_us = Some(index.end_us);
        }
        if !status.success() && index.damage.is_none() {
            index.damage = Some(Damage::from_status(status));
        }
        Ok((index, timestamps_go_back))
    }

    /// Returns the number of the main stream; see [`select_main_stream`]. It is 0 if the streams
    /// cannot be listed together.
    fn main_stream(&self, video: &File, budget: &CpuBudget) -> Result<usize, VideoError> {
        let mut process = self.start(&arguments::streams(1), Some(video), budget)?;
        let mut streams = vec![CandidateStream::default(); MAX_STREAMS];
        for_each_line(&mut process, |line| {
            add_stream_line(&mut streams, line);
            Ok(())
        })?;
        process.finish()?;
        Ok(select_main_stream(&streams))
    }

    fn check_limits(&self, index: &Index) -> Result<(), VideoError> {
        let (limits, last) = (&self.config().limits, index.keyframes_us.last().copied().unwrap_or(0));
        let microseconds = index.duration_us.unwrap_or(0).max(last).unsigned_abs();
        let actual = Duration::from_micros(microseconds);
        if actual > limits.max_duration {
            return Err(VideoError::TooLong { actual, limit: limits.max_duration });
        }
        let (width, height, limit) = (index.width, index.height, limits.max_pixels);
        if u64::from(width) * u64::from(height) > limit {
            return Err(VideoError::TooManyPixels { width, height, limit });
        }
        Ok(())
    }
}

struct ListedStream {
    listing: Listing,
    timeline: Timeline,
    stream: usize,
    status: ExitStatus,
    messages: Messages,
}

/// The properties that decide which stream is the main one.
#[derive(Clone, Debug, Default)]
struct CandidateStream {
    codec: String,
    pixels: u64,
    packets: u64,
}

/// Adds the content of a line to the stream to which the line belongs.
fn add_stream_line(streams: &mut [CandidateStream], line: &str) {
    match line.strip_prefix('#') {
        // Such as `#dimensions 1: 480x480`.
        Some(header) => {
            let Some((name, value)) = header.split_once(": ") else { return };
            let Some((name, stream)) = name.trim().split_once(' ') else { return };
            let Some(stream) = stream.parse().ok().and_then(|at: usize| streams.get_mut(at)) else { return };
            match name {
                "codec_id" => stream.codec = value.trim().chars().take(MAX_CODEC_CHARACTERS).collect(),
                "dimensions" => {
                    let (width, height) = parse_size(value.trim());
                    stream.pixels = u64::from(width) * u64::from(height);
                }
                _ => {}
            }
        }
        None => {
            let stream = line.split(',').next().and_then(|at| at.trim().parse().ok());
            if let Some(stream) = stream.and_then(|at: usize| streams.get_mut(at)) {
                stream.packets += 1;
            }
        }
    }
}

/// Returns the number of the main stream: the one with the largest frames among those that have at
/// least half as many frames as the longest one. Ignores streams whose codec is not accepted.
/// Selects a stream of a single MJPEG frame, which may be a cover image, only if there is no other.
/// Among equal streams, selects the first one.
fn select_main_stream(streams: &[CandidateStream]) -> usize {
    let accepted =
        || streams.iter().enumerate().filter(|(_, item)| ACCEPTED_CODECS.contains(&item.codec.as_str()));
    let max_packets = accepted().map(|(_, item)| item.packets).max().unwrap_or(0);
    let long = accepted().filter(|(_, item)| item.packets > 0 && item.packets >= max_packets.div_ceil(2));
    let is_cover = |item: &CandidateStream| item.packets == 1 && item.codec == "mjpeg";
    let best = long.max_by_key(|(index, item)| (!is_cover(item), item.pixels, std::cmp::Reverse(*index)));
    best.map_or(0, |(index, _)| index)
}

fn for_each_line(
    process: &mut Process,
    mut read: impl FnMut(&str) -> Result<(), VideoError>,
) -> Result<(), VideoError> {
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut process.pixels).take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(process.read_error(error)),
        }
        read(str::from_utf8(&line).map_err(|_| VideoError::Output("a line that is not text"))?)?;
    }
}

/// Parses `640x360`; the result is zero for other texts.
fn parse_size(size: &str) -> (u32, u32) {
    let sides = size.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    sides.unwrap_or_default()
}

#[derive(Default)]
struct Listing {
    time_base: Option<(i64, i64)>,
    codec: String,
    size: (u32, u32),
    /// Width and height of a pixel.
    pixel: Option<(i64, i64)>,
    keyframes_us: Vec<i64>,
    frames: u64,
    /// Time of the first frame that is shown.
    origin_us: Option<i64>,
    /// Time of the last frame that is shown.
    last_us: i64,
    /// Time of the last packet.
    previous_us: Option<i64>,
    /// Whether times jump by more than [`WRAP_US`]. ffmpeg treats a jump back in a transport stream
    /// as an overflow of the clock.
    wraps: bool,
}

impl Listing {
    fn read(process: &mut Process) -> Result<Self, VideoError> {
        let mut listing = Self::default();
        for_each_line(process, |line| {
            listing.add_line(line);
            match listing.keyframes_us.len() {
                0..=MAX_KEYFRAMES => Ok(()),
                _ => Err(VideoError::Output("too many keyframes")),
            }
        })?;
        Ok(listing)
    }

    fn add_line(&mut self, line: &str) {
        match line.strip_prefix('#') {
            Some(header) => self.add_header(header.trim()),
            None => self.add_packet(line.trim()),
        }
    }

    /// Adds a line such as `#tb 0: 1/12800`.
    fn add_header(&mut self, line: &str) {
        match line.split_once(" 0: ") {
            Some(("tb", base)) => self.time_base = parse_ratio(base),
            Some(("sar", ratio)) => self.pixel = parse_ratio(ratio),
            Some(("codec_id", codec)) => self.codec = codec.chars().take(MAX_CODEC_CHARACTERS).collect(),
            Some(("dimensions", size)) => self.size = parse_size(size),
            _ => {}
        }
    }

    /// Adds the line of a packet. AVI files contain only the times of decoding. A packet without a
    /// time is ignored.
    fn add_packet(&mut self, line: &str) {
        let mut fields = line.split(',').map(str::trim);
        let mut time = |skip| fields.nth(skip)?.parse().ok().filter(|time| *time != i64::MIN);
        let (dts, pts) = (time(1), time(0));
        let (Some(pts), Some(base)) = (pts.or(dts), self.time_base) else { return };
        let flags = fields.find_map(|field| field.strip_prefix("F=0x"));
        let flags = flags.map_or(KEY_FLAG, |flags| u32::from_str_radix(flags, 16).unwrap_or(0));
        let Some(at_us) = microseconds(pts, base).filter(|_| flags & DISCARD_FLAG == 0) else { return };
        self.frames += 1;
        self.wraps |= self.previous_us.is_some_and(|previous| at_us.abs_diff(previous) > WRAP_US);
        self.previous_us = Some(at_us);
        self.last_us = self.origin_us.map_or(at_us, |_| self.last_us.max(at_us));
        self.origin_us = Some(self.origin_us.map_or(at_us, |first| first.min(at_us)));
        if flags & KEY_FLAG != 0 && flags & CORRUPT_FLAG == 0 {
            self.keyframes_us.push(at_us);
        }
    }

    fn into_index(mut self, messages: Messages, stream: usize) -> Result<Index, VideoError> {
        self.keyframes_us.sort_unstable();
        self.keyframes_us.dedup();
        let (Some(origin_us), false) = (self.origin_us, self.keyframes_us.is_empty()) else {
            return Err(messages.failure());
        };
        if !ACCEPTED_CODECS.contains(&self.codec.as_str()) {
            return Err(VideoError::Codec);
        }
        let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        let aspect = self.pixel.map_or(1.0, |(width, height)| width as f64 / height as f64);
        let aspect = if (1.0 / MAX_ASPECT..=MAX_ASPECT).contains(&aspect) { aspect } else { 1.0 };
        // In a recording, a second stream usually starts after a change of the channel.
        let container = messages.container.unwrap_or_default();
        let is_recording = CONTINUABLE_CONTAINERS.contains(&container.as_str());
        let other_streams = (is_recording && messages.video_streams > 1).then(|| Damage {
            truncated: false,
            message: format!("there are {} streams of video; only one was read", messages.video_streams),
        });
        let facts = messages.streams.into_iter().nth(stream).unwrap_or_default();
        let last_us = self.last_us.saturating_sub(origin_us);
        let frame_us = last_us / i64::try_from(self.frames).unwrap_or(i64::MAX).saturating_sub(1).max(1);
        Ok(Index {
            container,
            codec: self.codec,
            width: enlarge(self.size.0, aspect),
            height: enlarge(self.size.1, aspect.recip()),
            aspect,
            duration_us: messages.duration.map(micros),
            keyframes_us: self.keyframes_us.into_iter().map(|at| at.saturating_sub(origin_us)).collect(),
            damage: messages.damage.or(other_streams),
            origin_us,
            last_us,
            end_us: last_us.saturating_add(frame_us),
            frame_us,
            hdr: facts.hdr,
            gpu: facts.gpu,
            ..Index::default()
        })
    }
}

/// Returns `side` multiplied by `factor`, but at least `side`.
fn enlarge(side: u32, factor: f64) -> u32 {
    (f64::from(side) * factor.max(1.0)).round() as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn listing(text: &str) -> Listing {
        let mut listing = Listing::default();
        text.lines().for_each(|line| listing.add_line(line));
        listing
    }

    #[test]
    fn lists_keyframes_in_microseconds_from_first() {
        let text = "#software: Lavf\n#tb 0: 1/90000\n#media_type 0: video\n#codec_id 0: h264\n#dimensions 0: 640x360\n\
                    0, 126000, 133200, 3600, 100, 0x1, S=1\n0, 129600, 136800, 3600, 10, 0x2, F=0x0\n0, 1, 313200, 3600, 9, 0x3\n0, x\n";
        let text = &format!(
            "{text}0, 129600, 400000, 3600, 9, 0x3, F=0x10\n0, 1, 493200, 3600, 9, 0x3, F=0x11\n0, 1, 583200, 1, 9, 0x3, F=0x3\n0, 1, 0, 1, 9, 0x3, F=0x5\n"
        );
        let index = listing(text).into_index(Messages::default(), 0).unwrap();
        assert_eq!((index.codec.as_str(), index.width, index.height), ("h264", 640, 360));
        assert_eq!((index.origin_us, index.keyframes_us), (1_480_000, vec![0, 2_000_000, 4_000_000]));
        assert_eq!(index.last_us, 5_000_000);
    }

    #[test]
    fn selects_long_video_stream_with_accepted_codec() {
        let main = |streams: &[(&str, &str, usize)]| {
            let mut candidates = vec![CandidateStream::default(); MAX_STREAMS];
            for (at, (codec, size, packets)) in streams.iter().enumerate() {
                add_stream_line(&mut candidates, &format!("#codec_id {at}: {codec}\n"));
                add_stream_line(&mut candidates, &format!("#dimensions {at}: {size}\n"));
                (0..*packets)
                    .for_each(|_| add_stream_line(&mut candidates, &format!("{at}, 0, 0, 1, 9, 0x1\n")));
            }
            select_main_stream(&candidates)
        };
        for cover in ["mjpeg", "png", "bmp", "webp", "tiff", "gif"] {
            assert_eq!(main(&[(cover, "3000x3000", 1), ("h264", "640x360", 50)]), 1, "{cover}");
            assert_eq!(main(&[("h264", "640x360", 50), (cover, "3000x3000", 1)]), 0, "{cover}");
            assert_eq!(main(&[(cover, "640x360", 1), (cover, "8x8", 1), ("vp9", "8x8", 1)]), 2, "{cover}");
        }
        // Of two long streams, the one with larger frames, and otherwise the first one.
        assert_eq!(main(&[("h264", "640x360", 50), ("hevc", "1920x1080", 48)]), 1);
        assert_eq!(main(&[("h264", "640x360", 50), ("hevc", "1920x1080", 9)]), 0);
        assert_eq!(main(&[("mjpeg", "640x360", 50), ("h264", "640x360", 50)]), 0);
        assert_eq!(main(&[("prores", "640x360", 50), ("h264", "64x36", 5)]), 1);
        assert_eq!(main(&[("h264", "0x0", 0), ("x", "y", 1)]), 0);
    }

    proptest! {
        #[test]
        fn reading_arbitrary_listing_does_not_panic(text in "(#tb 0: )?.{0,100}", pts in any::<i64>(), base in (1..i64::MAX, 1..i64::MAX)) {
            listing(&text);
            let _ = microseconds(pts, base);
        }
    }
}
