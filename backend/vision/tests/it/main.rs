//! Tests of the crate in one test program, so that they are linked once. Tests that need a process
//! of their own are beside this folder.
#![allow(clippy::unwrap_used)]

mod decode;
mod encode;
mod enhance;
mod geometry;
mod oracle;
mod probe;
