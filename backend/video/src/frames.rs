//! Reads the frames of a segment with their times. The headers of frames are in the PPM format
//! ("P6"), as ffmpeg writes them: without comments, and with 255 as the maximum value of a sample.
//! Format: <https://netpbm.sourceforge.net/doc/ppm.html>.
use crate::arguments::Source;
use crate::child::Process;
use crate::error::{Damage, VideoError};
use crate::gpu::{GpuInput, GpuPlace, error_reason};
use crate::index::{microseconds, parse_ratio};
use crate::sampling::{Selection, TimedFrame};
use crate::{Decoder, Index, Segment, arguments};
use std::fs::File;
use std::io::{self, BufRead, Read};
use vision::Frame;

/// Maximum length of a line with a timestamp in bytes.
const MAX_LINE: u64 = 100;

/// Decodes the frames of one segment in order. Dropping it ends the process.
pub struct FrameReader {
    /// `None` after the end.
    process: Option<Process>,
    /// `None` if the CPU decodes.
    gpu: Option<GpuDecoding>,
    source: Source,
    to_us: i64,
    max_pixels: u64,
    /// Number of frames that the process wrote.
    frames_read: u64,
    last_us: Option<i64>,
    selection: Selection<TimedFrame>,
    damage: Option<Damage>,
    /// A buffer for the pixels of the next frame.
    buffer: Vec<u8>,
}

/// The values that the CPU needs to continue if the GPU fails.
struct GpuDecoding {
    place: GpuPlace,
    decoder: Decoder,
    video: File,
    index: Index,
    segment: Segment,
}

/// Memory of a decoder that does not depend on the size of the frames, in bytes.
const DECODER_BYTES: u64 = 48 << 20;
/// Memory of a decoder for each pixel of a frame, in bytes: reference frames, queued frames, and
/// the conversion to RGB.
const DECODER_BYTES_PER_PIXEL: u64 = 50;
/// Additional memory for each pixel and thread, in bytes.
const DECODER_BYTES_PER_PIXEL_AND_THREAD: u64 = 6;
/// Additional memory for each pixel with high dynamic range, in bytes.
const HDR_BYTES_PER_PIXEL: u64 = 52;

pub(crate) fn memory_bytes(pixels: u64, threads: u32, extra_per_pixel: u64) -> u64 {
    let per_thread = DECODER_BYTES_PER_PIXEL_AND_THREAD * u64::from(threads);
    DECODER_BYTES + pixels * (DECODER_BYTES_PER_PIXEL + per_thread + extra_per_pixel)
}

impl Decoder {
    /// Returns the memory in bytes that the process which decodes frames of `index` needs.
    ///
    /// Measured with ffmpeg 7.0 for H.264 with 16 references (4:2:0 and 4:4:4), HEVC of 10 bits,
    /// VP9 and AV1 at 640x360, 1920x1080 and 4096x2304, with 1, 2, 4 and 8 threads: H.264 in 4:4:4
    /// needs the most, and reaches this estimate. A file exceeds the estimate if its frames are
    /// larger than it declares.
    pub fn memory_bytes(&self, index: &Index) -> u64 {
        let pixels = u64::from(index.width) * u64::from(index.height);
        let hdr = index.hdr.map_or(0, |_| HDR_BYTES_PER_PIXEL);
        memory_bytes(pixels, self.config().threads, hdr)
    }

