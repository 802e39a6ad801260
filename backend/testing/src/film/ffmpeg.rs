//! Runs ffmpeg to write video files of several formats and to read them. It reads them without a
//! sandbox, so it must only get files of tests. Also creates a program that behaves like ffmpeg on
//! a machine with GPUs.
use super::script::{Film, Timing};
use crate::assets::{self, ffmpeg};
use crate::film::draw::read_number_and_rotation;
use anyhow::{Context, bail, ensure};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
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
        let is_variable = matches!(self.timing, Timing::Variable(_));
        ensure!(!is_variable || encoding.allows_variable(), "{encoding:?} needs a constant frame rate");
        let program = ffmpeg();
        let size = std::fs::metadata(&program).map_or(0, |file| file.len());
        let description = format!("{} {size} {self:?} {encoding:?}", program.display());
        assets::write_cached(&description, path, |path| self.draw_and_encode(encoding, path))
    }

    fn draw_and_encode(&self, encoding: &Encoding, path: &Path) -> anyhow::Result<()> {
        if encoding.rotation == 0 {
            return self.write_frames(encoding, path);
        }
        // ffmpeg sets the rotation only when it copies frames.
        let folder = tempfile::tempdir()?;
        let unrotated = folder.path().join("unrotated.mkv");
        let unrotated =
            if encoding.container == Container::Mp4 { unrotated.with_extension("mp4") } else { unrotated };
        self.write_frames(encoding, &unrotated)?;
        let mut command = ffmpeg_command();
        // This argument counts counter-clockwise.
        command.args(["-display_rotation", &(360 - encoding.rotation).to_string(), "-i"]).arg(&unrotated);
        command.args(["-c", "copy"]).args(encoding.container_arguments()).arg(path);
        run_command(command)
    }

    /// Writes the frames as they are stored, without the value of the rotation.
    fn write_frames(&self, encoding: &Encoding, path: &Path) -> anyhow::Result<()> {
        let is_sideways = !encoding.rotation.is_multiple_of(180);
        let (width, height) = if is_sideways { (self.height, self.width) } else { (self.width, self.height) };
        let rate = match &self.timing {
            Timing::Constant(rate, per) => format!("{rate}/{per}"),
            // The filter sets the times in milliseconds.
            Timing::Variable(_) => "1000".to_owned(),
        };
        let mut command = ffmpeg_command();
        command.args(split_words(&format!(
            "-f rawvideo -pix_fmt rgb24 -video_size {width}x{height} -framerate {rate} -i pipe:0"
        )));
        command.args(["-vf", &encoding.filters(&self.timing), "-fps_mode", "passthrough"]);
        command.args(encoding.codec_arguments()).args(encoding.container_arguments()).arg(path);
        let log = tempfile::tempfile()?;
        let mut child = command.stdin(Stdio::piped()).stderr(log.try_clone()?).spawn()?;
        let mut input = child.stdin.take().context("ffmpeg has an input")?;
        let result = self.frames().try_for_each(|frame| match encoding.rotation {
            0 => input.write_all(frame.data()),
            degrees => input.write_all(crop::rotate(&frame, 360 - degrees).data()),
        });
        drop(input);
        // If ffmpeg failed, writing failed too, and the output of ffmpeg contains the reason.
        check_exit(child, log)?;
        result.context("ffmpeg read only part of the film")
    }
}

/// Writes the frames of the file `segment` to the file `path`, `times` times one after the other,
/// without encoding them again. The timestamps of each repetition are later by the length of the
/// segment. Fails if ffmpeg cannot read or write. Panics if ffmpeg does not exist.
pub fn repeat(segment: &Path, times: u32, encoding: &Encoding, path: &Path) -> anyhow::Result<()> {
    let mut command = ffmpeg_command();
    command.args(["-stream_loop", &(times.max(1) - 1).to_string(), "-i"]).arg(segment);
    command.args(["-c", "copy"]).args(encoding.container_arguments()).arg(path);
    run_command(command)
}

/// Decodes a file with ffmpeg and returns its frames in the order in which they are shown. `visit`
/// gets the pixels of each frame, and its position from 0. Fails if ffmpeg cannot decode the file.
/// Panics if ffmpeg does not exist.
pub fn decode(path: &Path, visit: impl FnMut(usize, &Frame)) -> anyhow::Result<Vec<DecodedFrame>> {
    let mut command = ffmpeg_command();
    command.args(["-copyts", "-i"]).arg(path);
    decode_output(command, visit)
}

