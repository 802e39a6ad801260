//! Builds the arguments of ffmpeg. Only numbers in them come from the file or from a caller.

use crate::child::VIDEO_FD;
use crate::gpu::GpuInput;
use crate::index::{Hdr, Timeline};
use crate::messages::MAX_STREAMS;
use crate::sampling::{FrameSet, Segment};
use vision::decode::{CodedPictures, Coding, ColourDescription};

/// Accepted containers. Playlists are not among them, because they name other files.
const CONTAINERS: &str = "mov,matroska,mpegts,mpeg,avi,flv";
/// Accepted codecs of video. Audio and subtitles are not decoded.
const CODECS: &str = "h264,hevc,libdav1d,av1,vp8,libvpx-vp9,vp9,mpeg4,mpeg2video,mjpeg";
/// Duration of the part that ffmpeg analyses before it decodes a camera, in microseconds.
const LIVE_ANALYSIS_US: u32 = 500_000;
/// Codecs of cameras.
const LIVE_CODECS: &str = "h264,hevc";
/// Largest single allocation in bytes.
const MAX_ALLOCATION: u64 = 1 << 29;
/// Makes pixels square by enlarging frames in one direction.
const SQUARE_PIXELS: &str = "scale=w='round(iw*max(1,sar))':h='round(ih*max(1,1/sar))',setsar=1,";

/// Tolerance for the times of frames that are listed, in microseconds.
const LISTED_TOLERANCE_US: i64 = 100;

/// The part of an [`Index`](crate::Index) that the arguments for frames need.
pub(crate) struct Source {
    pub(crate) origin_us: i64,
    /// The colours, if they must be mapped from high dynamic range.
    pub(crate) hdr: Option<Hdr>,
    pub(crate) has_square_pixels: bool,
    /// Time of the keyframe at which decoding of the segment starts.
    pub(crate) start_us: i64,
    pub(crate) timeline: Timeline,
    pub(crate) stream: usize,
}

pub(crate) fn version() -> Vec<String> {
    strings(["-version"])
}

/// Returns the arguments to print a line for each packet, without decoding; see [`crate::listing`].
/// With `-discard nokey`, ffmpeg would read only keyframes. But its reader of MP4 would then apply
/// the time offsets of other frames, so the times of keyframes would be wrong in files with
/// B-frames.
pub(crate) fn index(threads: u32, timeline: Timeline, stream: usize) -> Vec<String> {
    let mut arguments = input(threads, i32::MAX.unsigned_abs().into(), timeline);
    arguments.extend(input_stream(stream));
    arguments.extend(strings(["-c", "copy", "-f", "framecrc", "pipe:1"]));
    arguments
}

/// Returns the arguments to print a line for each packet of the first [`MAX_STREAMS`] video
/// streams, in the order of the file.
pub(crate) fn streams(threads: u32) -> Vec<String> {
    let mut arguments = input(threads, i32::MAX.unsigned_abs().into(), Timeline::Stored);
    arguments.extend(input_stream(0));
    for stream in 1..MAX_STREAMS {
        arguments.extend(strings(["-map", &format!("0:V:{stream}?")]));
    }
    // Otherwise ffmpeg keeps packets of ten seconds in memory if a stream has only one packet.
    arguments.extend(strings(["-c", "copy", "-max_interleave_delta", "1", "-f", "framecrc", "pipe:1"]));
    arguments
}