    /// Starts to decode the frames of a segment of [`plan`](crate::sampling::plan). The calling
    /// thread must live as long as the reader.
    ///
    /// # Errors
    /// Fails with [`VideoError::Io`] if the process cannot be started, with
    /// [`VideoError::CpuLimit`] if earlier segments have used up the processor time, and with
    /// [`VideoError::GpuOnly`].
    pub fn frames(&self, video: &File, index: &Index, segment: &Segment) -> Result<FrameReader, VideoError> {
        let start_us = index.keyframe_before(segment.from_us);
        let source = Source {
            origin_us: index.origin_us,
            hdr: index.hdr,
            has_square_pixels: index.aspect == 1.0,
            start_us,
            timeline: index.timeline,
            stream: index.stream,
        };
        let place =
            self.gpus.as_ref().map(|pool| pool.reserve(&index.codec, &index.gpu)).transpose()?.flatten();
        let input = place.as_ref().map(|(place, layout)| GpuInput {
            id: place.id(),
            layout: *layout,
            stop_at_errors: !place.pool.gpus.force_gpu,
        });
        let (threads, max_pixels) = (self.config().threads, self.config().limits.max_pixels);
        let arguments = arguments::frames(threads, max_pixels, &source, segment, input.as_ref());
        let variables = place.as_ref().map(|(place, _)| place.pool.gpus.variables.as_slice());
        let process = self.start_with(&arguments, Some(video), &index.budget, variables)?;
        let gpu_decoding = |(place, _)| {
            let (decoder, index, segment) = (self.clone(), index.clone(), segment.clone());
            Ok::<_, io::Error>(GpuDecoding { place, decoder, video: video.try_clone()?, index, segment })
        };
        Ok(FrameReader {
            process: Some(process),
            gpu: place.map(gpu_decoding).transpose()?,
            source,
            to_us: segment.to_us,
            max_pixels,
            frames_read: 0,
            // Decoding can start again at the frame with this time.
            last_us: segment.last_us,
            selection: Selection::new(segment),
            damage: None,
            buffer: Vec::new(),
        })
    }
}

impl FrameReader {
    /// Returns the next frame, or `None` at the end of the segment. It blocks.
    ///
    /// # Errors
    /// Fails with [`VideoError`]; no further frame follows.
    pub fn next_frame(&mut self) -> Result<Option<TimedFrame>, VideoError> {
        loop {
            if let Some(frame) = self.selection.take() {
                return Ok(Some(frame));
            }
            match self.decode_next()? {
                Some(frame) => {
                    let unused = self.selection.add(frame);
                    self.buffer = unused.map(|unused| unused.frame.into_data()).unwrap_or_default();
                }
                None => return Ok(self.selection.finish()),
            }
        }
    }

    fn decode_next(&mut self) -> Result<Option<TimedFrame>, VideoError> {
        loop {
            let Some(process) = &mut self.process else { return Ok(None) };
            let (origin_us, buffer) = (self.source.origin_us, &mut self.buffer);
            match read_frame(process, origin_us, self.frames_read, self.max_pixels, buffer) {
                Ok(Some(frame)) if frame.at_us < self.to_us => {
                    self.frames_read += 1;
                    // Timestamps of a broken file can go back. Such frames are ignored.
                    if self.last_us.is_some_and(|last| frame.at_us <= last) {
                        self.buffer = frame.frame.into_data();
                        continue;
                    }
                    self.last_us = Some(frame.at_us);
                    return Ok(Some(frame));
                }
                // This is the first frame after the segment, so the process is no longer needed.
                Ok(Some(_)) => {
                    let messages = self.process.take().map(Process::stop);
                    self.damage = messages.and_then(|messages| messages.damage);
                }
                Ok(None) => {
                    if let Err(error) = self.finish() {
                        self.continue_on_cpu(error)?;
                    }
                }
                Err(error) => {
                    self.process = None;
                    self.continue_on_cpu(error)?;
                }
            }
        }
    }

    /// Decodes the rest of the segment on the CPU after an error of the GPU. Frames that were
    /// already returned are decoded again and ignored.
    ///
    /// # Errors
    /// Fails with `error` if the CPU would fail too or has failed, and with
    /// [`VideoError::GpuFailed`] if the CPU must not decode.
    fn continue_on_cpu(&mut self, error: VideoError) -> Result<(), VideoError> {
        use VideoError::{Cancelled, CpuLimit, TooManyPixels};
        let Some(GpuDecoding { place, decoder, video, index, segment }) = self.gpu.take() else {
            return Err(error);
        };
        if matches!(error, Cancelled | CpuLimit(_) | TooManyPixels { .. }) {
            return Err(error);
        }
        let reason = error_reason(error);
        if place.pool.gpus.force_gpu {
            return Err(VideoError::GpuFailed(reason));
        }
        place.pool.fall_back(&index.gpu, &reason)?;
        drop(place);
        self.source.start_us = index.keyframe_before(segment.from_us.max(self.last_us.unwrap_or(0)));
        let (threads, max_pixels) = (decoder.config().threads, self.max_pixels);
        let arguments = arguments::frames(threads, max_pixels, &self.source, &segment, None);
        self.process = Some(decoder.start(&arguments, Some(&video), &index.budget)?);
        self.frames_read = 0;
        Ok(())
    }

