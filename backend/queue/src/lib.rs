//! A generic, durable job queue on Postgres in which fences protect completions.
//!
//! The crate contains no application-specific terms.
//!
//! See `docs/explanation/QUEUE.md` for the state machine.

mod claim;
mod enqueue;
mod groups;
mod inspect;
pub mod job;
mod partitions;
mod purge;
pub mod queue;
pub mod runner;
mod settle;

pub use enqueue::Enqueued;
pub use groups::Groups;
pub use inspect::{Jobs, KindReport, QueueReport, QueueStats};
pub use job::{Claim, ClaimedJob, JobRow, JobState, NewJob};
pub use queue::{CHANNEL, Config, Queue, QueueError};
pub use runner::{Concurrency, Handler, RunEnd, Runner, RunnerConfig, only_outside_slot, outside_slot};