/// Returns the arguments to write the frames of a segment as PPM to stdout, and their timestamps to
/// file descriptor 4. The first frame at or after the end of the segment is written too. It shows
/// the reader that the segment is complete. With `gpu`, the GPU decodes, and only selected frames
/// are copied from it.
pub(crate) fn frames(
    threads: u32,
    max_pixels: u64,
    source: &Source,
    segment: &Segment,
    gpu: Option<&GpuInput>,
) -> Vec<String> {
    let mut arguments = input(if gpu.is_some() { 1 } else { threads }, max_pixels, source.timeline);
    arguments.extend(gpu.into_iter().flat_map(gpu_input));
    if segment.decoded == FrameSet::Keyframes {
        arguments.extend(strings(["-skip_frame", "nokey"]));
    }
    if source.start_us > 0 {
        let start = format_seconds(source.origin_us.saturating_add(source.start_us));
        arguments.extend(strings(["-seek_timestamp", "1", "-noaccurate_seek", "-ss", &start]));
    }
    arguments.extend(input_stream(source.stream));
    let mapping = source.hdr.map(tone_mapping).unwrap_or_default();
    let square = if source.has_square_pixels { "" } else { SQUARE_PIXELS };
    let download = gpu.map(GpuInput::download).unwrap_or_default();
    let selected = select_condition(source, segment);
    let filter = format!("select='{selected}',{download}{mapping}{square}format=rgb24");
    arguments.extend(strings(["-vf", &filter, "-fps_mode", "passthrough"]));
    arguments.extend(frame_output());
    arguments
}

/// Returns the arguments to decode frames while they arrive through the pipe [`VIDEO_FD`], and to
/// write one frame per `interval_us`, in the format of [`frames`]. `container` is a format of
/// ffmpeg.
pub(crate) fn live(
    (container, timeline): (&str, Timeline),
    max_pixels: u64,
    interval_us: i64,
    gpu: Option<&GpuInput>,
) -> Vec<String> {
    let mut arguments = restricted_input(1, max_pixels, timeline, container, LIVE_CODECS);
    arguments.extend(gpu.into_iter().flat_map(gpu_input));
    if timeline == Timeline::Continued {
        // These containers do not describe their streams at the beginning. Otherwise ffmpeg reads
        // up to 7 s before the first frame, and a camera can begin a new stream earlier.
        arguments.extend(strings(["-analyzeduration", &LIVE_ANALYSIS_US.to_string()]));
    }
    arguments.extend(strings(["-f", container]));
    arguments.extend(input_stream(0));
    // Frames arrive a little early or late.
    let interval = format_seconds(interval_us.saturating_mul(9) / 10);
    let selected = format!("isnan(prev_selected_t)+gte(t-prev_selected_t,{interval})+lt(t,prev_selected_t)");
    let download = gpu.map(GpuInput::download).unwrap_or_default();
    arguments.extend(strings(["-vf", &format!("select='{selected}',{download}{SQUARE_PIXELS}format=rgb24")]));
    arguments.extend(strings(["-fps_mode", "passthrough"]));
    arguments.extend(frame_output());
    arguments
}

/// Returns the arguments to decode the next input on a GPU. `hwdownload` accepts no frames of the
/// CPU, so ffmpeg cannot fall back silently.
fn gpu_input(gpu: &GpuInput) -> Vec<String> {
    let mut arguments = strings(["-hwaccel", "cuda", "-hwaccel_device", &gpu.id.to_string()]);
    arguments.extend(strings(["-hwaccel_output_format", "cuda"]));
    if gpu.stop_at_errors {
        arguments.push("-xerror".into());
    }
    arguments
}

/// Returns the arguments to write frames as PPM images, and their times to file descriptor 4.
fn frame_output() -> Vec<String> {
    let mut arguments =
        strings(["-stats_enc_pre", "pipe:4", "-stats_enc_pre_fmt", "{n} {ptsi} {tbi} {pts} {tb}"]);
    // Otherwise ffmpeg keeps eight encoded frames for the reader: 50 MB at 1920x1080.
    arguments.extend(strings(["-thread_queue_size", "1"]));
    arguments.extend(strings(["-c:v", "ppm", "-f", "image2pipe", "pipe:1"]));
    arguments
}

/// Returns the condition for a frame: it is the first one in its cell of the grid, or its time is
/// listed. The cells start at the first frame of the file, so the selection does not depend on
/// where decoding starts.
///
/// A millisecond is added, because timestamps of Matroska are rounded to milliseconds.
fn select_condition(source: &Source, segment: &Segment) -> String {
    let (origin, cell) = (format_seconds(source.origin_us), format_seconds(segment.cell_us.max(1)));
    let number = |time: &str| format!("floor(({time}-({origin})+0.001)/{cell})");
    let from = format_seconds(source.origin_us.saturating_add(segment.from_us).saturating_sub(500));
    let mut condition = format!("isnan(prev_selected_t)+gt({},{})", number("t"), number("prev_selected_t"));
    for listed_us in &segment.listed_us {
        let at = |tolerance: i64| {
            format_seconds(source.origin_us.saturating_add(listed_us.saturating_add(tolerance)))
        };
        condition.push_str(&format!("+between(t,{},{})", at(-LISTED_TOLERANCE_US), at(LISTED_TOLERANCE_US)));
    }
    format!("gte(t,{from})*({condition})")
}

