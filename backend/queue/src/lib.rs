//! A generic, durable job queue on Postgres in which fences protect completions.
//!
//! The crate contains no application-specific terms.
//!
//! See `docs/explanation/QUEUE.md` for the state machine.

mod claim;
mod enqueue;
mod error;
mod groups;
mod inspect;
pub mod job;
mod keys;
mod partitions;
mod purge;
pub mod queue;
mod redact;
mod report;
pub mod runner;
mod settle;

pub use enqueue::Enqueued;
pub use error::QueueError;
pub use inspect::QueueStats;
pub use job::{Claim, ClaimedJob, JobRow, JobState, NewJob};
pub use queue::{CHANNEL, Config, Queue};
pub use report::{KindReport, QueueReport};
pub use runner::{Concurrency, Handler, Outcome, Runner, RunnerConfig, outside_slot};
