//! Analyses, stores, fetches and controls videos.

pub mod analyze;
pub mod control;
pub(crate) mod file;
pub(crate) mod job;
pub mod store;