/// Decodes the first `frames` frames of a stream with ffmpeg. `options` are the arguments before
/// the URL, separated by spaces. Fails if ffmpeg cannot read the stream, or if the stream ends
/// early. Panics if ffmpeg does not exist.
pub fn decode_stream(options: &str, url: &str, frames: u32) -> anyhow::Result<Vec<DecodedFrame>> {
    let mut command = ffmpeg_command();
    command.args(split_words(options)).args(["-i", url, "-frames:v", &frames.to_string()]);
    let decoded = decode_output(command, |_, _| ())?;
    ensure!(decoded.len() == frames as usize, "{url} ended after {} frames", decoded.len());
    Ok(decoded)
}

/// Adds the output to a command that contains the input, and reads the frames.
fn decode_output(
    mut command: Command,
    mut visit: impl FnMut(usize, &Frame),
) -> anyhow::Result<Vec<DecodedFrame>> {
    let times = tempfile::NamedTempFile::new()?;
    let log = tempfile::tempfile()?;
    command.args(split_words("-map 0:v:0 -fps_mode passthrough -stats_enc_pre"));
    command.arg(times.path()).args(["-stats_enc_pre_fmt", "{ptsi} {tbi} {pts} {tb}"]);
    command.args(split_words("-pix_fmt rgb24 -c:v ppm -f image2pipe pipe:1"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?).spawn()?;
    let mut output = BufReader::new(child.stdout.take().context("ffmpeg has an output")?);
    let mut frames = Vec::new();
    while let Some(frame) = read_ppm(&mut output)? {
        visit(frames.len(), &frame);
        frames.push(((frame.width(), frame.height()), read_number_and_rotation(&frame)));
    }
    check_exit(child, log)?;
    let times = std::fs::read_to_string(times.path())?;
    let times =
        times.lines().map(|line| parse_timestamp(line).with_context(|| format!("no time in `{line}`")));
    let times = times.collect::<anyhow::Result<Vec<i64>>>()?;
    ensure!(times.len() == frames.len(), "{} frames have {} times", frames.len(), times.len());
    let frames = times.into_iter().zip(frames);
    Ok(frames.map(|(at_us, (size, number))| DecodedFrame { at_us, size, number }).collect())
}

/// Converts a file with ffmpeg. `options` are the arguments between the input and the output,
/// separated by spaces. Fails with the output of ffmpeg if ffmpeg fails. Panics if ffmpeg does not
/// exist.
pub(crate) fn convert(input: &Path, options: &str, output: &Path) -> anyhow::Result<()> {
    let mut command = ffmpeg_command();
    command.arg("-i").arg(input).args(split_words(options)).arg(output);
    run_command(command)
}

/// Returns the time in microseconds of a line with the timestamp in the file and its unit, and the
/// timestamp that ffmpeg assumes and its unit. H.264 in AVI files has only the latter.
fn parse_timestamp(line: &str) -> Option<i64> {
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

fn ffmpeg_command() -> Command {
    let mut command = Command::new(ffmpeg());
    command.args(["-nostdin", "-hide_banner", "-v", "error", "-y"].map(OsStr::new));
    // SVT and other libraries write to the standard output.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn run_command(mut command: Command) -> anyhow::Result<()> {
    let log = tempfile::tempfile()?;
    let child = command.stderr(log.try_clone()?).spawn()?;
    check_exit(child, log)
}

fn check_exit(mut child: Child, mut log: std::fs::File) -> anyhow::Result<()> {
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let mut message = String::new();
    std::io::Seek::rewind(&mut log)?;
    log.read_to_string(&mut message)?;
    bail!("ffmpeg failed with {status}: {message}");
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    H264,
    Hevc,
    Vp8,
    Vp9,
    Av1,
    /// MPEG-4 Part 2, as DivX and Xvid.
    Mpeg4,
    Mpeg2,
    Mjpeg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    Mp4,
    Mkv,
    WebM,
    /// MPEG transport stream.
    Ts,
    Avi,
}

/// Position of the index in an MP4 file. Other containers ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovieIndex {
    /// After the frames, so that the file cannot be read through a pipe.
    End,
    /// Before the frames ("faststart").
    Start,
    /// In fragments of one group of images each.
    Fragments,
}

#[derive(Clone, Debug)]
pub struct Encoding {
    pub codec: Codec,
    pub container: Container,
    /// Largest number of frames from one keyframe to the next. Most encoders add a keyframe at a
    /// cut.
    pub keyframe_interval: u32,
    /// Number of consecutive frames that depend on later frames. Codecs without such frames ignore
    /// it. So does AVI, because AVI files contain no timestamps that could order the frames.
    pub b_frames: u32,
    /// Degrees by which players rotate the stored frames clockwise: 0, 90, 180 or 270. Only MP4,
    /// Matroska and WebM files contain this value.
    pub rotation: u32,
    /// Position of the index in an MP4 file.
    pub index: MovieIndex,
    /// Whether the frames have high dynamic range: 10 bits, BT.2020, PQ. Only for HEVC.
    pub hdr: bool,
}

impl Container {
    /// Returns the usual extension of files, without a dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Mp4 => "mp4",
            Self::Mkv => "mkv",
            Self::WebM => "webm",
            Self::Ts => "ts",
            Self::Avi => "avi",
        }
    }

    /// Returns the number of units per second in which files contain timestamps.
    pub(super) fn ticks_per_second(self, timing: &Timing) -> u32 {
        match (self, timing) {
            (Self::Mp4 | Self::Ts, _) => 90_000,
            (Self::Mkv | Self::WebM, _) => 1_000,
            // The unit is one frame.
            (Self::Avi, _) => 1_000_000,
        }
    }
}

