//! Tests the contract of the device threads with devices of known behaviour.
mod failing;
mod load;
mod prefetch;
mod support;
mod waiting;
