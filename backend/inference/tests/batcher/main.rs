//! Tests the contract of the device threads with devices of known behaviour.
#![allow(clippy::unwrap_used, missing_docs)]
mod failing;
mod load;
mod prefetch;
mod support;
mod waiting;
