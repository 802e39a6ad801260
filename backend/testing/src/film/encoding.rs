//! The formats of video files, and the arguments with which ffmpeg writes them.

use super::script::Timing;

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

/// Where an MP4 file has its index. Other containers ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovieIndex {
    /// After the frames, so that the file cannot be read through a pipe.
    End,
    /// Before the frames ("faststart").
    Start,
    /// In fragments of one group of pictures each.
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
    /// Where an MP4 file has its index.
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
    pub(super) fn codec_arguments(&self) -> Vec<String> {
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
        words(&format!("{text}{tag}"))
    }

    pub(super) fn container_arguments(&self) -> Vec<String> {
        words(match (self.container, self.index) {
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
                let before = pattern.iter().take(length - 1).enumerate();
                let steps: String =
                    before.map(|(at, ms)| format!("+gt(mod(N,{length}),{at})*{ms}")).collect();
                format!("setpts='floor(N/{length})*{total}{steps}',{colours}")
            }
        }
    }
}

pub(super) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
