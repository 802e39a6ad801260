//! Helpers that the tests of the binary share.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]
#[cfg(unix)]
pub mod bucket;
pub mod files;
pub mod hostile;
pub mod process;
#[cfg(unix)]
pub mod service;
