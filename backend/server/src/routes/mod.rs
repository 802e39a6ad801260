//! The HTTP operations, grouped by the noun of their path. `people` contains those of `/subjects`.
//!
//! Code for several nouns is in `shared`. The module of a noun does not use the module of another
//! noun.
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
pub(crate) mod streams;
pub(crate) mod system;
pub(crate) mod videos;
pub(crate) mod watch;
