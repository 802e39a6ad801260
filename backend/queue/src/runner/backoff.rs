//! Computes pauses between attempts to reach the database, and limits the time of one attempt.
use crate::QueueError;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Exponential pauses with jitter, so that many workers do not retry at the same moment.
#[derive(Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(super) fn next(&mut self) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(self.failures)).min(MAX_PAUSE);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(rand::random_range(0.5..1.0))
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Ends a queue call with an error after `limit`. Without the limit, a call on a connection whose
/// peer vanished may wait for hours.
pub(crate) async fn with_time_limit<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        let text = format!("no response within {limit:?}");
        Err(QueueError::Database(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))))
    })
}
