//! Tests the queue against a real Postgres server.
#![allow(clippy::unwrap_used)]

mod contention;
mod crashes;
mod enqueue;
mod failures;
mod groups;
mod inspect;
mod partitions;
mod purge;
mod redact;
mod runner;
mod settling;
mod support;
mod tenants;
