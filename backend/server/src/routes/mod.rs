//! The HTTP operations, grouped by the noun of their path; `people` has those of `/subjects`.
//!
//! Code that several nouns need is in `shared`. A noun does not use the module of another noun.
pub(crate) mod audit;
pub(crate) mod collections;
pub(crate) mod crawls;
pub(crate) mod erasures;
pub(crate) mod faces;
pub(crate) mod images;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod people;
pub(crate) mod shared;
pub(crate) mod system;
pub(crate) mod videos;
