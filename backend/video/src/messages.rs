//! Parses the messages of ffmpeg on stderr. They can contain text from the file, so a file can
//! forge them. Their length is limited. They determine only the name of the container, the
//! duration, whether colours are mapped, and the description of a failure.

use crate::error::{Damage, VideoError};
use crate::gpu::GpuFacts;
use crate::index::Hdr;
use crate::sandbox::REPORT_PREFIX;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

/// Maximum number of streams among which the main one is chosen.
pub(crate) const MAX_STREAMS: usize = 8;
/// Maximum number of bytes of a line; the rest is ignored.
const MAX_LINE: u64 = 1_000;
/// Maximum number of lines that are parsed; the rest is ignored.
const MAX_LINES: usize = 2_000;
/// Maximum length of a message for people, in characters.
const MAX_MESSAGE: usize = 200;
/// Parts of messages about a file whose end is missing.
const TRUNCATION_HINTS: [&str; 4] =
    ["partial file", "moov atom not found", "File ended prematurely", "Truncated packet"];

/// Parts of messages about streams whose codec is not accepted.
const UNSUPPORTED_CODEC_HINTS: [&str; 2] =
    ["not on whitelist", "Failed to open codec in avformat_find_stream_info"];

/// The description of a video stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamFacts {
    /// The colours, if the video has a transfer function of high dynamic range (PQ or HLG).
    pub(crate) hdr: Option<Hdr>,
    pub(crate) gpu: GpuFacts,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Messages {
    pub(crate) sandbox_failure: Option<String>,
    /// Whether the child uses Landlock; `None` without a sandbox.
    pub(crate) landlock: Option<bool>,
    /// Names of the container's format, such as `mov,mp4,m4a,3gp,3g2,mj2`.
    pub(crate) container: Option<String>,
    pub(crate) duration: Option<Duration>,
    /// The descriptions of the first video streams, at most [`MAX_STREAMS`].
    pub(crate) streams: Vec<StreamFacts>,
    /// The first error or warning about damage.
    pub(crate) damage: Option<Damage>,
    pub(crate) timestamps_go_back: bool,
    /// Number of video streams, without cover images that are marked as such.
    pub(crate) video_streams: usize,
    /// Whether the next lines describe the last stream of `streams`.
    is_in_stream: bool,
    /// Whether the description of the input is complete.
    is_input_described: bool,
    has_no_video: bool,
    pub(crate) first_line: Option<String>,
    last_error: Option<String>,
}

impl Messages {
    pub(crate) fn read(stderr: impl Read) -> Self {
        let (mut stderr, mut messages) = (BufReader::new(stderr), Self::default());
        let mut lines = 0;
        let mut line = Vec::new();
        loop {
            line.clear();
            match stderr.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return messages,
                // A child that writes without end must not fill the memory, nor block on its pipe.
                Ok(_) if lines >= MAX_LINES => {}
                Ok(_) => messages.add_line(String::from_utf8_lossy(&line).trim_end()),
            }
            lines += 1;
        }
    }

    fn add_line(&mut self, line: &str) {
        // Later lines can contain text from the file.
        if let Some(report) = line.strip_prefix(REPORT_PREFIX).filter(|_| self.first_line.is_none()) {
            match report.trim() {
                "landlock" => self.landlock = Some(true),
                "no landlock" => self.landlock = Some(false),
                other => self.sandbox_failure = Some(sanitize(other.trim_start_matches("error: "))),
            }
            return;
        }
        if self.first_line.is_none() {
            self.first_line = Some(sanitize(line));
        }
        let (level, text) = split_level(line);
        match level {
            Some("error" | "fatal" | "panic") => self.add_error(text),
            // Older versions write "Non-monotonous".
            Some("warning") if text.contains("Non-monoton") => self.timestamps_go_back = true,
            Some("warning") if text.contains("New video stream") => self.video_streams += 1,
            Some("warning") if TRUNCATION_HINTS.iter().any(|hint| text.contains(hint)) => {
                self.add_error(text)
            }
            Some("info") => self.add_fact(text),
            _ => {}
        }
    }

    fn add_error(&mut self, text: &str) {
        // Audio and subtitles are not decoded, so their codecs are not on the list.
        if UNSUPPORTED_CODEC_HINTS.iter().any(|hint| text.contains(hint)) {
            return;
        }
        let contains = |hint| text.contains(hint);
        self.has_no_video |= contains("matches no streams") || contains("does not contain any stream");
        let truncated = TRUNCATION_HINTS.iter().any(|hint| text.contains(hint));
        let damage = self.damage.get_or_insert_with(|| Damage { truncated, message: sanitize(text) });
        damage.truncated |= truncated;
        self.last_error = Some(sanitize(text));
    }

    /// Parses a line of the description of the input. Lines of metadata start with four spaces.
    fn add_fact(&mut self, text: &str) {
        if let Some(rest) = text.strip_prefix("Input #0, ") {
            self.container = rest.split_once(", from").map(|(names, _)| sanitize(names));
        } else if let Some(rest) = text.strip_prefix("  Duration: ") {
            self.duration = rest.split_once(',').and_then(|(time, _)| parse_duration(time));
        } else if text.starts_with("Stream mapping:") {
            self.is_input_described = true;
        } else if !self.is_input_described && text.starts_with("  Stream #0:") {
            let is_video = text.contains(": Video: ") && !text.contains("(attached pic)");
            self.video_streams += usize::from(is_video);
            self.is_in_stream = is_video && self.streams.len() < MAX_STREAMS;
            if self.is_in_stream {
                let pixel_format = pixel_format(text).unwrap_or_default();
                let gpu = GpuFacts { pixel_format, ..GpuFacts::default() };
                self.streams.push(StreamFacts { hdr: Hdr::parse(text), gpu });
            }
        } else if let Some(stream) =
            self.streams.last_mut().filter(|_| self.is_in_stream && !self.is_input_described)
        {
            // Older versions write "displaymatrix".
            let text = text.trim_start();
            stream.gpu.is_rotated |=
                text.starts_with("Display Matrix:") || text.starts_with("displaymatrix:");
        }
    }

    /// Returns the first and the last error.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &str> {
        let first = self.damage.as_ref().map(|damage| damage.message.as_str());
        first.into_iter().chain(self.last_error.as_deref())
    }

    /// Returns the error of a file from which no frame was read.
    pub(crate) fn failure(&self) -> VideoError {
        let last = self.last_error.clone().unwrap_or_else(|| "the decoder gave no reason".into());
        let is_truncated = self.damage.as_ref().is_some_and(|damage| damage.truncated);
        if self.has_no_video {
            VideoError::NoVideoStream
        } else if self.container.is_none() && !is_truncated {
            VideoError::NotAVideo
        } else {
            VideoError::Undecodable(last)
        }
    }
}

