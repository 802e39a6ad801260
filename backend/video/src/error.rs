//! Defines the errors and the damage of videos.

use std::io;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum VideoError {
    #[error(
        "the file is not a video in an accepted container (MP4, MOV, Matroska, WebM, MPEG-TS, MPEG-PS, AVI, FLV)"
    )]
    NotAVideo,
    /// The container has no video stream, for example because it contains only audio.
    #[error("the file has no video stream")]
    NoVideoStream,
    /// The codec is not on the list of accepted codecs, or the stream is encrypted.
    #[error(
        "the codec of the video is not accepted (accepted: H.264, HEVC, AV1, VP8, VP9, MPEG-4, MPEG-2, Motion JPEG)"
    )]
    Codec,
    #[error("the video is {actual:?} long; at most {limit:?} are accepted")]
    TooLong {
        /// The length that the file reports.
        actual: Duration,
        limit: Duration,
    },
    #[error("a frame has {width}x{height} pixels; at most {limit} pixels are accepted")]
    TooManyPixels { width: u32, height: u32, limit: u64 },
    #[error("no frame of the video can be decoded: {0}")]
    Undecodable(String),
    /// The process neither wrote output nor used the processor. It was killed.
    #[error("the decoder did nothing for {0:?}")]
    Stalled(Duration),
    /// The processes of the video used more processor time than allowed.
    #[error("decoding needs more processor time than the limit of {0:?}")]
    CpuLimit(Duration),
    /// The process was killed, but not because of its processor time.
    #[error(
        "the decoder was killed from outside (SIGKILL), which the system does when memory runs out; \
         add memory, or process fewer videos at a time"
    )]
    Killed,
    /// The GPU cannot decode the video, and the CPU must not.
    #[error("the GPU does not decode the video, and FORCE_GPU_ONLY does not allow the CPU: {0}")]
    GpuOnly(String),
    /// The GPU failed while it decoded the video, and the CPU must not decode it.
    #[error("the GPU failed to decode the video, and FORCE_GPU_ONLY does not allow the CPU: {0}")]
    GpuFailed(String),
    #[error("the analysis of the video was cancelled")]
    Cancelled,
    /// The output of the process has an invalid format, because of a fault or an attack.
    #[error("the output of the decoder is invalid: {0}")]
    Output(&'static str),
    /// ffmpeg or its sandbox cannot be used on this machine.
    #[error("{0}")]
    Unavailable(String),
    /// The process could not be started or its pipes failed.
    #[error("the decoder cannot be run: {0}")]
    Io(#[from] io::Error),
}

/// Damage of a video. Frames that were returned before the damage are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Whether the end of the file is missing.
    pub truncated: bool,
    /// The first message of the decoder about the damage, at most 200 characters, without control
    /// characters. It can contain text from the file.
    pub message: String,
}

impl Damage {
    pub(crate) fn from_status(status: std::process::ExitStatus) -> Self {
        Self { truncated: false, message: format!("the decoder ended with {status}") }
    }
}