impl Encoding {
    /// Returns an encoding with a keyframe every 50 frames, 2 B-frames and the index at the end.
    pub fn new(codec: Codec, container: Container) -> Self {
        let index = MovieIndex::End;
        Self { codec, container, keyframe_interval: 50, b_frames: 2, rotation: 0, index, hdr: false }
    }

    /// Returns an encoding with the defaults of [`Encoding::new`] for each pair of a codec and a
    /// container that is in use.
    pub fn all() -> Vec<Self> {
        use Codec::*;
        use Container::*;
        let containers = |codec| -> &[Container] {
            match codec {
                H264 | Mpeg4 => &[Mp4, Mkv, Ts, Avi],
                Hevc => &[Mp4, Mkv, Ts],
                Vp9 | Av1 => &[WebM, Mkv, Mp4],
                Vp8 => &[WebM, Mkv],
                Mpeg2 => &[Ts, Mkv],
                Mjpeg => &[Avi, Mkv],
            }
        };
        let codecs = [H264, Hevc, Vp8, Vp9, Av1, Mpeg4, Mpeg2, Mjpeg];
        codecs
            .into_iter()
            .flat_map(|codec| containers(codec).iter().map(move |&c| Self::new(codec, c)))
            .collect()
    }

    /// Returns the timestamp of the first frame in microseconds. That of a transport stream is not
    /// 0, as in recordings of broadcasts.
    pub fn start_us(&self) -> i64 {
        if self.container == Container::Ts { 1_000_000 } else { 0 }
    }

    /// Returns whether the film may have [`Timing::Variable`]. AVI files have no timestamps, and
    /// MPEG-2 has few frame rates.
    pub fn allows_variable(&self) -> bool {
        self.container != Container::Avi && self.codec != Codec::Mpeg2
    }

    /// Returns the arguments for the codec, which are chosen for speed.
    fn codec_arguments(&self) -> Vec<String> {
        let (interval, hdr) = (self.keyframe_interval, self.hdr);
        let b_frames = if self.container == Container::Avi { 0 } else { self.b_frames };
        let text = match self.codec {
            Codec::H264 => format!("-c:v libx264 -preset veryfast -crf 21 -g {interval} -bf {b_frames}"),
            Codec::Hevc => {
                let colours =
                    if hdr { ":colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc" } else { "" };
                format!(
                    "-c:v libx265 -preset ultrafast -crf 23 \
                     -x265-params log-level=error:keyint={interval}:bframes={b_frames}{colours}"
                )
            }
            Codec::Vp8 => format!("-c:v libvpx -deadline realtime -cpu-used 8 -crf 10 -b:v 4M -g {interval}"),
            Codec::Vp9 => {
                format!("-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -crf 30 -b:v 0 -g {interval}")
            }
            Codec::Av1 => {
                format!("-c:v libaom-av1 -usage realtime -cpu-used 8 -crf 30 -b:v 0 -g {interval}")
            }
            Codec::Mpeg4 => format!("-c:v mpeg4 -q:v 3 -g {interval} -bf {b_frames}"),
            Codec::Mpeg2 => format!("-c:v mpeg2video -q:v 3 -g {interval} -bf {b_frames}"),
            Codec::Mjpeg => "-c:v mjpeg -q:v 3".to_owned(),
        };
        let tag =
            if self.codec == Codec::Hevc && self.container == Container::Mp4 { " -tag:v hvc1" } else { "" };
        split_words(&format!("{text}{tag}"))
    }

