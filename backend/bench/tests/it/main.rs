//! Tests of the measurements, with models without weights, and of the simulated frontier.
#![allow(clippy::unwrap_used)]

mod measurements;
