//! Converts the errors of the other crates to problems.
use super::{ApiError, Code};
use crate::request;
use crawler::FetchError;
use inference::RunError;
use pipeline::people::enrol::EnrolError;
use pipeline::watch::lists::WatchlistError;
use pipeline::{AnalyzeError, BudgetExhausted, ChangeError, CrawlError, IngestError, VideoAnalyzeError};
use queue::QueueError;
use store::StoreError;
use store::db::transient::{Cause, Transient};
use video::VideoError;
use vision::DecodeError;

impl From<DecodeError> for ApiError {
    fn from(error: DecodeError) -> Self {
        let code = match &error {
            DecodeError::NotAnImage => Code::NotAnImage,
            DecodeError::Unsupported { .. } => Code::UnsupportedFormat,
            DecodeError::NeedsFfmpeg { .. } => Code::NeedsFfmpeg,
            DecodeError::TooManyBytes { .. } => Code::TooManyBytes,
            DecodeError::TooLarge { .. } => Code::ImageTooLarge,
            DecodeError::Corrupt { .. } => Code::CorruptImage,
        };
        Self::new(code, error.to_string())
    }
}

impl From<RunError> for ApiError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Overloaded { retry_after, .. } => Self::overloaded(error.to_string(), retry_after),
            RunError::DeadlineExceeded { .. } => Self::new(Code::Timeout, error.to_string()),
            RunError::Stopped => Self::new(Code::NotReady, error.to_string()),
            RunError::Failed { .. } => Self::internal(error),
        }
    }
}

impl From<BudgetExhausted> for ApiError {
    fn from(error: BudgetExhausted) -> Self {
        Self::overloaded(error.to_string(), error.retry_after)
    }
}

impl From<AnalyzeError> for ApiError {
    fn from(error: AnalyzeError) -> Self {
        match error {
            AnalyzeError::Decode(error) => error.into(),
            AnalyzeError::Run(error) => error.into(),
            AnalyzeError::Exhausted(error) => error.into(),
            AnalyzeError::Option(message) => Self::new(Code::BadQuery, message),
            AnalyzeError::Decoder(_) => Self::internal(error),
            AnalyzeError::Panicked => Self::new(Code::CorruptImage, error.to_string()),
        }
    }
}

impl From<VideoAnalyzeError> for ApiError {
    fn from(error: VideoAnalyzeError) -> Self {
        let code = match error {
            VideoAnalyzeError::Analyze(error) => return error.into(),
            VideoAnalyzeError::TooManyFrames | VideoAnalyzeError::TooManyTracks => Code::VideoTooLarge,
            VideoAnalyzeError::Video(ref cause) => match cause {
                VideoError::NotAVideo | VideoError::NoVideoStream => Code::NotAVideo,
                VideoError::Codec => Code::UnsupportedCodec,
                VideoError::TooLong { .. } | VideoError::TooManyPixels { .. } | VideoError::CpuLimit(_) => {
                    Code::VideoTooLarge
                }
                VideoError::Undecodable(_) | VideoError::Stalled(_) | VideoError::Output(_) => {
                    Code::CorruptVideo
                }
                VideoError::Io(_) | VideoError::Cancelled => return Self::internal(error),
                VideoError::Unavailable(_)
                | VideoError::Killed
                | VideoError::GpuOnly(_)
                | VideoError::GpuFailed(_) => Code::VideoUnavailable,
            },
        };
        Self::new(code, error.to_string())
    }
}

impl From<FetchError> for ApiError {
    fn from(error: FetchError) -> Self {
        // The addresses of names in the operator's network may be logged, but callers must not see
        // them.
        let why = match &error {
            FetchError::Guard(error) => error.full_reason(),
            error => error.to_string(),
        };
        tracing::info!(request_id = request::id(), why, "failed to fetch a URL for a caller");
        Self::not_fetched(&error)
    }
}

impl ApiError {
    /// Returns the response after a failed fetch, without addresses of the operator's network.
    pub(super) fn not_fetched(error: &FetchError) -> Self {
        let code = match error {
            FetchError::Guard(_) => Code::ForbiddenUrl,
            FetchError::TooLarge { .. } => Code::TooManyBytes,
            _ => Code::UrlUnreachable,
        };
        let reason = error.reason();
        let message = match code {
            Code::UrlUnreachable => format!("the URL could not be fetched: {reason}"),
            _ => error.to_string(),
        };
        Self::new(code, message).reason(reason.code())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound { .. } => Self::new(Code::NotFound, error.to_string()),
            StoreError::DiskFull { .. } => Self::new(Code::DiskFull, error.to_string()),
            StoreError::Conflict(message) => Self::new(Code::Conflict, message),
            StoreError::CommitUnknown(_) => Self::outcome_unknown(&error),
            other => match other.cause() {
                Some(cause) => Self::database(cause, &other),
                None => Self::internal(other),
            },
        }
    }
}

impl From<QueueError> for ApiError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::NotFound(_) => Self::new(Code::NotFound, error.to_string()),
            QueueError::Stale(_) | QueueError::Duplicate { .. } => {
                Self::new(Code::Conflict, error.to_string())
            }
            other => match other.database().and_then(Cause::from_error) {
                Some(cause) => Self::database(cause, &other),
                None => Self::internal(other),
            },
        }
    }
}

impl From<ChangeError> for ApiError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Store(error) => error.into(),
            ChangeError::Queue(error) => error.into(),
        }
    }
}

impl From<CrawlError> for ApiError {
    fn from(error: CrawlError) -> Self {
        match error {
            CrawlError::Invalid { field, reason } => Self::for_field(Code::InvalidField, field, reason),
            CrawlError::Store(error) => error.into(),
            CrawlError::Queue(error) => error.into(),
        }
    }
}

impl From<WatchlistError> for ApiError {
    fn from(error: WatchlistError) -> Self {
        match error {
            WatchlistError::Field { field, reason, value, allowed } => {
                let mut error = Self::for_field(Code::InvalidField, field, reason);
                if let Some(value) = value {
                    error = error.value(value);
                }
                match allowed {
                    Some(allowed) => error.allowed([allowed]),
                    None => error,
                }
            }
            WatchlistError::Guard(error) => Self::from(FetchError::from(error)).field("webhook"),
            WatchlistError::Webhook(error) => error.into(),
            WatchlistError::Store(error) => error.into(),
        }
    }
}

impl From<IngestError> for ApiError {
    fn from(error: IngestError) -> Self {
        match error {
            IngestError::Analyze(error) => error.into(),
            IngestError::Store(error) => error.into(),
            IngestError::Queue(error) => error.into(),
        }
    }
}

impl From<EnrolError> for ApiError {
    fn from(error: EnrolError) -> Self {
        match error {
            EnrolError::Ingest(error) => error.into(),
            EnrolError::NoFace { found: 0, .. } => {
                Self::new(Code::NoFace, "no face was found in `image`").field("image")
            }
            EnrolError::NoFace { index, found } => Self::new(Code::NoSuchFace, error.to_string())
                .field("face_index")
                .value(index.to_string())
                .allowed([format!("0 to {}", found - 1)]),
            EnrolError::SeveralFaces(_) => Self::new(Code::NoSuchFace, error.to_string()).field("image"),
            EnrolError::NoEmbedding => Self::new(Code::LowQuality, error.to_string()).field("image"),
            EnrolError::Quality(reasons) => Self::new(Code::LowQuality, "the face does not meet the profile")
                .field("image")
                .errors(reasons),
        }
    }
}
