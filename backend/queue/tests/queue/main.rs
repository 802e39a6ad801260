//! Tests the queue against a real Postgres server.
#![allow(clippy::unwrap_used)]

mod crashes;
mod enqueue;
mod failures;
mod groups;
mod inspect;
mod purge;
mod runner;
mod settling;
mod support;
mod tenants;
