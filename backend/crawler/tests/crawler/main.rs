//! Tests the crawler through its public interface, with real sockets on 127.0.0.1.
#![allow(clippy::unwrap_used)]
mod broken_servers;
mod discovery;
mod fetch;
mod guard;
mod protocols;
mod support;
