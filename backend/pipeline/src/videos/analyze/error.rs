//! Why a video could not be analysed.

use super::MAX_FRAMES;
use crate::admission::budget::Exhausted;
use crate::images::analyze::AnalyzeError;
use domain::{Reason, Unprocessed};
use video::VideoError;

#[derive(Debug, thiserror::Error)]
pub enum VideoAnalyzeError {
    /// The file is not a usable video, or the decoder failed.
    #[error(transparent)]
    Video(#[from] VideoError),
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
    #[error("more than {MAX_FRAMES} frames would be analysed; use fewer frames a second, or keyframes")]
    TooManyFrames,
    /// The video has too many faces that cannot be joined.
    #[error("the video has more than {} tracks of faces", tracking::people::MAX_TRACKS)]
    TooManyTracks,
}

impl From<Exhausted> for VideoAnalyzeError {
    fn from(error: Exhausted) -> Self {
        Self::Analyze(error.into())
    }
}

impl VideoAnalyzeError {
    /// Returns `Skipped` if the file is not a video that can be read here, and `Failed` if it is
    /// damaged or the analysis failed.
    pub fn state(&self) -> Unprocessed {
        match self {
            Self::Analyze(error) => error.state(),
            Self::TooManyFrames | Self::TooManyTracks => Unprocessed::Skipped,
            Self::Video(_) => match self.reason() {
                Reason::NotAVideo | Reason::UnsupportedCodec | Reason::VideoTooLarge => Unprocessed::Skipped,
                _ => Unprocessed::Failed,
            },
        }
    }

    /// Returns the reason that users and ledgers see.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Analyze(error) => error.reason(),
            Self::TooManyFrames | Self::TooManyTracks => Reason::VideoTooLarge,
            Self::Video(error) => match error {
                VideoError::NotAVideo | VideoError::NoVideoStream => Reason::NotAVideo,
                VideoError::Codec => Reason::UnsupportedCodec,
                VideoError::TooLong { .. } | VideoError::TooManyPixels { .. } | VideoError::CpuLimit(_) => {
                    Reason::VideoTooLarge
                }
                VideoError::Undecodable(_) | VideoError::Stalled(_) | VideoError::Output(_) => {
                    Reason::CorruptVideo
                }
                VideoError::Unavailable(_)
                | VideoError::GpuOnly(_)
                | VideoError::GpuFailed(_)
                | VideoError::Io(_)
                | VideoError::Killed
                | VideoError::Cancelled => Reason::VideoUnavailable,
            },
        }
    }
}
