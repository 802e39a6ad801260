use crate::budget::Exhausted;
use inference::RunError;
use vision::DecodeError;

/// Why an image could not be analysed.
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
    /// Code that works on pixels panicked. The image is rejected; the service continues.
    #[error("the image could not be decoded")]
    Panicked,
}

impl AnalyzeError {
    /// Returns the stable error code: one of [`DecodeError::code`], or `decoder_panicked`,
    /// `invalid_option`, `overloaded`, `deadline_exceeded`, `inference_failed`, `stopping`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Decode(error) => error.code(),
            Self::Panicked => "decoder_panicked",
            Self::Option(_) => "invalid_option",
            Self::Run(RunError::Overloaded { .. }) | Self::Exhausted(_) => "overloaded",
            Self::Run(RunError::DeadlineExceeded { .. }) => "deadline_exceeded",
            Self::Run(RunError::Stopped) => "stopping",
            Self::Run(_) => "inference_failed",
        }
    }
}
