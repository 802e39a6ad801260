//! Tests of the crate, in one program, so that it is linked once.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod batcher;
mod devices;
mod engine;
mod films;
mod fixture;
mod oracle;
mod oracle_opencv;
mod people;
mod pixels;
mod quality;
