//! Defines the states, reasons and kinds of jobs that the store, the pipeline and the server share.
//! It performs no I/O and depends on no other crate of the project.
//!
//! Each type has one code for the database, JSON, metrics and the command line. No other crate
//! writes such a code as a string literal; statements in SQL are the exception.

mod jobs;
mod reason;
mod states;
mod text_enum;

pub use jobs::{JobKind, JobSpec};
pub use reason::Reason;
pub use states::{ClusteringState, CrawlKind, CrawlState, ImageState, PageState, Unprocessed};
pub use text_enum::UnknownCode;
