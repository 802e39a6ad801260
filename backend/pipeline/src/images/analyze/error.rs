use crate::admission::budget::Exhausted;
use domain::{Reason, Unprocessed};
use inference::RunError;
use video::ImageError;
use vision::DecodeError;

#[derive(Clone, Debug, thiserror::Error)]
pub enum AnalyzeError {
    /// The file is not an image, has an unsupported format, or exceeds a limit.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A model failed, is overloaded, is stopping, or did not finish before the deadline.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Other images use all the memory for pixels.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// An option is out of range. The text is a complete sentence.
    #[error("{0}")]
    Option(String),
    /// ffmpeg, which decodes the format, could not be run or was killed.
    #[error("the decoder failed: {0}")]
    Decoder(String),
    /// Code that works on pixels panicked. The image is rejected; the service continues.
    #[error("the image could not be decoded")]
    Panicked,
}

impl From<ImageError> for AnalyzeError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Decode(error) => error.into(),
            ImageError::Decoder(error) => Self::Decoder(error.to_string()),
        }
    }
}

impl AnalyzeError {
    /// Returns the state of an image that cannot be analysed: skipped if the file is not a usable
    /// image, failed if it is corrupt or if the service failed.
    pub fn state(&self) -> Unprocessed {
        match self {
            Self::Decode(DecodeError::Corrupt { .. }) => Unprocessed::Failed,
            Self::Decode(_) => Unprocessed::Skipped,
            _ => Unprocessed::Failed,
        }
    }

    /// Returns the reason that the ledgers show.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Decode(error) => error.reason(),
            Self::Panicked | Self::Decoder(_) => Reason::DecoderPanicked,
            Self::Option(_) => Reason::InvalidOption,
            Self::Run(RunError::Overloaded { .. }) | Self::Exhausted(_) => Reason::Overloaded,
            Self::Run(RunError::DeadlineExceeded { .. }) => Reason::DeadlineExceeded,
            Self::Run(RunError::Stopped) => Reason::Stopping,
            Self::Run(_) => Reason::InferenceFailed,
        }
    }
}
