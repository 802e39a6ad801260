//! Tests of the crate in one test program, so that they are linked once. Tests that need a process
//! of their own are beside this folder.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod batcher;
mod default_pack;
mod devices;
mod engine;
mod fixture;
mod oracle;