    fn container_arguments(&self) -> Vec<String> {
        split_words(match (self.container, self.index) {
            (Container::Mp4, MovieIndex::End) => "-video_track_timescale 90000",
            (Container::Mp4, MovieIndex::Start) => "-video_track_timescale 90000 -movflags +faststart",
            (Container::Mp4, MovieIndex::Fragments) => {
                "-video_track_timescale 90000 -movflags +frag_keyframe+delay_moov+default_base_moof"
            }
            (Container::Ts, _) => "-muxdelay 0 -muxpreload 0 -output_ts_offset 1",
            _ => "",
        })
    }

    /// Returns the filters that set times and colours.
    pub(super) fn filters(&self, timing: &Timing) -> String {
        let colours = match (self.hdr, self.codec) {
            // The white of the film gets the 203 cd/m2 of ITU-R BT.2408.
            (true, _) => {
                "zscale=matrixin=gbr:transferin=iec61966-2-1:primariesin=bt709:rangein=full:matrix=2020_ncl:\
                 transfer=smpte2084:primaries=2020:range=limited:npl=203,format=yuv420p10le"
            }
            (false, Codec::Mjpeg) => "format=yuvj420p",
            _ => "format=yuv420p",
        };
        match timing {
            Timing::Constant(..) => colours.to_owned(),
            Timing::Variable(pattern) => {
                let (length, total) = (pattern.len(), pattern.iter().sum::<u32>());
                let starts = pattern.iter().take(length - 1).enumerate();
                let steps: String =
                    starts.map(|(at, ms)| format!("+gt(mod(N,{length}),{at})*{ms}")).collect();
                format!("setpts='floor(N/{length})*{total}{steps}',{colours}")
            }
        }
    }
}

fn split_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FakeGpu {
    Works,
    /// The GPUs decode to wrong pixels.
    Differs,
    /// The GPUs fail after this number of bytes. Shorter outputs are correct.
    Breaks(u64),
    Missing,
}

/// Writes the program into `folder`. For each process that decodes on a GPU, it adds a line to the
/// file `gpus` in the folder: the number of the GPU and the variable `CUDA_VISIBLE_DEVICES`. Panics
/// if the program cannot be written.
pub fn ffmpeg_with_gpu(folder: &Path, gpu: FakeGpu) -> PathBuf {
    let path = folder.join("ffmpeg-with-gpu");
    let (filter, run) = match gpu {
        FakeGpu::Works => ("", "exec \"$ffmpeg\" \"$@\"".to_owned()),
        FakeGpu::Differs => ("negate,", "exec \"$ffmpeg\" \"$@\"".to_owned()),
        FakeGpu::Breaks(bytes) => (
            "",
            format!(
                "broken=\"$folder/broken.$$\"
                {{ \"$ffmpeg\" \"$@\" 2>/dev/null || : >\"$broken\"; }} | head -c {bytes}
                [ -e \"$broken\" ] || exit 0
                echo '[h264 @ 0x5] [error] cuvidDecodePicture failed' >&2; exit 1"
            ),
        ),
        FakeGpu::Missing => ("", "echo '[CUDA @ 0x5] [error] Cannot load libcuda.so.1' >&2; exit 255".into()),
    };
    let script = format!(
        r#"#!/bin/sh
ffmpeg='{ffmpeg}' folder='{folder}'
case " $* " in *" -hwaccel cuda "*) ;; *) exec "$ffmpeg" "$@" ;; esac
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case "$argument" in
    -hwaccel_device) echo "$1 $CUDA_VISIBLE_DEVICES" >>"$folder/gpus" ;;
    select=*) argument=$(printf %s "$argument" | sed 's/hwdownload,/{filter}/') ;;
    esac
    case "$argument" in
    -hwaccel*) shift && left=$((left - 1)) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
{run}
"#,
        ffmpeg = crate::ffmpeg().display(),
        folder = folder.display(),
    );
    // Another process writes the file. Otherwise, a child that another thread starts at this moment
    // could still have the file open when the program is started.
    let mut writer = Command::new("sh");
    writer.args(["-c", "cat >\"$0\" && chmod 700 \"$0\""]).arg(&path).stdin(Stdio::piped());
    let mut writer = writer.spawn().expect("a shell");
    writer.stdin.take().expect("its input").write_all(script.as_bytes()).expect("the program is written");
    assert!(writer.wait().expect("the shell ends").success());
    path
}
