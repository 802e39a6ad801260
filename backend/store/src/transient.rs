//! Errors of the database that pass, and the one way to try again.
//!
//! What may be done again is what leaves no trace when it fails: reads, single writes that may be made twice without harm, and whole
//! transactions from [`Store::begin`](crate::Store::begin) to [`Tx::commit`](crate::Tx::commit). A commit whose answer never came is
//! [`StoreError::CommitUnknown`], which is not transient: the change may have been made. Only who can tell (a job of the queue by its fence) goes
//! on after it.
use crate::StoreError;
use std::iter::successors;
use std::time::{Duration, Instant};

/// First pause; the next ones double.
const FIRST: Duration = Duration::from_millis(50);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(2);
/// Attempts after the first. With all pauses some seven seconds: a server that restarts is back by then.
const REPEATS: usize = 9;
/// No attempt begins later than this after the first: who waited so long for a connection does not wait anew.
const PATIENCE: Duration = Duration::from_secs(12);

tokio::task_local! {
    static REPEATED: ();
}

/// Why a call failed that may go well a moment later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The connection broke or could not be had: the server stops, starts, or ended the session (class 08, 57P01 to 57P03, 57P05, 25P03).
    Connection,
    /// Another transaction was in the way: serialization failure (40001) or deadlock (40P01). The server has rolled back.
    Conflict,
    /// No connection was free, in the pool or at the server (53300).
    Capacity,
}

impl Cause {
    /// The cause of a transient error; `None` for one that would come again.
    pub fn of(error: &sqlx::Error) -> Option<Self> {
        match error {
            sqlx::Error::Io(_) => Some(Self::Connection),
            sqlx::Error::PoolTimedOut => Some(Self::Capacity),
            sqlx::Error::Database(error) => match error.code()?.as_ref() {
                "40001" | "40P01" => Some(Self::Conflict),
                "53300" => Some(Self::Capacity),
                "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => Some(Self::Connection),
                code if code.starts_with("08") => Some(Self::Connection),
                _ => None,
            },
            _ => None,
        }
    }

    /// The label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Conflict => "conflict",
            Self::Capacity => "capacity",
        }
    }
}

/// An error that may be one of the database's.
pub trait Transient {
    /// Why the same call may go well a moment later; `None` when it will not, or must not be made again.
    fn cause(&self) -> Option<Cause>;
}

impl Transient for StoreError {
    fn cause(&self) -> Option<Cause> {
        match self {
            Self::Database(error) => Cause::of(error),
            _ => None,
        }
    }
}

/// Does `work` again while it fails for a transient reason: at most ten times, with growing, jittered pauses. `call` names it in
/// `facecrawl_database_retries_total{call, cause}`.
///
/// `work` must be what the module allows. Inside another `retried` it is done once, and the outer one repeats.
///
/// # Errors
/// Those of `work`: the first that is not transient, or the last.
pub async fn retried<T, E, F>(call: &'static str, mut work: impl FnMut() -> F) -> Result<T, E>
where
    E: Transient,
    F: Future<Output = Result<T, E>>,
{
    if REPEATED.try_with(|()| ()).is_ok() {
        return work().await;
    }
    let repeated = async {
        let started = Instant::now();
        for pause in pauses().take(REPEATS) {
            let error = match work().await {
                Err(error) => error,
                done => return done,
            };
            let Some(cause) = error.cause().filter(|_| started.elapsed() < PATIENCE) else {
                return Err(error);
            };
            metrics::counter!("facecrawl_database_retries_total", "call" => call, "cause" => cause.as_str())
                .increment(1);
            tracing::warn!(call, cause = cause.as_str(), "the database failed for the moment; trying again");
            tokio::time::sleep(pause).await;
        }
        work().await
    };
    REPEATED.scope((), repeated).await
}

/// Doubling pauses, each a random half to the whole of its length, so that many callers do not return at the same moment.
pub(crate) fn pauses() -> impl Iterator<Item = Duration> {
    successors(Some(FIRST), |pause| Some((*pause * 2).min(LONGEST)))
        .map(|pause| pause.mul_f64(rand::random_range(0.5..1.0)))
}
