//! A generic durable job queue on Postgres with fenced completion. No domain words here.
//!
//! See `docs/QUEUE.md` for the state machine.

pub mod job;
pub mod queue;
pub mod runner;

pub use job::{Claim, ClaimedJob, JobRow, JobState, NewJob};
pub use queue::{Config, Enqueued, Queue, QueueError, QueueStats};
pub use runner::{Handler, Outcome, Runner, RunnerConfig};
