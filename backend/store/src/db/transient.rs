//! Classifies transient errors of the database and retries calls that failed with one.
//!
//! A call may be retried if it has no effect when it fails. Such calls are reads, single writes
//! that can be repeated without harm, and whole transactions from
//! [`Store::begin`](crate::Store::begin) to [`Tx::commit`](crate::Tx::commit). A commit without a
//! response is [`StoreError::CommitUnknown`]. It is not transient, because the change may have been
//! committed. Only a caller that can determine the outcome (such as a job of the queue, which uses
//! its fence) may continue after it.
use crate::StoreError;
use std::iter::successors;
use std::time::{Duration, Instant};

/// First pause. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Number of retries. Together with their pauses they take about seven seconds, which is usually
/// enough for a server restart.
const MAX_RETRIES: usize = 9;
/// No attempt starts later than this after the first, so that a call that already waited long for a
/// connection is not retried.
const RETRY_TIME_LIMIT: Duration = Duration::from_secs(12);

tokio::task_local! {
    static INSIDE_RETRY: ();
}

/// The reason of a failure that may not occur if the call is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The connection broke or could not be opened: the server stops, starts, or ended the session
    /// (class 08, 57P01 to 57P03, 57P05, 25P03), or it is no longer the primary (25006).
    Connection,
    /// A conflict with another transaction: serialization failure (40001) or deadlock (40P01). The
    /// server has rolled back.
    Conflict,
    /// No connection was free, in the pool or at the server (53300).
    Capacity,
}

impl Cause {
    /// Returns the cause of a transient error, and `None` for a permanent one.
    pub fn from_error(error: &sqlx::Error) -> Option<Self> {
        match error {
            sqlx::Error::Io(_) => Some(Self::Connection),
            sqlx::Error::PoolTimedOut => Some(Self::Capacity),
            sqlx::Error::Database(error) => match error.code()?.as_ref() {
                "40001" | "40P01" => Some(Self::Conflict),
                "53300" => Some(Self::Capacity),
                "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25006" => Some(Self::Connection),
                code if code.starts_with("08") => Some(Self::Connection),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Conflict => "conflict",
            Self::Capacity => "capacity",
        }
    }
}

/// An error that may come from the database.
pub trait Transient {
    /// Returns why the call may succeed if repeated; `None` if it cannot, or must not be repeated.
    fn cause(&self) -> Option<Cause>;
}

impl Transient for StoreError {
    fn cause(&self) -> Option<Cause> {
        match self {
            Self::Database(error) => Cause::from_error(error),
            Self::IndexUnavailable(_) => Some(Cause::Connection),
            _ => None,
        }
    }
}

/// Runs `work` and repeats it while it fails for a transient reason: at most ten attempts, with
/// increasing, jittered pauses. `call` is its label in the metric
/// `facecrawl_database_retries_total`.
///
/// `work` must be repeatable, as the module describes. Inside another `retried` it runs once, and
/// the outer call repeats it.
///
/// # Errors
/// Fails with the first error of `work` that is not transient, or with its last error.
pub async fn retried<T, E, F>(call: &'static str, mut work: impl FnMut() -> F) -> Result<T, E>
where
    E: Transient,
    F: Future<Output = Result<T, E>>,
{
    if INSIDE_RETRY.try_with(|()| ()).is_ok() {
        return work().await;
    }
    let attempts = async {
        let started = Instant::now();
        for pause in pauses().take(MAX_RETRIES) {
            let error = match work().await {
                Err(error) => error,
                result => return result,
            };
            let Some(cause) = error.cause().filter(|_| started.elapsed() < RETRY_TIME_LIMIT) else {
                return Err(error);
            };
            metrics::counter!("facecrawl_database_retries_total", "call" => call, "cause" => cause.as_str())
                .increment(1);
            tracing::warn!(call, cause = cause.as_str(), "transient database error; retrying");
            tokio::time::sleep(pause).await;
        }
        work().await
    };
    INSIDE_RETRY.scope((), attempts).await
}

/// Returns pauses, each twice as long as the one before and then multiplied by a random factor from
/// 0.5 to 1, so that many callers do not retry at the same moment.
pub(crate) fn pauses() -> impl Iterator<Item = Duration> {
    successors(Some(FIRST_PAUSE), |pause| Some((*pause * 2).min(MAX_PAUSE)))
        .map(|pause| pause.mul_f64(rand::random_range(0.5..1.0)))
}