    /// Returns the damage that the decoder reported. It is complete after the end of the segment.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Ends the process before the end of the segment. Returns the damage that it reported so far.
    pub fn stop(mut self) -> Option<Damage> {
        let messages = self.process.take().map(Process::stop);
        messages.and_then(|messages| messages.damage).or(self.damage)
    }

    /// Reuses the memory of a frame that is no longer needed for the next frame.
    pub fn recycle(&mut self, frame: Frame) {
        self.buffer = frame.into_data();
    }

    fn finish(&mut self) -> Result<(), VideoError> {
        let Some(process) = self.process.take() else { return Ok(()) };
        let (status, messages) = process.finish()?;
        if self.gpu.is_some() && !status.success() {
            let damage = messages.damage.unwrap_or_else(|| Damage::from_status(status));
            return Err(VideoError::Undecodable(damage.message));
        }
        if self.last_us.is_none() && !status.success() {
            return Err(messages.failure());
        }
        let status_damage = || Damage::from_status(status);
        self.damage = messages.damage.or_else(|| (!status.success()).then(status_damage));
        Ok(())
    }
}

/// Reads the next frame of a process that writes PPM images, and its time from `origin_us`.
/// `number` is the number of frames that were read before. Returns `None` at the end.
pub(crate) fn read_frame(
    process: &mut Process,
    origin_us: i64,
    number: u64,
    limit: u64,
    buffer: &mut Vec<u8>,
) -> Result<Option<TimedFrame>, VideoError> {
    let size = read_header(&mut process.pixels);
    let Some((width, height)) = size.map_err(|error| process.read_error(error))? else { return Ok(None) };
    let pixels = u64::from(width) * u64::from(height);
    if pixels > limit {
        return Err(VideoError::TooManyPixels { width, height, limit });
    }
    let bytes = usize::try_from(pixels * 3).map_err(|_| VideoError::Output("a frame too large"))?;
    let mut data = std::mem::take(buffer);
    data.resize(bytes, 0);
    match process.pixels.read_exact(&mut data) {
        // The process was killed or stopped in the middle of a frame.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(process.read_error(error)),
        Ok(()) => {}
    }
    let at_us = read_time(&mut process.times, number)
        .map_err(|error| process.read_error(error))?
        .and_then(|at| at.checked_sub(origin_us))
        .ok_or(VideoError::Output("a frame without a time"))?;
    let frame = Frame::new(width, height, data).ok_or(VideoError::Output("an empty frame"))?;
    Ok(Some(TimedFrame { at_us, frame }))
}

/// Reads the line of the frame with this number. Returns its time in microseconds, or `None` if the
/// line is invalid.
fn read_time(times: &mut impl BufRead, number: u64) -> io::Result<Option<i64>> {
    let mut line = Vec::new();
    times.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
    let parse = || {
        let mut words = str::from_utf8(&line).ok()?.split_ascii_whitespace();
        let is_same = words.next()?.parse() == Ok(number);
        let mut time = || microseconds(words.next()?.parse().ok()?, parse_ratio(words.next()?)?);
        // A frame of an AVI file has no timestamp. The second time is the count of its frames.
        let (timestamp, frame_count) = (time(), time());
        timestamp.or(frame_count).filter(|_| is_same)
    };
    Ok(parse())
}

/// Maximum length of a header in bytes: two sides of at most ten digits.
const MAX_HEADER: u64 = 40;

/// Reads a header. Returns the width and the height in pixels, or `None` at the end of the stream.
///
/// # Errors
/// Fails with `InvalidData` if the bytes are not such a header, and with the errors of `stream`.
fn read_header(stream: &mut impl BufRead) -> io::Result<Option<(u32, u32)>> {
    if stream.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut lines = [const { Vec::new() }; 3];
    for line in &mut lines {
        stream.by_ref().take(MAX_HEADER).read_until(b'\n', line)?;
    }
    parse_ppm_header(&lines)
        .map(Some)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a PPM header"))
}

/// The header of an image in the PAM format ("P7").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pam {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Number of bytes of a pixel, from 1 to 4.
    pub(crate) channels: u32,
}

