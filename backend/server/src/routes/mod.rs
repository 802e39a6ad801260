//! The HTTP operations. Each resource has a folder, and each operation has a file with its types.
pub(crate) mod audit;
pub(crate) mod collections;
pub(crate) mod crawls;
pub(crate) mod deletion;
pub(crate) mod dto;
pub(crate) mod erasures;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod faces;
pub(crate) mod fallback;
pub(crate) mod images;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod subjects;
pub(crate) mod system;
pub(crate) mod videos;
