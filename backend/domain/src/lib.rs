//! Defines the states, reasons and kinds of jobs that the store, the pipeline and the server share.
//! It performs no I/O and depends on no other crate of the project.
//!
//! Each type has one code for the database, JSON, metrics and the command line. The test
//! `backend/app/tests/it/sources.rs` checks that no other crate writes such a code as a string
//! literal. Exceptions are SQL statements, and a few files in which the same word has another
//! meaning.

mod jobs;
mod reason;
mod states;
mod text_enum;

pub use jobs::{JobKind, JobSpec};
pub use reason::Reason;
pub use states::{
    AlertState, ClusteringState, CrawlKind, CrawlState, DeliveryState, EnrolmentOutcome, ImageState,
    IndexSetState, PageState, StreamKind, StreamState, StreamStore, Unprocessed, VideoState, WatchNotify,
};
pub use text_enum::UnknownCode;
