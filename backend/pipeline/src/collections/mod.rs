//! Empties deleted collections.

pub(crate) mod erase;
