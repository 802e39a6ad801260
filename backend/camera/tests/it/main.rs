//! Tests of sessions with cameras on real sockets.
#![allow(clippy::unwrap_used)]
