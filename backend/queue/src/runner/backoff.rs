//! Pauses between attempts at a database that does not answer, and a limit to one attempt.
use crate::QueueError;
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Doubling pauses with jitter, so that many workers do not return at the same moment.
#[derive(Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next pause.
    pub(super) fn next(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(2u32.saturating_pow(self.failures)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(rand::random_range(0.5..1.0))
    }

    /// After a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Gives a call to the queue up after `limit`: a connection whose other end vanished may otherwise wait for hours.
pub(crate) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        let text = format!("no answer within {limit:?}");
        Err(QueueError::Database(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))))
    })
}