/// Returns the filters that map colours of high dynamic range to BT.709, with the curve of Hable:
/// <https://ffmpeg.org/ffmpeg-filters.html#tonemap-1>.
fn tone_mapping(hdr: Hdr) -> String {
    let matrix = if hdr.has_matrix { "" } else { "setparams=colorspace=bt2020nc," };
    let primaries = if hdr.has_primaries { "" } else { "setparams=color_primaries=bt2020," };
    format!(
        "{matrix}{primaries}zscale=t=linear:npl=100,format=gbrpf32le,zscale=p=bt709,tonemap=hable:desat=0,\
         zscale=t=bt709:m=bt709:r=tv,"
    )
}

/// The samples that are decoded from the pictures of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    Colour,
    /// The opacity, which is coded as the brightness of other pictures.
    Alpha,
}

/// Returns the arguments to write the pictures of an image as PAM to stdout. `bytes` is the size of
/// the file.
pub(crate) fn image(pictures: &CodedPictures<'_>, plane: Plane, bytes: usize) -> Vec<String> {
    let (container, codecs) = match pictures.coding {
        Coding::Hevc => ("hevc", "hevc"),
        Coding::Av1 => ("ivf", "libdav1d,libaom-av1,av1"),
        Coding::Jxl => ("jpegxl_pipe", "libjxl"),
        Coding::Tiff => ("tiff_pipe", "tiff"),
        Coding::Jp2 => ("j2k_pipe", "jpeg2000,libopenjpeg"),
    };
    let mut arguments = restricted_input(1, pictures.max_pixels(), Timeline::Continued, container, codecs);
    arguments.extend(strings(["-f", container]));
    if pictures.coding == Coding::Jxl {
        // Otherwise ffmpeg calls the decoder forever if the end of the file is missing.
        arguments.push("-xerror".into());
    }
    if matches!(pictures.coding, Coding::Jxl | Coding::Tiff | Coding::Jp2) {
        // The whole file is one picture.
        arguments.extend(strings(["-frame_size", &bytes.to_string()]));
    }
    // The crate `vision` rotates the image.
    arguments.push("-noautorotate".into());
    arguments.extend(input_stream(0));
    let filter = match plane {
        Plane::Alpha => "setparams=range=pc,format=gray".to_owned(),
        Plane::Colour => {
            let colours = pictures.colours.map(colour_parameters).unwrap_or_default();
            let layout = match pictures.coding {
                Coding::Hevc | Coding::Av1 => "rgb24",
                Coding::Jxl | Coding::Tiff | Coding::Jp2 => "rgba",
            };
            format!(
                "{colours}scale=flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp,format={layout}"
            )
        }
    };
    arguments.extend(strings(["-vf", &filter, "-fps_mode", "passthrough"]));
    arguments.extend(strings(["-frames:v", &pictures.count().to_string(), "-thread_queue_size", "1"]));
    arguments.extend(strings(["-c:v", "pam", "-f", "image2pipe", "pipe:1"]));
    arguments
}

/// Returns the filter for the matrix and the range of the colours, which the container declares.
fn colour_parameters(colours: ColourDescription) -> String {
    let range = if colours.full_range { "pc" } else { "tv" };
    // The numbers of ITU-T H.273. Unspecified means BT.601, as in ISO/IEC 23000-22.
    let matrix = match colours.matrix {
        1 => "bt709",
        4 => "fcc",
        5 => "bt470bg",
        2 | 6 => "smpte170m",
        7 => "smpte240m",
        8 => "ycgco",
        9 => "bt2020nc",
        // 0: the pictures contain RGB and declare it. Other values are not converted.
        _ => return String::new(),
    };
    format!("setparams=range={range}:colorspace={matrix},")
}

