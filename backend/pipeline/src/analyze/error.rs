use crate::budget::Exhausted;
use inference::RunError;
use vision::DecodeError;

/// Why a picture could not be analysed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AnalyzeError {
    /// Not a picture we can use.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The models failed or are overloaded.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Other pictures hold all the memory that there is for pixels.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// An option is out of range (a sentence).
    #[error("{0}")]
    Option(String),
    /// A decoder panicked; the picture is refused, the service goes on.
    #[error("the image could not be decoded")]
    Panicked,
}

impl AnalyzeError {
    /// Stable code: those of [`DecodeError::code`], `decoder_panicked`, `invalid_option`, `overloaded`, `deadline_exceeded`, `inference_failed`, `stopping`.
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
