//! The errors of a job, and their effects on the job and its row.
use crate::domain::ChangeError;
use crate::{AnalyzeError, IngestError};
use crawler::FetchError;
use domain::{Reason, Unprocessed};
use inference::RunError;
use queue::QueueError;
use std::time::Duration;
use store::StoreError;

/// Maximum wait that a host's `Retry-After` can cause for one URL.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Wait before a job is retried because its result did not fit on the disk.
pub(crate) const DISK_FULL_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) enum JobError {
    /// A permanent error. The row is settled with this state and reason.
    Final { state: Unprocessed, reason: Reason, detail: String, status: Option<u16> },
    /// A transient error: another attempt may succeed. After the last attempt, the row is failed.
    Retry { reason: Reason, detail: String, wait: Option<Duration> },
    /// The job cannot run now. It runs after this wait, and this run is not counted as an attempt.
    Snooze(Duration),
    /// The claim was lost, and everything was rolled back.
    Stale,
    /// The crawl has ended or was deleted with its rows.
    CrawlEnded,
}

impl JobError {
    /// Creates an error that settles the row as skipped. The error means that the content is not
    /// needed, and is not a failure.
    pub(crate) fn skipped(reason: Reason, detail: impl ToString) -> Self {
        Self::Final { state: Unprocessed::Skipped, reason, detail: detail.to_string(), status: None }
    }

    pub(crate) fn failed(reason: Reason, detail: impl ToString) -> Self {
        Self::Final { state: Unprocessed::Failed, reason, detail: detail.to_string(), status: None }
    }

    /// Converts the error of a fetch. `robots_retry` is the wait before a retry for a host whose
    /// robots.txt could not be fetched.
    pub(crate) fn from_fetch(error: FetchError, robots_retry: Duration) -> Self {
        let (reason, detail) = (error.reason(), error.to_string());
        match error {
            FetchError::Postponed(wait) => Self::Snooze(wait),
            FetchError::Refused(Reason::RobotsUnavailable) => {
                let detail =
                    "the robots.txt of the host is unavailable, so no request to the host is allowed".into();
                Self::Retry { reason, detail, wait: Some(robots_retry) }
            }
            FetchError::Status { retry_after, .. } if error.is_transient() => {
                let wait = retry_after.map(|wait| wait.min(MAX_RETRY_AFTER));
                Self::Retry { reason, detail, wait }
            }
            _ if error.is_transient() => Self::Retry { reason, detail, wait: None },
            FetchError::Status { status, .. } => {
                Self::Final { state: Unprocessed::Failed, reason, detail, status: Some(status) }
            }
            FetchError::Guard(_) | FetchError::Refused(_) | FetchError::TooLarge { .. } => {
                Self::skipped(reason, detail)
            }
            _ => Self::failed(reason, detail),
        }
    }
}

impl From<StoreError> for JobError {
    fn from(error: StoreError) -> Self {
        if let StoreError::DiskFull { .. } = error {
            return Self::Snooze(DISK_FULL_WAIT);
        }
        Self::Retry { reason: Reason::StoreFailure, detail: error.to_string(), wait: None }
    }
}

impl From<QueueError> for JobError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Stale(_) => Self::Stale,
            error => Self::Retry { reason: Reason::QueueFailure, detail: error.to_string(), wait: None },
        }
    }
}

impl From<ChangeError> for JobError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Store(error) => error.into(),
            ChangeError::Queue(error) => error.into(),
        }
    }
}

impl From<IngestError> for JobError {
    fn from(error: IngestError) -> Self {
        let error = match error {
            IngestError::Store(error) => return error.into(),
            IngestError::Queue(error) => return error.into(),
            IngestError::Analyze(error) => error,
        };
        match error {
            AnalyzeError::Run(RunError::Overloaded { retry_after, .. }) => Self::Snooze(retry_after),
            AnalyzeError::Exhausted(error) => Self::Snooze(error.retry_after),
            AnalyzeError::Run(RunError::Stopped) => Self::Snooze(Duration::ZERO),
            AnalyzeError::Run(_) | AnalyzeError::Decoder(_) => {
                Self::Retry { reason: error.reason(), detail: error.to_string(), wait: None }
            }
            error => {
                let (state, reason) = (error.state(), error.reason());
                Self::Final { state, reason, detail: error.to_string(), status: None }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vision::DecodeError;

    fn error_of(error: FetchError) -> JobError {
        JobError::from_fetch(error, Duration::from_secs(30))
    }

    #[test]
    fn http_status_selects_failure_or_delayed_retry() {
        let missing = error_of(FetchError::Status { status: 404, retry_after: None });
        assert!(matches!(
            missing,
            JobError::Final { state: Unprocessed::Failed, reason: Reason::Http(404), status: Some(404), .. }
        ));
        let requested = Duration::from_secs(120);
        let busy = error_of(FetchError::Status { status: 503, retry_after: Some(requested) });
        let JobError::Retry { wait, .. } = busy else { panic!("{busy:?}") };
        assert_eq!(wait, Some(requested));
    }

    #[test]
    fn maps_refusals_to_skipped_and_errors_to_failed() {
        for expected in [Reason::RobotsDisallowed, Reason::OutOfScope] {
            let refused = error_of(FetchError::Refused(expected.clone()));
            let JobError::Final { state, reason, .. } = refused else { panic!("{refused:?}") };
            assert_eq!((state, reason), (Unprocessed::Skipped, expected));
        }
        let endless = error_of(FetchError::TooManyRedirects);
        assert!(matches!(endless, JobError::Final { state: Unprocessed::Failed, .. }));
        let corrupt = DecodeError::Corrupt { format: "jpeg", reason: "x".into() };
        assert_eq!(AnalyzeError::from(corrupt).state(), Unprocessed::Failed);
        assert_eq!(AnalyzeError::from(DecodeError::NotAnImage).state(), Unprocessed::Skipped);
    }

    #[test]
    fn image_is_retried_after_decoder_is_killed() {
        let killed = AnalyzeError::Decoder("killed".into());
        assert!(matches!(JobError::from(IngestError::Analyze(killed)), JobError::Retry { .. }));
    }

    #[test]
    fn full_disk_uses_no_attempt() {
        let full = StoreError::DiskFull { reserve_mb: 1 };
        assert!(matches!(JobError::from(IngestError::Store(full)), JobError::Snooze(_)));
    }

    #[test]
    fn overloaded_engine_uses_no_attempt() {
        let overloaded =
            RunError::Overloaded { operation: "face_detection", retry_after: Duration::from_secs(1) };
        assert!(matches!(JobError::from(IngestError::Analyze(overloaded.into())), JobError::Snooze(_)));
    }
}
