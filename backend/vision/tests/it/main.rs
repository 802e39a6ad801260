//! Tests of the crate, in one program, so that it is linked once.
#![allow(clippy::unwrap_used, missing_docs)]

mod decode;
mod encode;
mod enhance;
mod geometry;
mod mutations;
mod oracle;
mod probe;
mod view;
