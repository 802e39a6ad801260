//! The terms that a caller chooses for a request, and the result that the caller receives.
use crate::fair_queue::Requester;
use std::time::{Duration, Instant};

/// The priority class of a request; interactive work runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A person or an API caller waits for the result.
    Interactive,
    /// The request is part of a crawl or a batch job.
    Background,
}

#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub priority: Priority,
    /// The caller for whom the request runs. Requesters of one priority are served in turn.
    pub requester: Requester,
    /// Time after which the result is not needed. A request that is still queued then is not run.
    pub deadline: Option<Instant>,
}

impl From<Priority> for Terms {
    /// Returns terms with the default requester and without a deadline.
    fn from(priority: Priority) -> Self {
        Self { priority, requester: Requester::default(), deadline: None }
    }
}

#[derive(Clone, Debug)]
pub struct Timed<T> {
    pub output: T,
    /// Time spent waiting for a session.
    pub queued: Duration,
    /// Duration of the run, including preparation of the tensor and decoding of the outputs.
    pub ran: Duration,
}
