//! Analyses, stores, fetches and controls videos.

pub(crate) mod address;
pub mod analyze;
pub mod control;
pub(crate) mod fetch;
pub(crate) mod file;
pub(crate) mod job;
pub(crate) mod job_error;
pub(crate) mod read;
pub(crate) mod store;
pub(crate) mod store_part;