/// Reads a header of the PAM format, as ffmpeg writes it:
/// <https://netpbm.sourceforge.net/doc/pam.html>. Returns `None` at the end of the stream.
///
/// # Errors
/// As [`read_header`].
pub(crate) fn read_pam_header(stream: &mut impl BufRead) -> io::Result<Option<Pam>> {
    /// Number of lines after the first one.
    const LINES: usize = 6;
    if stream.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut line = || {
        let mut line = Vec::new();
        stream.by_ref().take(MAX_HEADER).read_until(b'\n', &mut line).map(|_| line)
    };
    let (mut sides, mut maximum) = ([None; 3], None);
    let is_pam = line()? == b"P7\n";
    let mut is_complete = false;
    for _ in 0..LINES {
        let line = line()?;
        let text = str::from_utf8(&line).unwrap_or_default().trim_end();
        match text.split_once(' ').unwrap_or((text, "")) {
            ("WIDTH", side) => sides[0] = side.parse().ok().filter(|side| *side > 0),
            ("HEIGHT", side) => sides[1] = side.parse().ok().filter(|side| *side > 0),
            ("DEPTH", depth) => sides[2] = depth.parse().ok().filter(|depth| (1..=4).contains(depth)),
            ("MAXVAL", value) => maximum = Some(value == "255"),
            ("ENDHDR", _) => {
                is_complete = true;
                break;
            }
            _ => {}
        }
    }
    match (sides, maximum) {
        ([Some(width), Some(height), Some(channels)], Some(true)) if is_pam && is_complete => {
            Ok(Some(Pam { width, height, channels }))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not a PAM header")),
    }
}

fn parse_ppm_header([magic, size, maximum]: &[Vec<u8>; 3]) -> Option<(u32, u32)> {
    if magic != b"P6\n" || maximum != b"255\n" {
        return None;
    }
    let (width, height) = str::from_utf8(size).ok()?.strip_suffix('\n')?.split_once(' ')?;
    let side = |digits: &str| digits.parse().ok().filter(|side| *side > 0);
    Some((side(width)?, side(height)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frame_time_line_must_match_frame_number() {
        let time = |line: &str| read_time(&mut line.as_bytes(), 7).unwrap();
        assert_eq!(time("7 12800 1/12800 25 1/25\n"), Some(1_000_000));
        assert_eq!(time("7 -9223372036854775808 1/25 50 1/25\n"), Some(2_000_000));
        for invalid in [
            "8 12800 1/12800\n",
            "7 12800 0/1\n",
            "7 12800\n",
            "",
            "7 9223372036854775807 9223372036854775807/1\n",
        ] {
            assert_eq!(time(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn reads_ppm_header_before_pixels() {
        let mut stream: &[u8] = b"P6\n1920 1080\n255\nRGB";
        assert_eq!(read_header(&mut stream).unwrap(), Some((1920, 1080)));
        assert_eq!(stream, b"RGB");
        assert_eq!(read_header(&mut &b""[..]).unwrap(), None);
    }

    #[test]
    fn rejects_invalid_ppm_headers() {
        for bytes in [
            &b"P5\n1 1\n255\n"[..],
            b"P6\n1 1\n65535\n",
            b"P6\n0 1\n255\n",
            b"P6\n-1 1\n255\n",
            b"P6\n1\n",
            b"P6",
        ] {
            assert!(read_header(&mut &bytes[..]).is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn reads_pam_header_before_pixels() {
        let mut stream: &[u8] =
            b"P7\nWIDTH 3\nHEIGHT 2\nDEPTH 4\nMAXVAL 255\nTUPLTYPE RGB_ALPHA\nENDHDR\nRGBA";
        let pam = Pam { width: 3, height: 2, channels: 4 };
        assert_eq!(read_pam_header(&mut stream).unwrap(), Some(pam));
        assert_eq!(stream, b"RGBA");
        assert_eq!(read_pam_header(&mut &b""[..]).unwrap(), None);
        for bytes in [
            &b"P6\n1 1\n255\n"[..],
            b"P7\nWIDTH 3\nHEIGHT 2\nDEPTH 4\nMAXVAL 65535\nENDHDR\n",
            b"P7\nWIDTH 3\nHEIGHT 2\nDEPTH 4\nMAXVAL 255\n",
            b"P7\nWIDTH 0\nHEIGHT 2\nDEPTH 4\nMAXVAL 255\nENDHDR\n",
        ] {
            assert!(read_pam_header(&mut &bytes[..]).is_err(), "{}", bytes.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn reading_arbitrary_header_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = read_header(&mut &bytes[..]);
            let _ = read_pam_header(&mut &bytes[..]);
        }
    }
}
