//! Runs ffmpeg to write and to read video files. It reads them without a sandbox, so it must only
//! get files of tests.

use super::encoding::{Container, Encoding, words};
use super::number::read_number_and_rotation;
use super::script::{Film, Timing};
use crate::assets::ffmpeg;
use crate::drawn;
use anyhow::{Context, bail, ensure};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use vision::{Frame, crop};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedFrame {
    /// Timestamp in the file, in microseconds.
    pub at_us: i64,
    /// Width and height in pixels, after ffmpeg has applied the rotation of the file.
    pub size: (u32, u32),
    /// The number in the pixels, and the degrees by which the frame is rotated clockwise.
    pub number: Option<(u32, u32)>,
}

impl Film {
    /// Draws the film and writes it to the file `path`. A film that was encoded in the same way
    /// before is copied. If ffmpeg cannot write the file, the error contains its output. Panics if
    /// ffmpeg does not exist: a test that calls this must be marked `#[needs(video)]`.
    pub fn encode(&self, encoding: &Encoding, path: &Path) -> anyhow::Result<()> {
        let variable = matches!(self.timing, Timing::Variable(_));
        ensure!(!variable || encoding.allows_variable(), "{encoding:?} needs a constant frame rate");
        let program = ffmpeg();
        let size = std::fs::metadata(&program).map_or(0, |file| file.len());
        let description = format!("{} {size} {self:?} {encoding:?}", program.display());
        drawn::write(&description, path, |path| self.draw_and_encode(encoding, path))
    }

    fn draw_and_encode(&self, encoding: &Encoding, path: &Path) -> anyhow::Result<()> {
        if encoding.rotation == 0 {
            return self.write(encoding, path);
        }
        // ffmpeg sets the rotation only when it copies frames.
        let folder = tempfile::tempdir()?;
        let unrotated = folder.path().join("unrotated.mkv");
        let unrotated =
            if encoding.container == Container::Mp4 { unrotated.with_extension("mp4") } else { unrotated };
        self.write(encoding, &unrotated)?;
        let mut command = quiet();
        // This argument counts counter-clockwise.
        command.args(["-display_rotation", &(360 - encoding.rotation).to_string(), "-i"]).arg(&unrotated);
        command.args(["-c", "copy"]).args(encoding.container_arguments()).arg(path);
        run(command)
    }

    /// Writes the frames as they are stored, without the value of the rotation.
    fn write(&self, encoding: &Encoding, path: &Path) -> anyhow::Result<()> {
        let turned = !encoding.rotation.is_multiple_of(180);
        let (width, height) = if turned { (self.height, self.width) } else { (self.width, self.height) };
        let rate = match &self.timing {
            Timing::Constant(rate, per) => format!("{rate}/{per}"),
            // The filter sets the times in milliseconds.
            Timing::Variable(_) => "1000".to_owned(),
        };
        let mut command = quiet();
        command.args(words(&format!(
            "-f rawvideo -pix_fmt rgb24 -video_size {width}x{height} -framerate {rate} -i pipe:0"
        )));
        command.args(["-vf", &encoding.filters(&self.timing), "-fps_mode", "passthrough"]);
        command.args(encoding.codec_arguments()).args(encoding.container_arguments()).arg(path);
        let log = tempfile::tempfile()?;
        let mut child = command.stdin(Stdio::piped()).stderr(log.try_clone()?).spawn()?;
        let mut input = child.stdin.take().context("ffmpeg has an input")?;
        let written = self.frames().try_for_each(|frame| match encoding.rotation {
            0 => input.write_all(frame.data()),
            degrees => input.write_all(crop::rotate(&frame, 360 - degrees).data()),
        });
        drop(input);
        // If ffmpeg failed, writing failed too, and the output of ffmpeg says why.
        finish(child, log)?;
        written.context("ffmpeg read only part of the film")
    }
}

/// Writes the frames of the file `segment` to the file `path`, `times` times one after the other,
/// without encoding them again. The timestamps of each repetition are later by the length of the
/// segment. Fails if ffmpeg cannot read or write. Panics if ffmpeg does not exist.
pub fn repeat(segment: &Path, times: u32, encoding: &Encoding, path: &Path) -> anyhow::Result<()> {
    let mut command = quiet();
    command.args(["-stream_loop", &(times.max(1) - 1).to_string(), "-i"]).arg(segment);
    command.args(["-c", "copy"]).args(encoding.container_arguments()).arg(path);
    run(command)
}

