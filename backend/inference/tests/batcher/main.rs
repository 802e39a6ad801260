//! The contract of the device threads, on devices whose behaviour is known.
#![allow(clippy::unwrap_used, missing_docs)]
mod failing;
mod load;
mod prefetch;
mod support;
mod waiting;
