//! One folder per resource, one file per operation, the shapes beside them.
pub(crate) mod audit;
pub(crate) mod collections;
pub(crate) mod crawls;
pub(crate) mod deletion;
pub(crate) mod dto;
pub(crate) mod erasures;
pub(crate) mod faces;
pub(crate) mod images;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod subjects;
pub(crate) mod system;