/// Decodes a file with ffmpeg and returns its frames in the order in which they are shown. `see`
/// gets the pixels of each frame, and its position from 0. Fails if ffmpeg cannot decode the file.
/// Panics if ffmpeg does not exist.
pub fn decode(path: &Path, mut see: impl FnMut(usize, &Frame)) -> anyhow::Result<Vec<DecodedFrame>> {
    let times = tempfile::NamedTempFile::new()?;
    let log = tempfile::tempfile()?;
    let mut command = quiet();
    command.args(["-copyts", "-i"]).arg(path).args(words("-map 0:v:0 -fps_mode passthrough -stats_enc_pre"));
    command.arg(times.path()).args(["-stats_enc_pre_fmt", "{ptsi} {tbi} {pts} {tb}"]);
    command.args(words("-pix_fmt rgb24 -c:v ppm -f image2pipe pipe:1"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?).spawn()?;
    let mut output = BufReader::new(child.stdout.take().context("ffmpeg has an output")?);
    let mut seen = Vec::new();
    while let Some(frame) = read_ppm(&mut output)? {
        see(seen.len(), &frame);
        seen.push(((frame.width(), frame.height()), read_number_and_rotation(&frame)));
    }
    finish(child, log)?;
    let times = std::fs::read_to_string(times.path())?;
    let times = times.lines().map(|line| timestamp(line).with_context(|| format!("no time in `{line}`")));
    let times = times.collect::<anyhow::Result<Vec<i64>>>()?;
    ensure!(times.len() == seen.len(), "{} frames have {} times", seen.len(), times.len());
    let frames = times.into_iter().zip(seen);
    Ok(frames.map(|(at_us, (size, number))| DecodedFrame { at_us, size, number }).collect())
}

/// Returns the time in microseconds of a line with the timestamp in the file and its unit, and the
/// timestamp that ffmpeg assumes and its unit. H.264 in AVI files has only the latter.
fn timestamp(line: &str) -> Option<i64> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [stored, stored_unit, assumed, assumed_unit] = fields[..] else { return None };
    let stored: i64 = stored.parse().ok()?;
    let (ticks, unit) =
        if stored == i64::MIN { (assumed.parse().ok()?, assumed_unit) } else { (stored, stored_unit) };
    let (numerator, denominator) = unit.split_once('/')?;
    let (numerator, denominator): (i64, i64) = (numerator.parse().ok()?, denominator.parse().ok()?);
    Some((ticks * numerator * 2_000_000 + denominator).div_euclid(2 * denominator))
}

/// Reads a PPM image: `P6`, width, height and 255 on lines, then the pixels.
fn read_ppm(input: &mut impl BufRead) -> anyhow::Result<Option<Frame>> {
    let mut words = Vec::new();
    let mut line = String::new();
    while words.len() < 4 {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            ensure!(words.is_empty(), "the output of ffmpeg ends in a header");
            return Ok(None);
        }
        words.extend(line.split_whitespace().map(str::to_owned));
    }
    ensure!(words[0] == "P6" && words[3] == "255", "not a PPM header: {words:?}");
    let (width, height) = (words[1].parse()?, words[2].parse()?);
    let mut pixels = vec![0; width as usize * height as usize * 3];
    input.read_exact(&mut pixels).context("the output of ffmpeg ends in a frame")?;
    Frame::new(width, height, pixels).context("a frame has at least one pixel").map(Some)
}

fn quiet() -> Command {
    let mut command = Command::new(ffmpeg());
    command.args(["-nostdin", "-hide_banner", "-v", "error", "-y"].map(OsStr::new));
    // SVT and other libraries write to the standard output.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn run(mut command: Command) -> anyhow::Result<()> {
    let log = tempfile::tempfile()?;
    let child = command.stderr(log.try_clone()?).spawn()?;
    finish(child, log)
}

fn finish(mut child: Child, mut log: std::fs::File) -> anyhow::Result<()> {
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let mut message = String::new();
    std::io::Seek::rewind(&mut log)?;
    log.read_to_string(&mut message)?;
    bail!("ffmpeg failed with {status}: {message}");
}
