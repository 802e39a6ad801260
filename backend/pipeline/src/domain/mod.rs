//! Types that every other module of the pipeline may use: options, jobs and their payloads, ledger
//! rows and errors. This module does not fetch, analyse or store images.

mod collection;
mod error;
mod interval;
pub mod jobs;
mod match_threshold;
mod options;
mod row;
mod secret;
mod traces;
pub(crate) mod transient;
pub(crate) mod turn;
mod video;

pub use collection::DEFAULT_COLLECTION;
pub(crate) use collection::collection_id;
pub use error::{ChangeError, CrawlError};

pub use interval::Interval;
pub use match_threshold::{MatchThreshold, ThresholdSource};
pub(crate) use options::SeedCounts;
pub use options::{CrawlOptions, Dedupe, Rotate, Sitemaps};
pub(crate) use row::{Row, RowEnd};
pub use secret::Secret;
pub use traces::forget_jobs;
pub use video::{CannotRefine, VideoLimits, VideoRequest};
