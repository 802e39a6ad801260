//! Helpers that the tests of the binary share.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]
pub mod bucket;
pub mod service;
pub mod sites;