/// Parses `yuv420p` in `  Stream #0:0: Video: h264 (High), yuv420p(tv, bt709), 64x64`.
fn pixel_format(stream: &str) -> Option<String> {
    let (_, rest) = stream.split_once(": Video: ")?.1.split_once(", ")?;
    let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
    (!name.is_empty()).then(|| sanitize(name))
}

/// Splits `[mov @ 0x55] [error] text` into the level and the text; without a level, the whole line.
fn split_level(line: &str) -> (Option<&str>, &str) {
    let mut rest = line;
    while let Some((word, remainder)) = rest.strip_prefix('[').and_then(|inner| inner.split_once("] ")) {
        if ["panic", "fatal", "error", "warning", "info"].contains(&word) {
            return (Some(word), remainder);
        }
        rest = remainder;
    }
    (None, line)
}

/// Returns `text` without control characters, truncated to [`MAX_MESSAGE`] characters.
fn sanitize(text: &str) -> String {
    text.trim().chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect()
}

/// Parses `HH:MM:SS.cc`.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut parts = text.trim().splitn(3, ':');
    let hours: u32 = parts.next()?.parse().ok()?;
    let minutes: u32 = parts.next()?.parse().ok()?;
    let seconds: f64 = parts.next()?.parse().ok()?;
    let full_minutes = f64::from(hours) * 3600.0 + f64::from(minutes) * 60.0;
    Duration::try_from_secs_f64(full_minutes + seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANNER: &str = "facecrawl sandbox: landlock
[info] Input #0, mov,mp4,m4a,3gp,3g2,mj2, from 'fd:':
[info]   Metadata:
[info]     title           : Stream #0:9: Video: smpte2084
[info]   Duration: 01:02:03.50, start: 0.000000, bitrate: 4096 kb/s
[info]   Stream #0:0[0x1](und): Video: h264 (High), yuv420p(progressive), 1920x1080, 25 fps
[mov,mp4,m4a,3gp,3g2,mj2 @ 0x5635bd658840] [error] stream 0, offset 0x1f: partial file
";

    #[test]
    fn reads_stream_facts_and_first_error() {
        let facts = Messages::read(BANNER.as_bytes());
        assert_eq!(facts.landlock, Some(true));
        assert_eq!(facts.container.as_deref(), Some("mov,mp4,m4a,3gp,3g2,mj2"));
        assert_eq!(facts.duration, Some(Duration::from_millis(3_723_500)));
        assert_eq!((facts.video_streams, facts.streams.len()), (1, 1), "metadata is not a stream");
        let StreamFacts { hdr, gpu } = &facts.streams[0];
        assert_eq!((hdr, gpu.pixel_format.as_str(), gpu.is_rotated), (&None, "yuv420p", false));
        assert!(
            facts.damage.is_some_and(|damage| damage.truncated && damage.message.ends_with("partial file"))
        );
    }

    #[test]
    fn detects_rotated_frames_in_every_ffmpeg_version() {
        for line in ["Display Matrix: rotation of 90.00 degrees", "displaymatrix: rotation of -0.00 degrees"]
        {
            let is_rotated = |text: String| -> Vec<bool> {
                Messages::read(text.as_bytes()).streams.iter().map(|stream| stream.gpu.is_rotated).collect()
            };
            assert_eq!(is_rotated(format!("{BANNER}[info]       {line}\n")), [true], "{line}");
            let output = format!("{BANNER}[info] Stream mapping:\n[info]       {line}\n");
            assert_eq!(is_rotated(output), [false], "of the output");
            let second = "[info]   Stream #0:1: Video: mjpeg (Baseline), yuvj420p(pc), 64x64";
            let other = format!("{BANNER}{second}\n[info]       {line}\n");
            assert_eq!(is_rotated(other), [false, true], "of another stream");
            let cover = format!("{BANNER}{second} (attached pic)\n[info]       {line}\n");
            assert_eq!(is_rotated(cover), [false], "of a cover image");
        }
    }

    #[test]
    fn long_ffmpeg_messages_are_bounded() {
        let line = format!("[error] {}\n", "x".repeat(100_000));
        let facts = Messages::read(line.repeat(30).as_bytes());
        assert!(facts.damage.is_some_and(|damage| damage.message.len() == MAX_MESSAGE));
        let stream = "[info]   Stream #0:0: Video: smpte2084\n";
        let late = format!("{}{stream}", "\n".repeat(MAX_LINES));
        assert_eq!(Messages::read(late.as_bytes()).video_streams, 0);
        assert_eq!(Messages::read(stream.repeat(100).as_bytes()).streams.len(), MAX_STREAMS);
    }
}