fn input(threads: u32, max_pixels: u64, timeline: Timeline) -> Vec<String> {
    restricted_input(threads, max_pixels, timeline, CONTAINERS, CODECS)
}

fn restricted_input(
    threads: u32,
    max_pixels: u64,
    timeline: Timeline,
    containers: &str,
    codecs: &str,
) -> Vec<String> {
    let general = ["-nostdin", "-hide_banner", "-nostats", "-loglevel", "level+info"];
    let mut arguments = strings(general);
    if timeline == Timeline::Stored {
        arguments.extend(strings(["-copyts"]));
    }
    arguments.extend(strings(["-max_alloc", &MAX_ALLOCATION.to_string(), "-filter_threads", "1"]));
    arguments.extend(strings(["-protocol_whitelist", "fd,pipe", "-format_whitelist", containers]));
    arguments.extend(strings(["-codec_whitelist", codecs, "-max_pixels", &max_pixels.to_string()]));
    arguments.extend(strings(["-threads", &threads.to_string()]));
    arguments
}

/// Returns the arguments to open the file. Capital `V` excludes cover images that are marked as
/// such.
fn input_stream(stream: usize) -> Vec<String> {
    strings(["-fd", &VIDEO_FD.to_string(), "-i", "fd:", "-map", &format!("0:V:{stream}")])
}

fn strings<const N: usize>(parts: [&str; N]) -> Vec<String> {
    parts.map(str::to_owned).into()
}

fn format_seconds(us: i64) -> String {
    let (sign, us) = (if us < 0 { "-" } else { "" }, us.unsigned_abs());
    format!("{sign}{}.{:06}", us / 1_000_000, us % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuFacts;

    #[test]
    fn gpu_downloads_selected_frames_before_other_filters() {
        let hdr = Hdr { has_matrix: true, has_primaries: true };
        let (origin_us, hdr, timeline) = (0, Some(hdr), Timeline::Stored);
        let source = Source { origin_us, hdr, has_square_pixels: false, start_us: 0, timeline, stream: 0 };
        let (decoded, to_us) = (FrameSet::All, i64::MAX);
        let listed_us = Vec::new();
        let segment =
            Segment { from_us: 0, to_us, decoded, cell_us: 1, listed_us, max_gap_us: 0, last_us: None };
        let facts = GpuFacts { pixel_format: "yuv420p10le".into(), ..GpuFacts::default() };
        let layout = facts.layout("hevc").ok();
        let gpu = layout.map(|layout| GpuInput { id: 3, layout, stop_at_errors: true });
        let on_gpu = frames(4, 1, &source, &segment, gpu.as_ref());
        let on_cpu = frames(1, 1, &source, &segment, None);
        let gpu_arguments = "-hwaccel cuda -hwaccel_device 3 -hwaccel_output_format cuda -xerror";
        let filter = |arguments: &[String]| {
            let index = arguments.iter().position(|argument| argument == "-vf");
            index.and_then(|index| arguments.get(index + 1)).cloned().unwrap_or_default()
        };
        let selected = filter(&on_cpu).split_once("',").map(|(selected, rest)| {
            format!("{selected}',hwdownload,format=p010le,format=yuv420p10le,{rest}")
        });
        assert_eq!(Some(filter(&on_gpu)), selected);
        let text = on_gpu.join(" ").replacen(&format!("{gpu_arguments} "), "", 1);
        assert_eq!(text.replace(&filter(&on_gpu), &filter(&on_cpu)), on_cpu.join(" "));
        assert!(on_gpu.join(" ").find(gpu_arguments) < on_gpu.join(" ").find("-i fd:"));
    }

    #[test]
    fn formats_times_with_exact_microseconds() {
        assert_eq!(format_seconds(1_480_000), "1.480000");
        assert_eq!(format_seconds(-40_001), "-0.040001");
        assert_eq!(format_seconds(i64::MIN), "-9223372036854.775808");
    }
}
